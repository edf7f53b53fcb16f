package keyspace

import (
	"fmt"
	"math"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
)

// TestLexicographic cuts the key space between two keys into four parts, as if IDs were spread
// evenly up to the largest one.
func TestLexicographic(t *testing.T) {
	id := func(n int64) *Position { return At(datastore.IDKey("K", n, nil)) }
	name := func(s string) *Position { return At(named("", "K", s, nil)) }
	for _, c := range []struct {
		name     string
		from, to *Position
		want     string
	}{
		{"ids", id(1), id(401), "[/K,101 /K,201 /K,301]"},
		{"few ids", id(1), id(3), "[/K,2]"},
		{"names", name("a"), name("e"), `[/K,"b" /K,"c" /K,"d"]`},
		{"ids and names: the names have the upper half", id(1), name("\x00"),
			fmt.Sprintf("[/K,%d /K,%d /K,%d]", int64(math.MaxInt64/4)+1, int64(math.MaxInt64/2)+1,
				int64(math.MaxInt64/4*3)+2)},
		{"nothing is between them", id(1), id(2), "[]"},
	} {
		got := Lexicographic(c.from, c.to, 4)
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

// TestMiddle checks the middle of two positions. It lies between their values, or between the keys
// of their common value.
func TestMiddle(t *testing.T) {
	at := func(v any, id int64) *Position {
		p := &Position{Kind: "K", Valued: true, Value: v}
		if id != 0 {
			p.Key = datastore.IDKey("K", id, nil)
		}
		return p
	}
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		a, b *Position
		want string
	}{
		{"numbers", at(int64(10), 0), at(int64(20), 0), "15 of /K"},
		{"times", at(noon, 0), at(noon.Add(2*time.Hour), 0), `DATETIME("2026-11-01T13:00:00Z") of /K`},
		{"one value: its keys", at(int64(7), 10), at(int64(7), 20), "7 of /K,15"},
		{"the next value, of which some keys are before the end", at(int64(7), 10), at(int64(8), 20), "8 of /K"},
		{"the next value, of which none is: keys of the first one", at(int64(7), 10), at(int64(8), 0), "7 of /K,20"},
		{"no end: twice a number", at(int64(100), 0), nil, "200 of /K"},
		{"no end: 50 years more", at(noon, 0), nil, `DATETIME("2076-11-01T12:00:00Z") of /K`},
		{"no end: twice a fraction", at(2.5, 0), nil, "5.0 of /K"},
		{"no end, and nothing is above", at(math.Inf(1), 0), nil, "no position"},
		{"the end is in another kind", at(int64(100), 0), &Position{Kind: "L"}, "200 of /K"},
		{"keys alone", At(datastore.IDKey("K", 1, nil)), At(datastore.IDKey("K", 9, nil)), "/K,5"},
		{"keys without an end", At(datastore.IDKey("K", 50, nil)), nil, "/K,100"},
	} {
		if got := Middle(c.a, c.b).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
