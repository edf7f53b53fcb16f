package pace

import (
	"math"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
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
	} {
		if entities, writes := test.limit.at(test.since); entities != test.entities || writes != test.writes {
			t.Errorf("%+v after %v: %v, %v", test.limit, test.since, entities, writes)
		}
	}
}

// TestSpacing has ten workers, each with its tenth of the rate.
func TestSpacing(t *testing.T) {
	for _, test := range []struct {
		limit Limit
		n     int
		each  float64 // writes for an entity
		want  time.Duration
	}{
		{Limit{}, 500, 1, 0},
		{Limit{EntitiesPerSecond: 100}, 100, 1, 10 * time.Second},
		{Limit{WritesPerSecond: 100}, 98, 1, 10 * time.Second},                       // with those of records
		{Limit{EntitiesPerSecond: 100, WritesPerSecond: 40}, 10, 0, time.Second},     // the entities
		{Limit{EntitiesPerSecond: 1000, WritesPerSecond: 4}, 10, 0, 5 * time.Second}, // the records
		{Limit{EntitiesPerSecond: 0.001}, 1000, 0, time.Hour},
	} {
		if d := test.limit.Spacing(test.n, test.each, 10, 0); d != test.want {
			t.Errorf("%+v, %d entities of %v writes: %v, want %v", test.limit, test.n, test.each, d, test.want)
		}
		if size := test.limit.Page(1000, test.each, 10, 0, test.want); test.want > 0 && test.want < time.Hour &&
			size != test.n && test.limit.Spacing(size, test.each, 10, 0) > test.want {
			t.Errorf("%+v: a page of %d in %v", test.limit, size, test.want)
		}
	}
	if size := (Limit{EntitiesPerSecond: 0.001}).Page(1000, 1, 10, 0, time.Second); size != 1 {
		t.Errorf("a page of %d", size)
	}
}

func TestLimitTakes(t *testing.T) {
	for _, test := range []struct {
		limit            Limit
		entities, writes float64
		want             time.Duration
	}{
		{Limit{}, 1e9, 1e9, 0},
		{Limit{EntitiesPerSecond: 10}, 1000, 0, 100 * time.Second},
		{Limit{EntitiesPerSecond: 10, WritesPerSecond: 5}, 1000, 1000, 200 * time.Second},
		{Limit{Ramp: true}, 150_000, 0, 5 * time.Minute},
		{Limit{Ramp: true}, 375_000, 0, 10 * time.Minute},
		{Limit{EntitiesPerSecond: 1e-12}, 1e12, 0, MaxTakes},
	} {
		if d := test.limit.Takes(test.entities, test.writes); d != test.want {
			t.Errorf("%+v, %v entities, %v writes: %v, want %v", test.limit, test.entities, test.writes, d, test.want)
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
	} {
		if err := limit.Validate("R", 10, 10*time.Minute); (err == nil) != (want == "") || err != nil &&
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", limit, err, want)
		}
	}
	if err := (Limit{Ramp: true}).Validate("R", 5000, 10*time.Minute); err == nil {
		t.Error("a ramp that is too slow for its workers")
	}
}
