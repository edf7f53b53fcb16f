package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// A drawing draws a random shape, which is a random kind of job: see random.
type drawing struct {
	*rand.Rand
	// for numbers of single entities; separate, so that a seed has the same shape with any number
	// of entities
	entity *rand.Rand
	random
	workers int
	tenants []int // number of entities of each tenant, in key order; nil: no tenants
}

// draw draws the shape of a seed over n entities. The number of workers and the latencies matter
// only for numbers that are drawn in proportion to the shape's ideal time.
func draw(seed uint64, n, workers int, l latencies) random {
	// 2^64 divided by the golden ratio; without it, close seeds would have similar first numbers
	const spread = 0x9e3779b97f4a7c15
	d := drawing{Rand: rand.New(rand.NewPCG(seed*spread, seed)), entity: rand.New(rand.NewPCG(seed*spread, ^seed)),
		random: random{n: n}, workers: workers}
	d.drawKeys()
	d.drawFilter()
	d.jitter = d.chance(0.2)
	if d.jitter && l.name == "usual" {
		d.say("calls with jitter, 1%% of them slow")
	}
	d.drawCosts(l)
	d.drawTime(d.ideal(l.with(d.random), workers))
	return d.random
}

func (d *drawing) say(format string, args ...any) {
	d.says = append(d.says, fmt.Sprintf(format, args...))
}

func (d *drawing) chance(p float64) bool { return d.Float64() < p }

// in draws a number in [least, most], log-uniformly.
func (d *drawing) in(least, most float64) float64 {
	return least * math.Pow(most/least, d.Float64())
}

// among draws an integer in [least, most], log-uniformly.
func (d *drawing) among(least, most int) int {
	return min(most, int(d.in(float64(least), float64(most+1))))
}

// drawKeys draws keys. A quarter of the shapes have IDs that count up, and a quarter have allocated
// IDs. Half have entities of 10 to 1,000 tenants, by a prefix of names or below ancestors. The size
// of the k-th largest tenant is in proportion to k^-s, with s in [0.5, 1.5]. The tenants are in
// random order.
func (d *drawing) drawKeys() {
	switch d.IntN(4) {
	case 0:
		d.say("ids in sequence")
		d.key = func(i int) *datastore.Key { return datastore.IDKey(kind, int64(i+1), nil) }
		d.index = func(k *datastore.Key) int { return int(k.ID) - 1 }
	case 1:
		d.say("allocated ids")
		all := make([]int64, d.n)
		for i := range all { // in one of 4,000 shapes, two IDs are equal; the later one is then raised by 1
			all[i] = 4_500_000_000_000_000 + d.entity.Int64N(2_000_000_000_000_000)
		}
		slices.Sort(all)
		for i := 1; i < len(all); i++ {
			all[i] = max(all[i], all[i-1]+1)
		}
		d.key = func(i int) *datastore.Key { return datastore.IDKey(kind, all[i], nil) }
		d.index = func(k *datastore.Key) int {
			i, _ := slices.BinarySearch(all, k.ID)
			return i
		}
	case 2:
		first := d.drawTenants("by prefix")
		d.key = func(i int) *datastore.Key {
			t, i := in(first, i)
			return datastore.NameKey(kind, fmt.Sprintf("t%04d/%08d", t, i), nil)
		}
		d.index = func(k *datastore.Key) int { return first[number(k.Name[1:5])] + number(k.Name[6:]) }
	default:
		first := d.drawTenants("by ancestor")
		d.key = func(i int) *datastore.Key {
			t, i := in(first, i)
			return datastore.IDKey(kind, int64(i+1), datastore.NameKey("Tenant", fmt.Sprintf("t%04d", t), nil))
		}
		d.index = func(k *datastore.Key) int { return first[number(k.Parent.Name[1:])] + int(k.ID) - 1 }
	}
}

// in returns the tenant of the i-th entity, and the entity's number in it.
func in(first []int, i int) (tenant, of int) {
	t, _ := slices.BinarySearch(first, i+1)
	return t - 1, i - first[t-1]
}

func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic(err)
	}
	return n
}

// drawTenants draws the size of each tenant, and returns the index of each tenant's first entity.
func (d *drawing) drawTenants(how string) (first []int) {
	count, s := d.among(10, 1000), 0.5+d.Float64()
	sum := 0.0
	for k := range count {
		sum += math.Pow(float64(k+1), -s)
	}
	d.tenants = make([]int, count)
	done, upTo := 0, 0.0
	for i, k := range d.Perm(count) {
		upTo += math.Pow(float64(k+1), -s) / sum
		first = append(first, done)
		d.tenants[i] = int(math.Round(upTo*float64(d.n))) - done
		done += d.tenants[i]
	}
	d.say("%d tenants %s, the largest %.0f%%", count, how, 100*float64(slices.Max(d.tenants))/float64(d.n))
	return first
}

// drawFilter draws a filter for three in ten shapes. The filter matches 1% to 50% of the entities,
// in 1 to 10 intervals of equal size. The entities are divided into as many equal parts, and each
// interval has a random place in one part.
func (d *drawing) drawFilter() {
	if !d.chance(0.3) {
		return
	}
	share, bands := d.in(0.01, 0.5), d.among(1, 10)
	d.matches = make([]bool, d.n)
	part := d.n / bands
	size := max(1, int(share*float64(part)))
	for b := range bands {
		first := b*part + int(d.Float64()*float64(part-size+1))
		for i := range size {
			d.matches[first+i] = true
		}
	}
	d.say("%.1f%% match, in %d %s", 100*share, bands, plural(bands, "band"))
}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// drawCosts draws how long the function takes for each entity. The mean is in [leastCost,
// mostCost]. With a filter, the lower limit is raised so that the ideal time is no shorter than
// without one. The upper limit is at least ten times the lower one. No entity takes more than ten
// seconds, or more than a tenth of a worker's share of all work.
func (d *drawing) drawCosts(l latencies) {
	weights := d.drawWeights()
	if len(d.tenants) > 0 && d.chance(0.5) {
		d.say("another cost for each tenant, up to 10 times")
		i := 0
		for _, size := range d.tenants {
			factor := d.in(1, 10)
			for range size {
				weights[i] *= factor
				i++
			}
		}
	}
	d.costs = make([]time.Duration, d.n)
	if d.matches != nil {
		for i, m := range d.matches {
			if !m {
				weights[i] = 0
			}
		}
	}
	matching := float64(d.matching())
	// the time of calls for an entity, as its share of a page
	page := (2*perQuery+perCommit).Seconds()/float64(*pageSize) + perEntity.Seconds()
	least := (leastCost.Seconds()+page)*float64(d.n)/matching - page
	mean := d.in(least, max(mostCost.Seconds(), 10*least))
	if l.free {
		return
	}
	dearest := min(1/float64(10*d.workers), 10/(mean*matching)) // the longest time of an entity, as a share of all work
	sum := level(weights, dearest)
	for i, w := range weights {
		d.costs[i] = time.Duration(mean * matching * w / sum * float64(time.Second))
	}
	d.say("%v in the mean, %v at most", short(time.Duration(mean*float64(time.Second))), short(slices.Max(d.costs)))
}

// level cuts each weight to at most the given part of the sum of all weights. It returns the sum.
func level(weights []float64, part float64) (sum float64) {
	for range 100 { // each cut reduces the sum, and so also the limit
		sum, most := 0.0, 0.0
		for _, w := range weights {
			sum += w
			most = max(most, w)
		}
		if most <= 1.001*part*sum {
			return sum
		}
		for i, w := range weights {
			weights[i] = min(w, part*sum)
		}
	}
	panic("weights do not level out")
}

func short(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// drawWeights draws how long the function takes for each entity, in relation to the others.
func (d *drawing) drawWeights() []float64 {
	w := make([]float64, d.n)
	each := func(weight func(i int) float64) []float64 {
		for i := range w {
			w[i] = weight(i)
		}
		return w
	}
	x := func(i int) float64 { return float64(i) / float64(d.n) }
	switch p := d.Float64(); {
	case p < 0.15:
		d.say("even cost")
		return each(func(int) float64 { return 1 })
	case p < 0.35: // 2 to 8 steps at random places, with weights from 1 to 50
		steps := d.among(2, 8)
		ends, factors := make([]float64, steps-1), make([]float64, steps)
		for i := range ends {
			ends[i] = d.Float64()
		}
		slices.Sort(ends)
		var text []string
		for i := range factors {
			factors[i] = d.in(1, 50)
			text = append(text, fmt.Sprintf("%.1f", factors[i]))
			if i < len(ends) {
				text = append(text, fmt.Sprintf("up to %.0f%%,", 100*ends[i]))
			}
		}
		d.say("steps of %s", strings.Join(text, " "))
		return each(func(i int) float64 {
			s, _ := slices.BinarySearch(ends, x(i))
			return factors[s]
		})
	case p < 0.45: // linear from 1 to a factor of 2 to 50, or the reverse
		factor, up := d.in(2, 50), d.chance(0.5)
		d.say("a ramp %s %.1f times", map[bool]string{true: "up to", false: "down from"}[up], factor)
		return each(func(i int) float64 {
			if up {
				return 1 + (factor-1)*x(i)
			}
			return factor - (factor-1)*x(i)
		})
	case p < 0.60: // 0.01% to 1% of the entities take 10 to 1,000 times as long
		share, factor := d.in(0.0001, 0.01), d.in(10, 1000)
		d.say("spikes of %.0f times on %.2f%%", factor, 100*share)
		return each(func(int) float64 {
			if d.entity.Float64() < share {
				return factor
			}
			return 1
		})
	case p < 0.75: // a distribution with a heavy tail
		alpha := 1.1 + 1.4*d.Float64()
		d.say("Pareto, alpha %.2f", alpha)
		return each(func(int) float64 { return min(10_000, math.Pow(1-d.entity.Float64(), -1/alpha)) })
	case p < 0.90: // the last 0.5% to 30% take 2 to 20 times as long
		share, factor := d.in(0.005, 0.3), d.in(2, 20)
		d.say("the last %.1f%% %.1f times", 100*share, factor)
		return each(func(i int) float64 {
			if x(i) >= 1-share {
				return factor
			}
			return 1
		})
	default: // 0.5% to 30% in one place take 1, all others a thousandth
		share := d.in(0.005, 0.3)
		from := d.Float64() * (1 - share)
		d.say("nearly free but for %.1f%% behind %.0f%%", 100*share, 100*from)
		return each(func(i int) float64 {
			if x(i) >= from && x(i) < from+share {
				return 1
			}
			return 0.001
		})
	}
}

// drawTime draws what changes during the job: the function's speed and the processes. The argument
// is the job's ideal time without changes.
func (d *drawing) drawTime(ideal time.Duration) {
	at := func(share float64) time.Duration { return time.Duration(share * float64(ideal)) }
	d.change = []phase{{0, 1}}
	// drawn even if the function takes no time, so that the numbers drawn later stay the same
	switch p := d.Float64(); {
	case p < 0.1: // 2 to 10 times slower for 10% to 50% of the time
		from, share, factor := 0.7*d.Float64(), d.in(0.1, 0.5), d.in(2, 10)
		d.say("calls %.1f times as long from %.0f%% of the time, for %.0f%%", factor, 100*from, 100*share)
		d.change = append(d.change, phase{at(from), factor}, phase{at(from + share), 1})
	case p < 0.2: // more and more slowly, up to 2 to 5 times
		factor := d.in(2, 5)
		d.say("calls take longer and longer, up to %.1f times", factor)
		for i := range 20 {
			d.change = append(d.change, phase{at(float64(i+1) / 20), 1 + (factor-1)*float64(i+1)/20})
		}
	}
	if d.chance(0.2) {
		some := 1 + d.IntN(3) // how many of the five processes
		switch d.IntN(3) {
		case 0:
			from := d.in(0.05, 0.6)
			d.say("%d of %d processes come at %.0f%% of the time", some, fleetSize, 100*from)
			for i := range some {
				d.shifts = append(d.shifts, shift{0, i, false}, shift{at(from), i, true})
			}
		case 1:
			to := d.in(0.2, 0.8)
			d.say("%d of %d processes go at %.0f%% of the time", some, fleetSize, 100*to)
			for i := range some {
				d.shifts = append(d.shifts, shift{at(to), i, false})
			}
		default:
			to, share := d.in(0.1, 0.6), d.in(0.1, 0.4)
			d.say("%d of %d processes are away from %.0f%% of the time, for %.0f%%", some, fleetSize, 100*to, 100*share)
			for i := range some {
				d.shifts = append(d.shifts, shift{at(to), i, false}, shift{at(to + share), i, true})
			}
		}
		slices.SortStableFunc(d.shifts, func(a, b shift) int { return int(a.at - b.at) })
	}
	if d.chance(0.2) {
		d.cold = time.Duration(d.in(1, 5) * float64(time.Second))
		d.say("cold starts of %v", short(d.cold))
	}
}
