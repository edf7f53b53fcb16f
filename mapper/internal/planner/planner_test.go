package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

type thing struct{ N int64 }

// kindIn puts n entities with the IDs 1 to n into a database, in the given kind and namespace.
func kindIn(t *testing.T, client *datastore.Client, space keyspace.Space, n int64) {
	t.Helper()
	for from := int64(1); from <= n; from += 400 {
		var keys []*datastore.Key
		var all []thing
		for id := from; id <= min(n, from+399); id++ {
			key := datastore.IDKey(space.Kind, id, nil)
			key.Namespace = space.Namespace
			keys, all = append(keys, key), append(all, thing{id})
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

func at(id int64) *keyspace.Position { return keyspace.At(datastore.IDKey("K", id, nil)) }

// where describes a position as a text: its ID and namespace. If the position has no key, it
// describes the kind and namespace that start there.
func where(p *keyspace.Position) string {
	switch {
	case p == nil:
		return ""
	case p.Key == nil:
		return strings.TrimSuffix(p.Namespace+"/"+p.Kind, "\x00")
	case p.Key.Namespace != "" || p.Key.Kind != "K":
		return fmt.Sprintf("%s/%s %d", p.Key.Namespace, p.Key.Kind, p.Key.ID)
	}
	return fmt.Sprint(p.Key.ID)
}

// said describes a plan as a text: its page, the next entity, and where the range is cut. It waits
// until the boundaries are found.
func said(p Plan) string {
	text := "nothing"
	if n := len(p.At); n > 0 {
		text = where(p.At[0]) + " to " + where(p.At[n-1])
	}
	if p.Next != nil {
		text += ", next " + where(p.Next)
	}
	if p.Pieces == nil {
		return text
	}
	p.Progress(nil)(worthSeeking, false)
	pieces, err := p.Pieces()
	if err != nil {
		return text + ", " + err.Error()
	}
	if p.First {
		text += ", first"
	}
	text += " cut into"
	for _, s := range pieces {
		text += fmt.Sprintf(" [%s,%s)", where(s.Start), where(s.End))
	}
	return text
}

// plannerOf returns the planner of a job with pages of 10 entities.
func plannerOf(client *datastore.Client, q query.Query, workers int64) *Planner {
	p := &Planner{Paces: new(pace.Book[record.Ref]), Source: source.New(client, nil), Query: q,
		Mode: function.Update}
	p.job = &record.Job{ID: "j", PageSize: 10, Workers: workers}
	return p
}

// withKind runs a test in a synctest bubble, with a database whose kind K has entities with the IDs
// 1 to n.
func withKind(t *testing.T, n int64, test func(t *testing.T, client *datastore.Client)) {
	synctest.Test(t, func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		kindIn(t, client, keyspace.Space{Kind: "K"}, n)
		test(t, client)
	})
}

// TestPlan checks the plans for ranges of a kind with the IDs 1 to 100, in pages of 10.
func TestPlan(t *testing.T) {
	none := func(*Planner) {}
	fixed := func(first, fanOut int, bisect bool) func(*Planner) {
		return func(p *Planner) { p.Strategy = split.Strategy{First: first, FanOut: fanOut, Bisect: bisect} }
	}
	root := record.RangeID(record.Ref{ID: "j"}.String(), 0)
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		for _, c := range []struct {
			name string
			r    record.Range
			with func(p *Planner)
			want string
		}{
			{"a page, and more", record.Range{Start: at(1), End: at(31)}, none, "1 to 10, next 11"},
			{"less than a page", record.Range{Start: at(1), End: at(8)}, none, "1 to 7"},
			{"exactly a page", record.Range{Start: at(1), End: at(11)}, none, "1 to 10"},
			{"nothing", record.Range{Start: at(200)}, none, "nothing"},
			{"one entity that has failed: whether it is there is not asked", record.Range{Start: at(200), Alone: true},
				none, "200 to 200"},
			{"a small page, evenly", record.Range{Start: at(1), End: at(7), PageSize: 5, Estimate: 6}, none, "1 to 6"},
			{"all of the kind, for one worker", record.Range{}, none, "1 to 10, next 11"},
			{"for one worker, and it is known how many", record.Range{Estimate: 100, Exact: true}, none,
				"1 to 10, next 11"},
			{"for two, who count them", record.Range{Workers: 2}, none,
				"1 to 10, next 11, first cut into [,51) [51,)"},
			{"for two, and it is known how many", record.Range{Workers: 2, Estimate: 100, Exact: true}, none,
				"1 to 10, next 11, first cut into [,51) [51,)"},
			{"for five", record.Range{Workers: 5, Estimate: 100, Exact: true}, none,
				"1 to 10, next 11, first cut into [,21) [21,41) [41,61) [61,81) [81,)"},
			{"a page for five is not cut", record.Range{Start: at(1), End: at(11), Workers: 5}, none, "1 to 10"},
			{"for five, and it was found not to be worth it", record.Range{Workers: 5, Estimate: 100, Exact: true},
				func(p *Planner) { p.whole = "r" }, "1 to 10, next 11"},
			{"the root, for five", record.Range{ID: root}, func(p *Planner) { p.job.Workers = 5 },
				"1 to 10, next 11, first cut into [,21) [21,41) [41,61) [61,81) [81,)"},
			{"the root that was cut already", record.Range{ID: root, Cut: true},
				func(p *Planner) { p.job.Workers = 5 }, "1 to 10, next 11"},
			{"a range that has to be surveyed", record.Range{Resample: true, Workers: 5},
				func(p *Planner) { p.job.Workers = 5 },
				"1 to 10, next 11, first cut into [,21) [21,41) [41,61) [61,81) [81,)"},
			{"a suspected page, halved: what is behind a page of the usual size is not suspected",
				record.Range{Suspicion: record.Suspicion{Solo: true}, Narrowed: 2}, none,
				"1 to 2, next 3, first cut into [,11) [11,)"},
			{"a suspected page of what is left", record.Range{Start: at(95), Suspicion: record.Suspicion{Solo: true},
				Narrowed: 2}, none, "95 to 96, next 97"},
			{"as shards of another mapper", record.Range{}, fixed(4, 1, false), "1 to 10, next 11"},
			{"as a bisecting mapper", record.Range{}, fixed(1, 2, true),
				"1 to 10, next 11 cut into [,11) [11,22) [22,)"},
			{"two entities a second: one at a time, as no page waits", record.Range{},
				func(p *Planner) { p.job.Rate = []byte(`{"entities":2}`) }, "1 to 1, next 2"},
		} {
			p, r := plannerOf(client, query.Query{Kind: "K"}, 1), c.r
			if c.with(p); r.ID == "" {
				r.ID = "r"
			}
			if r.Workers = max(1, r.Workers); r.PageSize == 0 {
				r.PageSize = 10
			}
			plan, err := p.Plan(t.Context(), p.job, &r)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if got := said(plan); got != c.want {
				t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
			}
			p.Close()
		}
	})
}

// TestSeek checks that the search for boundaries starts only after the function has run for
// worthSeeking.
func TestSeek(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		for ran, want := range map[time.Duration]int{worthSeeking - 1: 0, worthSeeking: 3} {
			p := plannerOf(client, query.Query{Kind: "K"}, 1)
			plan := Plan{Next: at(11)}
			p.record, p.local = &record.Range{ID: "r", PageSize: 10}, p.Query
			p.later(t.Context(), &plan, split.CutPlan{Pieces: 3, Keep: 10}, split.Piece{Estimate: 100, Exact: true,
				Workers: 3}, split.Task{Page: 10}, func(int64, bool) source.Prefix { return source.Prefix{} })
			nearly := 0
			progress := plan.Progress(func() { nearly++ })
			progress(ran, false)
			progress(ran, true)
			if nearly != 1 {
				t.Errorf("three quarters of the page were told %d times", nearly)
			}
			if pieces, err := plan.Pieces(); err != nil || (len(pieces) > 0) != (want > 0) ||
				p.unsought != (want == 0) {
				t.Errorf("after %v: %d pieces, %v, unsought %v", ran, len(pieces), err, p.unsought)
			}
		}
	})
}

// TestGoOn plans all pages of a range of 35 entities, in pages of 10. Meanwhile, parts of the range
// are given to other tasks.
func TestGoOn(t *testing.T) {
	for _, whole := range []bool{false, true} {
		withKind(t, 100, func(t *testing.T, client *datastore.Client) {
			p := plannerOf(client, query.Query{Kind: "K"}, 1)
			defer p.Close()
			if whole {
				p.Paces.Expect(p.job.Ref(), 100) // so the stream reads whole entities
			}
			r := &record.Range{ID: "r", PageSize: 10, Start: at(1), End: at(36), Workers: 1}
			var all []string
			for range 4 {
				plan, err := p.Plan(t.Context(), p.job, r)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, said(plan))
				stamps, err := p.ReaderAhead(t.Context())(plan.At)
				if err != nil || len(stamps) != len(plan.At) || stamps[0].Entity.Properties["N"].GetIntegerValue() !=
					plan.At[0].Key.ID {
					t.Fatalf("read %d entities, %v", len(stamps), err)
				}
				if plan.Next == nil {
					break
				}
				if readOn := p.ReadOn(); (readOn != nil) != whole {
					t.Errorf("the next entities are read ahead: %v", readOn != nil)
				} else if whole {
					readOn()
				}
				r = &record.Range{ID: r.ID + "+", PageSize: 10, Start: plan.Next, End: r.End, Workers: 1}
				if plan.Next.Key.ID == 21 {
					r.End = at(24) // the rest was given away to another task
				}
				p.GoOn(p.job, r)
			}
			if want := []string{"1 to 10, next 11", "11 to 20, next 21", "21 to 23"}; !slices.Equal(all, want) {
				t.Errorf("%q, want %q", all, want)
			}
			if p.Forget(); (p.keys == nil) != whole {
				t.Errorf("what was read is forgotten: %v, of whole entities: %v", p.keys == nil, whole)
			}
		})
	}
}

// TestOrder checks that positions out of order, or outside of the range, cause an error.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		found []*keyspace.Position
		want  error
	}{
		{"in order", []*keyspace.Position{at(10), at(11), at(29)}, nil},
		{"before the range", []*keyspace.Position{at(9)}, source.ErrOrder},
		{"behind it", []*keyspace.Position{at(30)}, source.ErrOrder},
		{"twice", []*keyspace.Position{at(10), at(10)}, source.ErrOrder},
		{"back", []*keyspace.Position{at(12), at(11)}, source.ErrOrder},
	} {
		p := plannerOf(nil, query.Query{Kind: "K"}, 1)
		p.record, p.keys = &record.Range{ID: "r", Start: at(10), End: at(30)}, &source.Stream{End: at(30)}
		if _, err := p.ahead(c.found, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	p := plannerOf(nil, query.Query{Kind: "K"}, 1)
	p.record = &record.Range{ID: "r", Start: at(10)}
	p.keys = source.NewStream(t.Context(), p.Source, p.Query, at(10), nil, false)
	if _, err := p.ahead(nil, context.Canceled); !errors.Is(err, context.Canceled) || p.keys != nil {
		t.Errorf("%v: a stream that has failed stays: %v", err, p.keys != nil)
	}
}

// TestReader checks which entities a mapper's function gets. If the job reads only keys, it gets
// none.
func TestReader(t *testing.T) {
	for keysOnly, want := range map[bool]int{true: 0, false: 1} {
		p := plannerOf(nil, query.Query{Kind: "K", KeysOnly: keysOnly}, 1)
		looked := 0
		got, err := p.Reader(func(keys []*datastore.Key, _ ...any) ([]wire.Stamp, error) {
			looked++
			return make([]wire.Stamp, len(keys)), nil
		})([]*keyspace.Position{at(1), at(2)})
		if err != nil || len(got) != 2 || looked != want {
			t.Errorf("keys only %v: %d lookups, %d results, %v", keysOnly, looked, len(got), err)
		}
	}
}

// TestFew reads a page of a range whose rest other tasks will process. The stream must read no
// further entities.
func TestFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em := emulator.ForTest(t, nil)
		client, err := em.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for range 2 {
			if _, err := client.PutMulti(t.Context(), slices.Repeat([]*datastore.Key{datastore.IncompleteKey("K", nil)},
				500), make([]struct{ N int }, 500)); err != nil {
				t.Fatal(err)
			}
		}
		var paces pace.Book[record.Ref]
		paces.Expect(record.Ref{ID: "job"}, 100)
		for workers, want := range map[int64]int64{1: query.Batch, 4: 51} {
			p := &Planner{Paces: &paces, Source: source.New(client, nil), Mode: function.Visit,
				Query: query.Query{Kind: "K"}}
			p.job, p.record = &record.Job{ID: "job", PageSize: 50}, &record.Range{PageSize: 50, Workers: workers}
			s := p.stream(t.Context())
			before := em.Usage()
			if found, err := s.Peek(51); err != nil || len(found) != 51 {
				t.Fatalf("%d, %v", len(found), err)
			}
			if reads := em.Usage().Sub(before).Reads; reads < want || reads > want+1 { // a query costs one read
				t.Errorf("%d reads of a range for %d workers, want %d", reads, workers, want)
			}
			if found, err := s.Peek(2000); err != nil || len(found) != 1000 {
				t.Errorf("%d of 1000 found, %v", len(found), err)
			}
			s.Close()
		}
	})
}
