// Command promql evaluates queries on series with the engine of Prometheus, for the test of the
// alarms and charts in the folder above. It is a module of its own, so that users of scattermap do
// not get the modules of Prometheus.
//
// It reads [Input] as JSON, and writes a list of results for each query.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// Input has the queries to evaluate, and the series on which they are evaluated. Each query is
// evaluated at each time from 0 to End, in steps of Step seconds.
type Input struct {
	Series    []Series
	Queries   []string
	End, Step int64
}

// A Series is a time series: its labels, including its name as __name__, and its samples. Results
// have this form, too.
type Series struct {
	Labels  map[string]string
	Samples []Sample
}

// A Sample is a value at a time, in seconds.
type Sample struct {
	At    int64
	Value float64
}

func main() {
	var in Input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fail(err)
	}
	engine := promql.NewEngine(
		promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
			Parser: parser.NewParser(parser.Options{})},
	)
	out := make([][]Series, len(in.Queries))
	for i, text := range in.Queries {
		// Time 0 of the input is an hour after the epoch, so that no query's window starts before
		// the epoch.
		at := func(seconds int64) time.Time { return time.Unix(3600+seconds, 0) }
		q, err := engine.NewRangeQuery(
			context.Background(),
			queryable(in.Series),
			nil,
			text,
			at(0),
			at(in.End),
			time.Duration(in.Step)*time.Second,
		)
		if err != nil {
			fail(fmt.Errorf("%s: %w", text, err))
		}
		result := q.Exec(context.Background())
		if result.Err != nil {
			fail(fmt.Errorf("%s: %w", text, result.Err))
		}
		matrix, err := result.Matrix()
		if err != nil {
			fail(fmt.Errorf("%s: %w", text, err))
		}
		out[i] = []Series{}
		for _, s := range matrix {
			one := Series{Labels: s.Metric.Map()}
			for _, p := range s.Floats {
				if !math.IsNaN(p.F) && !math.IsInf(p.F, 0) { // JSON can't express NaN and infinities
					one.Samples = append(one.Samples, Sample{At: p.T/1000 - 3600, Value: p.F})
				}
			}
			if len(one.Samples) > 0 {
				out[i] = append(out[i], one)
			}
		}
		q.Close()
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "promql:", err)
	os.Exit(1)
}

// queryable is a storage.Queryable. It makes series in memory readable for the engine of
// Prometheus.
type queryable []Series

func (q queryable) Querier(int64, int64) (storage.Querier, error) { return querier{series: q}, nil }

type querier struct {
	storage.Querier
	series []Series
}

func (querier) Close() error { return nil }

func (q querier) Select(
	_ context.Context,
	_ bool,
	_ *storage.SelectHints,
	matchers ...*labels.Matcher,
) storage.SeriesSet {
	var found []storage.Series
	for _, s := range q.series {
		all := labels.FromMap(s.Labels)
		ok := true
		for _, m := range matchers {
			ok = ok && m.Matches(all.Get(m.Name))
		}
		if ok {
			samples := make([]chunks.Sample, len(s.Samples))
			for i, p := range s.Samples {
				samples[i] = sample{at: 1000 * (3600 + p.At), value: p.Value}
			}
			found = append(found, storage.NewListSeries(all, samples))
		}
	}
	return &set{series: found, at: -1}
}

// set is a storage.SeriesSet over series in memory.
type set struct {
	series []storage.Series
	at     int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *set) At() storage.Series                { return s.series[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// sample implements chunks.Sample.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
