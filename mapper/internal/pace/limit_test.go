package pace

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag" // defines the flags that all tests get
)

func TestLimitAt(t *testing.T) {
	for _, test := range []struct {
		limit            Limit
		since            time.Duration
		entities, writes float64
	}{
		{Limit{}, 0, math.Inf(1), math.Inf(1)},
		{Limit{EntitiesPerSecond: 10}, time.Hour, 10, math.Inf(1)},
		{Limit{WritesPerSecond: 10}, 0, math.Inf(1), 10},
		{Limit{Ramp: true}, -time.Minute, 500, 500},
		{Limit{Ramp: true}, 5*time.Minute - 1, 500, 500},
		{Limit{Ramp: true}, 5 * time.Minute, 750, 750},
		{Limit{Ramp: true}, 10 * time.Minute, 1125, 1125},
		{Limit{Ramp: true, WritesPerSecond: 600}, 10 * time.Minute, 1125, 600},
		{Limit{Ramp: true, CallsPerSecond: 2000}, 0, 500, 500}, // the ramp does not limit calls
	} {
		want := Need{test.entities, test.writes, cmp.Or(test.limit.CallsPerSecond, math.Inf(1))}
		if got := test.limit.at(test.since); got != want {
			t.Errorf("%+v after %v: %+v, want %+v", test.limit, test.since, got, want)
		}
	}
}

func TestCost(t *testing.T) {
	for _, test := range []struct {
		limit Limit
		n     float64
		each  float64 // number of writes for each entity
		want  time.Duration
	}{
		{Limit{}, 500, 1, 0},
		{Limit{EntitiesPerSecond: 100}, 100, 1, time.Second},
		{Limit{WritesPerSecond: 100}, 98, 1, time.Second},                             // with the writes of records
		{Limit{EntitiesPerSecond: 100, WritesPerSecond: 40}, 10, 0, time.Second / 10}, // entities take longest
		// the writes of records take longest
		{Limit{EntitiesPerSecond: 1000, WritesPerSecond: 4}, 10, 0, time.Second / 2},
		{Limit{EntitiesPerSecond: 0.001}, 1e6, 0, time.Hour},
	} {
		if d := test.limit.Cost(test.n, test.n*test.each, 0); d != test.want {
			t.Errorf("%+v, %v entities of %v writes: %v, want %v", test.limit, test.n, test.each, d, test.want)
		}
	}
}

func TestPage(t *testing.T) {
	const most = 20 * time.Second
	for _, test := range []struct {
		limit Limit
		each  float64
		queue Queue
		want  int
	}{
		{Limit{EntitiesPerSecond: 1000}, 1, Queue{}, 500},
		{Limit{EntitiesPerSecond: 100}, 1, Queue{}, 100},                   // one second of the rate
		{Limit{EntitiesPerSecond: 100}, 1, Queue{19 * time.Second, 0}, 50}, // half of the remaining wait
		{Limit{EntitiesPerSecond: 100}, 1, Queue{time.Minute, 0}, 1},
		{Limit{EntitiesPerSecond: 100}, 1, Queue{0, 98}, 20},
		{Limit{EntitiesPerSecond: 2}, 1, Queue{}, 10},
		{Limit{EntitiesPerSecond: 0.1}, 1, Queue{}, 1},
		{Limit{WritesPerSecond: 100}, 1, Queue{}, 98},
		{Limit{WritesPerSecond: 4}, 1, Queue{}, 18}, // with the two writes of records
		{Limit{WritesPerSecond: 100}, 0, Queue{}, 500},
		{Limit{WritesPerSecond: 0.01}, 0, Queue{}, 500}, // the function writes nothing
		{Limit{EntitiesPerSecond: 200, WritesPerSecond: 202}, 2, Queue{}, 100},
	} {
		if n := test.limit.Page(500, test.each, 0, test.queue, most); n != test.want {
			t.Errorf("%+v, %v writes each, %+v: %d, want %d", test.limit, test.each, test.queue, n, test.want)
		}
	}
}

// TestShares checks that workers that share a rate get about equal parts of it, and that no page of
// entities waits much longer than allowed.
func TestShares(t *testing.T) {
	const most = 20 * time.Second
	for _, workers := range []int{1, 7, 100, 1000} {
		limit, now := Limit{EntitiesPerSecond: 500}, time.Unix(1000, 0)
		clock := Clock{Until: now, At: now}
		next, shares := make([]time.Time, workers), make([]int, workers)
		for i := range next {
			next[i] = now
		}
		for range 10 * workers {
			i := 0
			for k := range next {
				if next[k].Before(next[i]) {
					i = k
				}
			}
			now = next[i]
			var cost time.Duration
			begin, q := clock.Reserve(now, func(q Queue) (time.Duration, int64) {
				shares[i] = limit.Page(500, 1, 0, q, most)
				cost = limit.Cost(float64(shares[i]), 0, 0)
				return cost, 1
			})
			if q.Wait > most*11/10 {
				t.Fatalf("%d workers: a page waits for %v", workers, q.Wait)
			}
			next[i] = begin.Add(cost)
		}
		if least, largest := slices.Min(shares), slices.Max(shares); largest > 2*least {
			t.Errorf("%d workers: pages of %d to %d entities", workers, least, largest)
		}
	}
}

func TestLimitTakes(t *testing.T) {
	for _, test := range []struct {
		limit Limit
		need  Need
		want  time.Duration
	}{
		{Limit{}, Need{1e9, 1e9, 1e9}, 0},
		{Limit{EntitiesPerSecond: 10}, Need{Entities: 1000}, 100 * time.Second},
		{Limit{EntitiesPerSecond: 10, WritesPerSecond: 5}, Need{1000, 1000, 0}, 200 * time.Second},
		{Limit{EntitiesPerSecond: 10, CallsPerSecond: 2}, Need{1000, 1000, 1000}, 500 * time.Second},
		{Limit{Ramp: true}, Need{Entities: 150_000}, 5 * time.Minute},
		{Limit{Ramp: true}, Need{Entities: 375_000}, 10 * time.Minute},
		{Limit{Ramp: true, CallsPerSecond: 100}, Need{Entities: 150_000, Calls: 60_000}, 10 * time.Minute},
		{Limit{EntitiesPerSecond: 1e-12}, Need{Entities: 1e12}, MaxTakes},
	} {
		if d := test.limit.Takes(test.need); d != test.want {
			t.Errorf("%+v, %+v: %v, want %v", test.limit, test.need, d, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, limit := range map[string]Limit{
		"": {EntitiesPerSecond: 10, WritesPerSecond: 10, Ramp: true},
		"R.EntitiesPerSecond has to be at least 0, it is NaN":                {EntitiesPerSecond: math.NaN()},
		"R.EntitiesPerSecond has to be at least 0, it is -1":                 {EntitiesPerSecond: -1},
		"R.WritesPerSecond has to be at least 0, it is +Inf":                 {WritesPerSecond: math.Inf(1)},
		"R.EntitiesPerSecond has to be at least 0.5 a second for 10 workers": {EntitiesPerSecond: 0.4},
		"R.WritesPerSecond has to be at least 1.5 a second for 10 workers":   {WritesPerSecond: 1.4},
		"R.CallsPerSecond has to be at least 0.5 a second for 10 workers":    {CallsPerSecond: 0.4},
	} {
		if err := limit.Validate("R", 10, 10*time.Minute); (err == nil) != (want == "") || err != nil &&
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", limit, err, want)
		}
	}
	if err := (Limit{Ramp: true}).Validate("R", 5000, 10*time.Minute); err == nil {
		t.Error("a ramp that is too slow for its workers")
	}
	if err := (Limit{}).Validate("R", 1e6, 10*time.Minute); err != nil {
		t.Errorf("no limit: %v", err)
	}
	if err := (Limit{EntitiesPerSecond: 0.5 * (1 - 1e-9)}).Validate("R", 10, 10*time.Minute); err != nil {
		t.Errorf("exactly the lowest rate: %v", err)
	}
	slow := Limit{CallsPerSecond: 20}
	if err := slow.Validate("R", 1000, 10*time.Minute); err == nil ||
		!strings.Contains(err.Error(), "at most 400 tasks") || slow.Validate("R", 400, 10*time.Minute) != nil {
		t.Errorf("%v, want the number of workers that is allowed", err)
	}
}

// TestWritesLimited checks which limits apply to writes, and to a page as a whole.
func TestWritesLimited(t *testing.T) {
	for _, c := range []struct {
		limit, pages Limit
		want         bool
	}{
		{Limit{EntitiesPerSecond: 1, CallsPerSecond: 1}, Limit{EntitiesPerSecond: 1}, false},
		{Limit{WritesPerSecond: 1}, Limit{WritesPerSecond: 1}, true},
		{Limit{Ramp: true, CallsPerSecond: 1}, Limit{Ramp: true}, true},
	} {
		if c.limit.WritesLimited() != c.want || c.limit.OfPages() != c.pages {
			t.Errorf("%+v: writes are limited: %v; of pages %+v", c.limit, c.limit.WritesLimited(), c.limit.OfPages())
		}
	}
}

// TestAnyLimit checks pages at extreme rates, whose waits are exactly as long as they may be, or
// much longer. A page must have between 1 and its largest number of entities, and it must take
// between 0 and an hour.
func TestAnyLimit(t *testing.T) {
	rates := []float64{0, math.SmallestNonzeroFloat64, 0.05, 1, 500, 1e18, math.MaxFloat64}
	times := []time.Duration{0, 1, time.Second, 20 * time.Second, time.Hour, math.MaxInt64}
	rng := rand.New(rand.NewPCG(1, 2))
	rate := func() float64 { return rates[rng.IntN(len(rates))] }
	for range 50_000 {
		l := Limit{EntitiesPerSecond: rate(), WritesPerSecond: rate(), Ramp: rng.IntN(2) == 0}
		size, each, since := 1+rng.IntN(1000), rate(), times[rng.IntN(len(times))]
		q, most := Queue{times[rng.IntN(len(times))], rate()}, times[1+rng.IntN(3)]
		n := l.Page(size, each, since, q, most)
		cost := l.Cost(float64(n), float64(n)*each, since)
		if n < 1 || n > size || cost < 0 || cost > time.Hour {
			t.Fatalf("%+v, after %v, %v writes for an entity, %+v, a wait of up to %v: %d of %d entities take %v",
				l, since, each, q, most, n, size, cost)
		}
	}
}
