package faults

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Latency is a distribution of random durations: [Constant], [Uniform], [Exponential] or
// [LogNormal]. Other types can't implement it.
type Latency interface {
	// Draw returns a random duration of at least 0. It depends only on rng.
	Draw(rng *rand.Rand) time.Duration
	validate() error
}

// Constant is a [Latency] that always has the same duration.
type Constant time.Duration

// Uniform is a [Latency] in [Min, Max), in which each duration is equally likely. If Max is at most
// Min, it is always Min.
type Uniform struct{ Min, Max time.Duration }

// Exponential is a [Latency] with an exponential distribution, like the time between independent
// events.
type Exponential struct{ Mean time.Duration }

// LogNormal is a [Latency] with a log-normal distribution, like the typical answer times of
// services. Half of the durations are above Median, and one in a hundred is above P99.
type LogNormal struct{ Median, P99 time.Duration }

// Draw returns c.
func (c Constant) Draw(*rand.Rand) time.Duration { return time.Duration(c) }

// Draw returns a duration in [Min, Max).
func (u Uniform) Draw(rng *rand.Rand) time.Duration {
	if u.Max <= u.Min {
		return u.Min
	}
	return u.Min + time.Duration(rng.Int64N(int64(u.Max-u.Min)))
}

// Draw returns a duration. The average of many is Mean.
func (e Exponential) Draw(rng *rand.Rand) time.Duration {
	return duration(rng.ExpFloat64() * float64(e.Mean))
}

// z99 is the 99th percentile of the standard normal distribution. LogNormal computes its deviation
// from it.
const z99 = 2.3263478740408408

// Draw returns a random duration. Half of the durations are above Median.
func (l LogNormal) Draw(rng *rand.Rand) time.Duration {
	sigma := math.Log(float64(l.P99)/float64(l.Median)) / z99
	return duration(float64(l.Median) * math.Exp(sigma*rng.NormFloat64()))
}

// duration converts a number of nanoseconds, and limits it to what a Duration can hold.
func duration(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

func (c Constant) validate() error {
	if c < 0 {
		return fmt.Errorf("Constant has to be at least 0, it is %v", time.Duration(c))
	}
	return nil
}

func (u Uniform) validate() error {
	if u.Min < 0 {
		return fmt.Errorf("Uniform.Min has to be at least 0, it is %v", u.Min)
	}
	return nil
}

func (e Exponential) validate() error {
	if e.Mean < 0 {
		return fmt.Errorf("Exponential.Mean has to be at least 0, it is %v", e.Mean)
	}
	return nil
}

func (l LogNormal) validate() error {
	if l.Median <= 0 || l.P99 < l.Median {
		return fmt.Errorf("LogNormal has to have a positive Median and a P99 of at least that, they are %v and %v",
			l.Median, l.P99)
	}
	return nil
}
