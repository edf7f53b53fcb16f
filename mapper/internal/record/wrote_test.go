package record

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
)

// keysOfAllSorts are keys with IDs, names, parents and namespaces.
func keysOfAllSorts() []*datastore.Key {
	parent := datastore.NameKey("P", "i7", nil)
	spaced := datastore.NameKey("K", "n", nil)
	spaced.Namespace = "tenant"
	return []*datastore.Key{
		datastore.IDKey("K", 7, nil), datastore.NameKey("K", "x", nil), datastore.NameKey("K", "i", parent), spaced,
		datastore.IDKey("K", -1, parent),
	}
}

// TestWroteAgain stores what a page has written, and reads it again.
func TestWroteAgain(t *testing.T) {
	all := keysOfAllSorts()
	w := &Wrote{
		Own: KeysOf(all, true), Written: 5, Gone: KeysOf(all[:2], false), Fresh: KeysOf(all[1:3], false),
		Settled: time.UnixMicro(1e15), Others: all, Lost: 3,
	}
	got, err := DecodeWrote(w.Encode())
	if err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("%+v, %v, want %+v", got, err, w)
	}
	if !got.Own.Has(all[0]) || got.Gone.Has(all[2]) || !got.Gone.Has(all[1]) ||
		got.Fresh.Has(all[0]) || !got.Fresh.Has(all[2]) {
		t.Errorf("other keys: %+v", got)
	}
	if none := KeysOf(nil, true); none.Any() || !KeysOf(all[:1], false).Any() || !got.Own.Any() {
		t.Errorf("%+v", none)
	}
	if got, err := DecodeWrote(nil); got != nil || err != nil {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
}

// long returns so many keys, whose names can't be compressed.
func long(n int) (all []*datastore.Key) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range n {
		var name strings.Builder
		for range 60 {
			fmt.Fprintf(&name, "%x", rng.Uint32())
		}
		all = append(all, datastore.NameKey("K", name.String(), nil))
	}
	return all
}

// TestNoRoom counts the keys that a record has no room for, and keeps the others.
func TestNoRoom(t *testing.T) {
	all := long(2000)
	w := &Wrote{Others: all, Lost: 1}
	stored := w.Encode()
	got, err := DecodeWrote(stored)
	if err != nil || len(stored) > maxKeys || len(got.Others) == 0 || len(got.Others)+int(got.Lost) != len(all)+1 {
		t.Fatalf("%d bytes, %d others and %d lost, %v", len(stored), len(got.Others), got.Lost, err)
	}
	var r Range
	r.Job = "j"
	left := make([]Left, len(all))
	for i, key := range all {
		left[i] = Left{Key: key, Why: "it was changed since"}
	}
	Leave(&r, left)
	some, lost, err := AllLeft(&r)
	if err != nil || len(r.Left) > maxKeys || len(some) == 0 || len(some)+int(lost) != len(all) || r.LeftOf != "j" {
		t.Fatalf("%d bytes, %d left and %d lost, %v", len(r.Left), len(some), lost, err)
	}
	if !some[0].Key.Equal(all[0]) || some[0].Why != left[0].Why {
		t.Errorf("%+v, want %+v", some[0], left[0])
	}
}

// TestLeftAgain stores what an undo has left, and reads it again: nothing, an entity, and a reason
// without one.
func TestLeftAgain(t *testing.T) {
	var r Range
	if Leave(&r, nil); r.Left != nil || r.LeftOf != "" {
		t.Errorf("of nothing: %+v", r)
	}
	r.Job = "j"
	want := []Left{{keysOfAllSorts()[3], "it was deleted since"}, {nil, "there was no room"}}
	Leave(&r, want)
	if got, lost, err := AllLeft(&r); err != nil || lost != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %d, %v, want %+v", got, lost, err, want)
	}
}

// TestDamagedKeys refuses stored keys that are none, wherever they are.
func TestDamagedKeys(t *testing.T) {
	for _, path := range []string{
		`["", "K"]`, `["", "K", "n"]`, `["", "K", "i"]`, `["", "K", ""]`, `["", "K", "x7"]`, `["", "K", "i7x"]`,
		`["", "K", "n1", "L"]`,
		`["", "K", "i99999999999999999999"]`, `["", "K", "n1", "L", "7"]`,
	} {
		if got, err := DecodeWrote([]byte(`{"others": [` + path + `]}`)); err == nil {
			t.Errorf("%s: %v", path, got.Others)
		}
		if got, _, err := AllLeft(&Range{Left: []byte(`{"all": [{"key": ` + path + `, "why": "w"}]}`)}); err == nil {
			t.Errorf("%s: %v", path, got)
		}
	}
	for _, text := range []string{`{"all": 7}`, `{`, "\x1f\x8b"} {
		if got, _, err := AllLeft(&Range{Left: []byte(text)}); err == nil {
			t.Errorf("%q: %v", text, got)
		}
		if got, err := DecodeWrote([]byte(strings.Replace(text, "all", "others", 1))); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestDamagedSettings says which part of a job's record can't be read.
func TestDamagedSettings(t *testing.T) {
	bad := []byte("{")
	j := &Job{ID: "j", Budget: bad, Rate: bad, Splitting: bad, History: bad, Totals: bad}
	_, budget := BudgetOf(j)
	_, rate := j.RateLimit()
	_, strategy := j.Strategy()
	_, history := j.History.Acts()
	_, totals := j.RecordedTotals()
	_, examples := ExamplesOf([]*Range{{Examples: bad}})
	for what, err := range map[string]error{
		"budget": budget, "rate": rate, "splitting": strategy, "history": history, "totals": totals,
		"examples": examples,
	} {
		if err == nil {
			t.Errorf("the %s can be read", what)
		}
	}
}

// TestSpend takes no more out of a budget than there is, and pauses the job only if there is less
// than it needs.
func TestSpend(t *testing.T) {
	for _, test := range []struct {
		state      JobState
		spent      float64
		need, want float64
		got        float64
		pauses     bool
	}{
		{Running, 0, 0.25, 0.25, 0.25, false},
		{Running, 0, 0.01, 1, 0.9375 / 8, false},       // an eighth of what is left besides what is around
		{Running, 0.75, 0.25, 0.25, 0.25, false},       // all that is left
		{Running, 0.75, 0.375, 0.375, 0, true},         // more than that
		{Running, 0, 0.9375, 0.9375, 0.9375, false},    // all but what is around
		{Running, 0, 0.953125, 0.953125, 0, true},      // that, too
		{Paused, 0.75, 0.25, 0.25, 0, false},           // it does not run
		{Paused, 0.75, 0.375, 0.375, 0, false},         // nor would it be paused again
		{Running, 0.5, 0.03125, 0.0625, 0.0625, false}, // what is wanted
	} {
		j := &Job{State: test.state, Spent: test.spent}
		if got := Spend(j, 0.0625, test.need, test.want); got != test.got {
			t.Errorf("%+v: it takes %v", test, got)
		}
		j = &Job{State: test.state, Spent: test.spent}
		changed := PauseByBudget(j, 0.0625, test.need, Budget{Dollars: 1})
		if changed != test.pauses || changed != j.Poor || changed && j.State != Paused {
			t.Errorf("%+v: it is %s, %v", test, j.State, changed)
		}
	}
}
