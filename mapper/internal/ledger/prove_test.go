package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A proven is a job that has ended. It has processed the entities 1 to 40 in four ranges of ten
// entities.
type proven struct {
	client *datastore.Client
	store  store.Store
	job    *record.Job
	ranges []*record.Range // the root, then its children
}

func id(n int) *datastore.Key { return datastore.IDKey("K", int64(n), nil) }

func newProven(t *testing.T) *proven {
	t.Helper()
	client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	p := &proven{client: client, store: store.New(client), job: &record.Job{ID: "j", Mapper: "m",
		Query: []byte(`{"kind":"K"}`), State: record.Running}}
	p.job.Incarnate(1)
	var all []*datastore.Mutation
	for i := range 40 {
		all = append(all, datastore.NewInsert(id(i+1), &struct{ N int }{i}))
	}
	root := p.job.RootRange()
	p.ranges = []*record.Range{root}
	for _, from := range []int{31, 21, 11} {
		end := root.End
		root.End = keyspace.At(id(from))
		p.ranges = append(p.ranges, root.Child(split.Piece{Start: root.End, End: end}, time.Now()))
	}
	for i, r := range p.ranges {
		from := []int{1, 31, 21, 11}[i]
		var at []*keyspace.Position
		for n := from; n < from+10; n++ {
			at = append(at, keyspace.At(id(n)))
		}
		r.Entities, r.Processed, r.Keys = 10, 10, record.KeysDigest(at)
		r.Finish(time.Now())
		all = append(all, r.Insert())
	}
	if _, err := client.Mutate(t.Context(), append(all, p.job.Insert())...); err != nil {
		t.Fatal(err)
	}
	sum, err := p.store.Fold(t.Context(), p.job)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.job.Succeed(sum.Totals, time.Now()); err != nil {
		t.Fatal(err)
	}
	p.write(t, p.job.Update())
	return p
}

func (p *proven) write(t *testing.T, m ...*datastore.Mutation) {
	t.Helper()
	if _, err := p.client.Mutate(t.Context(), m...); err != nil {
		t.Fatal(err)
	}
}

// TestOfRecords checks whether the records of a job prove that it has processed all entities, and
// which problems are reported otherwise.
func TestOfRecords(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, p *proven)
		want   []string // a part of each problem's text; none: the records are complete
		err    error
	}{
		{name: "they are whole", damage: func(*testing.T, *proven) {}},
		{name: "one is missing", damage: func(t *testing.T, p *proven) {
			p.write(t, datastore.NewDelete(p.ranges[2].Key()))
		}, want: []string{"is missing", "the ranges", "the ranges"}},
		{name: "one was changed", damage: func(t *testing.T, p *proven) {
			p.ranges[2].Processed = 11
			p.write(t, p.ranges[2].Update())
		}, want: []string{"it adds up to"}},
		{name: "the job has failed: its totals are none", damage: func(t *testing.T, p *proven) {
			p.job.State, p.job.Totals = record.Failed, nil
			p.write(t, p.job.Update())
		}},
		{name: "they were cleaned up", damage: func(t *testing.T, p *proven) {
			p.job.Cleaned = true
			p.write(t, p.job.Update())
		}, err: record.ErrState},
		{name: "the job is gone", damage: func(t *testing.T, p *proven) {
			p.write(t, datastore.NewDelete(record.JobKey("j")))
		}, err: record.ErrNoSuchJob},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProven(t)
				c.damage(t, p)
				_, l, err := ledger.OfRecords(t.Context(), p.store, p.job.Ref())
				if !errors.Is(err, c.err) {
					t.Fatalf("%v, want %v", err, c.err)
				}
				if err != nil {
					return
				}
				if (len(l.Problems) == 0) != (c.want == nil) || len(l.Problems) < len(c.want) {
					t.Fatalf("%q, want %q", l.Problems, c.want)
				}
				if c.name == "one was changed" { // only the seal shows this
					return
				}
				for i, problem := range l.Problems[len(l.Problems)-len(c.want):] {
					if !strings.Contains(problem, c.want[i]) {
						t.Errorf("%q, want %q", problem, c.want[i])
					}
				}
			})
		})
	}
}

// TestOfEntities compares the entities in the database with the entities that the pages had.
func TestOfEntities(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    []*datastore.Mutation
		different []int // the ranges that differ, by the ID of their first entity
	}{
		{name: "nothing has changed"},
		{name: "an entity was changed",
			change: []*datastore.Mutation{datastore.NewUpdate(id(5), &struct{ N int }{500})}},
		{name: "one was deleted", change: []*datastore.Mutation{datastore.NewDelete(id(15))}, different: []int{11}},
		{name: "one was inserted", change: []*datastore.Mutation{datastore.NewInsert(id(99), &struct{ N int }{1})},
			different: []int{31}},
		{name: "one took the place of another", change: []*datastore.Mutation{datastore.NewDelete(id(5)),
			datastore.NewInsert(datastore.IDKey("K", -5, nil), &struct{ N int }{1})}, different: []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProven(t)
				before := time.Now().Truncate(time.Second)
				time.Sleep(time.Minute)
				if len(c.change) > 0 {
					p.write(t, c.change...)
				}
				found, err := ledger.OfEntities(t.Context(), p.store, source.New(p.client, nil), p.job, time.Time{})
				if err != nil || found.Compared != 4 || found.Different != len(c.different) ||
					len(found.Differences) != len(c.different) {
					t.Fatalf("%+v, %v", found, err)
				}
				for i, first := range c.different {
					r := p.ranges[slices.Index([]int{1, 31, 21, 11}, first)]
					if want := r.ID + ", " + keyspace.FromTo(r.Start, r.End) + ":"; !strings.Contains(
						found.Differences[i], want) {
						t.Errorf("%q, want range %s", found.Differences[i], want)
					}
				}
				was, err := ledger.OfEntities(t.Context(), p.store, source.New(p.client, nil), p.job,
					before.Add(time.Second))
				if err != nil || was.Compared != 4 || was.Different != 0 {
					t.Errorf("as it was before: %+v, %v", was, err)
				}
			})
		})
	}
}
