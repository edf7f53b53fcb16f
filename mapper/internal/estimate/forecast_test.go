package estimate_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/tasks"
)

// jobOver returns the facts about a job over a query, with pages of 100 entities.
func jobOver(q query.Query) *estimate.Job {
	return &estimate.Job{Query: q, PageSize: 100, PageTime: time.Minute, Workers: 4, AtOnce: 4,
		Parallel: tasks.Parallel, Deadline: 10 * time.Minute,
		Update: true, Writes: 1, PerEntity: time.Millisecond, Prices: billing.NAM5}
}

// TestForecast checks the forecasts for jobs over a namespace with 1,000 entities and one with 100.
func TestForecast(t *testing.T) {
	one := query.Query{Kind: "K", Namespace: "a"}
	few := query.Query{Kind: "K", Namespace: "b"}
	for _, c := range []struct {
		name     string
		job      func() *estimate.Job
		entities int64
		pages    int64 // at least
		usage    func(e *estimate.Forecast) billing.Usage
		takes    time.Duration // at least
	}{
		{
			name: "an update reads and writes each entity", job: func() *estimate.Job { return jobOver(one) },
			entities: 1000,
			pages:    10, takes: time.Second / 4,
			usage: func(e *estimate.Forecast) billing.Usage {
				return billing.Usage{Reads: 1000 + 3*e.Pages + e.Tasks, Writes: 1000 + 2*e.Pages,
					SmallOps: 1000, TaskOps: 2*e.Tasks + 2}
			},
		},
		{
			name: "a visit of keys reads none",
			job: func() *estimate.Job {
				j := jobOver(one)
				j.Query.KeysOnly, j.Update, j.Writes = true, false, 0
				return j
			},
			entities: 1000, pages: 10,
			usage: func(e *estimate.Forecast) billing.Usage {
				return billing.Usage{Reads: 3*e.Pages + e.Tasks, Writes: 2 * e.Pages, SmallOps: 1000,
					TaskOps: 2*e.Tasks + 2}
			},
		},
		{
			name: "a slow function has smaller pages",
			job: func() *estimate.Job {
				j := jobOver(few)
				j.PageTime, j.PerEntity = 10*time.Second, time.Second
				return j
			},
			entities: 100, pages: 10, takes: 25 * time.Second,
		},
		{
			name: "a rate limits it, and has pages of 5: one of each worker within 20 seconds",
			job: func() *estimate.Job {
				j := jobOver(few)
				j.Rate = pace.Limit{EntitiesPerSecond: 1}
				return j
			},
			entities: 100, pages: 20, takes: 100 * time.Second,
		},
		{
			name: "calls limit it, and it has pages of 15: a quarter of the calls of a minute",
			job: func() *estimate.Job {
				j := jobOver(few)
				j.Rate, j.Calls = pace.Limit{CallsPerSecond: 2}, 2
				return j
			},
			entities: 100, pages: 7, takes: 100 * time.Second,
		},
		{
			name: "its calls take less than the time of a page",
			job: func() *estimate.Job {
				j := jobOver(few)
				j.Rate, j.Calls = pace.Limit{CallsPerSecond: 2}, 1
				j.Workers, j.AtOnce = 4, 100
				return j
			},
			entities: 100, pages: 1, takes: 50 * time.Second,
		},
		{
			name:     "no page has entities of two namespaces",
			job:      func() *estimate.Job { return jobOver(query.Query{Kind: "K", Namespaces: []string{"a", "b"}}) },
			entities: 1100, pages: 11,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, err := forecastOf(t.Context(), entities(t, nil, map[string]int{"a": 1000, "b": 100}), c.job())
				if err != nil {
					t.Fatal(err)
				}
				if e.Entities != c.entities || !e.Exact || e.LowerBound || e.Pages < c.pages || e.Pages > 2*c.pages+8 ||
					e.Duration < c.takes || e.Tasks < 1 || e.Spent.Reads < 1 || e.Workers != 4 {
					t.Errorf("%+v", e)
				}
				if c.usage != nil && !reflect.DeepEqual(e.Usage, c.usage(e)) {
					t.Errorf("it is expected to use %+v, want %+v", e.Usage, c.usage(e))
				}
				if e.Dollars != billing.NAM5.Dollars(e.Usage) {
					t.Errorf("$%v for %+v", e.Dollars, e.Usage)
				}
			})
		})
	}
}

// TestBySample checks the forecast for a job over 4,000 entities in a database that can't count.
// The number of entities must be estimated from a sample.
func TestBySample(t *testing.T) {
	for _, c := range []struct {
		name    string
		scatter int
		known   bool
	}{
		{"a sample of one in 16", 16, true},
		{"hardly any sample: it is an error, as without a word the job would cost nothing", 1 << 16, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := entities(t, &emulator.Options{ScatterOneIn: c.scatter}, map[string]int{"a": 4000})
				src.CantCount()
				e, err := forecastOf(t.Context(), src, jobOver(query.Query{Kind: "K", Namespace: "a"}))
				if !c.known {
					if err == nil || !strings.Contains(err.Error(), "neither counts") {
						t.Errorf("%+v, %v", e, err)
					}
					return
				}
				if err != nil || e.Exact || e.LowerBound || e.Entities < 2000 || e.Entities > 8000 ||
					e.Spent.SmallOps < 50 {
					t.Errorf("%+v, %v", e, err)
				}
			})
		})
	}
}

// forecastOf returns the forecast for a job over the entities that src reads.
func forecastOf(ctx context.Context, src source.Source, j *estimate.Job) (*estimate.Forecast, error) {
	size, err := survey.SizeOf(ctx, src, j)
	if err != nil {
		return nil, err
	}
	return estimate.ForecastOf(ctx, j, size)
}

// entities returns a source whose database has n entities in each namespace.
func entities(t *testing.T, options *emulator.Options, n map[string]int) source.Source {
	t.Helper()
	client, err := emulator.ForTest(t, options).DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for namespace, n := range n {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.NameKey("K", fmt.Sprintf("%05d", i), nil)
			keys[i].Namespace = namespace
		}
		for len(keys) > 0 {
			some := keys[:min(500, len(keys))]
			if _, err := client.PutMulti(t.Context(), some, make([]struct{ N int }, len(some))); err != nil {
				t.Fatal(err)
			}
			keys = keys[len(some):]
		}
	}
	return source.New(client, nil)
}
