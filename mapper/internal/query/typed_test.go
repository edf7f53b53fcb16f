package query

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestComparisons checks that there is one comparison for each property whose filters have typed
// values.
func TestComparisons(t *testing.T) {
	for _, c := range []struct {
		name    string
		filters []Filter
		want    string // the properties, and whether all filters are inequalities
	}{
		{"none", nil, "[]"},
		{"two of one", []Filter{where("a", ">", int64(1)), where("a", "<", int64(5)), where("b", "=", "x")},
			"[a ranges b]"},
		{"an equality beside an inequality", []Filter{where("a", ">", int64(1)), where("a", "=", int64(5))}, "[a]"},
		{"with null, which is often meant", []Filter{where("a", "=", nil)}, "[]"},
		{"not null, and below a value", []Filter{where("a", ">", nil), where("a", "<", int64(5))}, "[a ranges]"},
		{"any type is meant",
			[]Filter{where("a", ">", int64(1)), {Property: "a", Op: "<", Value: "x", AllowAnyType: true}},
			"[]"},
	} {
		var got []string
		for _, c := range (Query{Kind: "K", Filters: c.filters}).Comparisons() {
			if got = append(got, c.Property); c.Ranges() {
				got = append(got, "ranges")
			}
			if c.Passing(true) == nil || c.Stored(false) == nil || c.Null() == nil {
				t.Errorf("%+v has no queries", c)
			}
		}
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

// TestCheckTypes checks that an error is returned if stored values have another type than the
// values in the query.
func TestCheckTypes(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		f       Filter
		passing any    // a stored value that satisfies the comparison
		want    string // a part of the error for it
		stored  [2]any // the least and the greatest stored value
		wants   string // a part of the error for these
	}{
		{"the same type", where("a", ">", int64(1)), int64(5), "", [2]any{int64(0), int64(9)}, ""},
		{"texts pass as well", where("a", ">", int64(1)), "x", "of the type integer", [2]any{"a", "b"},
			`such a value is 'text' in GQL, and "text" in JSON`},
		{"null passes as well", where("a", "<", int64(1)), nil, "lets null pass as well", [2]any{nil, nil},
			"of the type"},
		{"a time is written as text", where("a", ">", "2026-11-01T12:00:00Z"), noon, `{"time": "2026-11-01T12:00:00Z"}`,
			[2]any{noon, noon}, `{"time": "2026-11-01T12:00:00Z"}`},
		{"an integer for a fraction", where("a", "<", int64(5)), 5.5, `5.0 or {"float": 5}`, [2]any{1.5, 2.5},
			`5.0 or {"float": 5}`},
		{"values of several types, among which it is", where("a", "<", "x"), "y", "", [2]any{int64(1), "z"}, ""},
		{"types on both sides of it", where("a", "<", "x"), "y", "", [2]any{int64(1), 1.5}, ""},
		{"one of some has another type", where("a", "in", []any{int64(1), "x"}), []any{}, "",
			[2]any{int64(1), int64(2)}, "of the type"},
	} {
		all := (Query{Kind: "K", Filters: []Filter{c.f}}).Comparisons()
		if len(all) != 1 {
			t.Fatalf("%s: %d comparisons", c.name, len(all))
		}
		check := func(err error, want string) {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
		if c.f.Op != "in" {
			check(all[0].CheckPassing(c.passing), c.want)
		}
		check(all[0].CheckStored(c.stored[0], c.stored[1]), c.wants)
	}
}

// TestValueOf checks that ValueOf returns the value by which the database has found an entity.
func TestValueOf(t *testing.T) {
	c := (Query{Kind: "K", Filters: []Filter{where("a", ">", int64(3)), where("a", "<", int64(8))}}).Comparisons()[0]
	list := entity(t, "a", []any{int64(9), int64(5), nil, int64(4), int64(1)})
	for _, of := range []struct {
		passes, greatest bool
		want             any
	}{
		{true, false, int64(4)}, {true, true, int64(5)}, {false, false, int64(1)}, {false, true, int64(9)},
	} {
		if got, ok := c.ValueOf(list, of.passes, of.greatest); !ok || got != of.want {
			t.Errorf("passes %v, greatest %v: %v, want %v", of.passes, of.greatest, got, of.want)
		}
	}
	if got, ok := c.ValueOf(entity(t, "a", nil), false, false); ok {
		t.Errorf("of null: %v", got)
	}
}
