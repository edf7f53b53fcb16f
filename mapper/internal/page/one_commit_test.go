package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A write is a mutation in an effect that a test makes.
type write struct {
	id      int64
	inserts bool
	on      wire.Condition
}

// effectOf returns an effect with the given writes.
func effectOf(writes ...write) *function.Effect {
	e := new(function.Effect)
	e.Mutations = slices.Grow(e.Mutations, len(writes))[:len(writes)]
	for i, w := range writes {
		m := &e.Mutations[i]
		m.Key, m.Inserts, m.On = keyOf(w.id), w.inserts, w.on
		m.Mutation = datastore.NewUpsert(m.Key, wire.Unsent())
	}
	return e
}

// TestTakes checks which entities a page can't take into its commit. These are entities that the
// page has already written, and entities with a write that depends on a write of the page.
func TestTakes(t *testing.T) {
	wrote := new(sum)
	wrote.add(&result{at: keyspace.At(keyOf(1)), effect: effectOf(write{id: 1}, write{id: 7},
		write{id: 8, inserts: true})})
	version := wire.Condition{Version: 3}
	for _, c := range []struct {
		name string
		s    *sum
		at   int64
		e    *function.Effect
		want bool
	}{
		{"the first one", new(sum), 7, effectOf(write{id: 8, inserts: true}), true},
		{"one that writes nothing", wrote, 2, effectOf(), true},
		{"one that has failed", wrote, 2, nil, true},
		{"one that the page has written", wrote, 7, nil, false},
		{"one that puts the same", wrote, 2, effectOf(write{id: 7}), true},
		{"one that puts the same, with what is sent", wrote, 2,
			effectOf(write{id: 7, on: wire.Condition{Writes: entityOf(7, 1), Free: true}}), true},
		{"one that puts the same over a version", wrote, 2, effectOf(write{id: 7, on: version}), false},
		{"one that puts another over a version", wrote, 2, effectOf(write{id: 9, on: version}), true},
		{"one that inserts the same", wrote, 2, effectOf(write{id: 7, inserts: true}), false},
		{"one that inserts another", wrote, 2, effectOf(write{id: 9, inserts: true}), true},
		{"one that puts what the page inserts", wrote, 2, effectOf(write{id: 8}), false},
		{"one of whose writes is the same", wrote, 2, effectOf(write{id: 9}, write{id: 7, inserts: true}), false},
	} {
		if got := c.s.takes(keyOf(c.at), c.e); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestOwnConditions checks the condition of a write of the page's own entity. It requires the
// version that the page has read, unless the write has another condition.
func TestOwnConditions(t *testing.T) {
	for _, c := range []struct {
		name    string
		on      wire.Condition
		compare bool
		version int64
		relies  string
	}{
		{"a write", wire.Condition{}, true, 2, "1@2"},
		{"a write with what is sent", wire.Condition{Writes: entityOf(1, 5), Free: true}, true, 2, "1@2"},
		{"a write over another version", wire.Condition{Version: 4}, true, 4, "1@4, 1@2 read"},
		{"a write of what was not read", wire.Condition{}, false, 0, ""},
		{"a write over another version of what was not read", wire.Condition{Version: 4}, false, 4, "1@4"},
	} {
		o := new(Results)
		o.add(result{at: keyspace.At(keyOf(1)), read: wire.Stamp{Version: 2}, compare: c.compare,
			effect: effectOf(write{id: 1, on: c.on})})
		if all := o.Mutations(); len(all) != 1 || all[0].Version != c.version || c.compare && all[0].Free {
			t.Errorf("%s: %+v", c.name, all)
		}
		if got := relies(o); got != c.relies {
			t.Errorf("%s relies on %q, want %q", c.name, got, c.relies)
		}
	}
}

// TestCompared checks how many entities a commit reads only to compare them: the entity itself,
// unless it is written, and others that the function has read, each once.
func TestCompared(t *testing.T) {
	seen := []function.Seen{{Key: keyOf(8)}, {Key: keyOf(9), OfPage: true}, {Key: keyOf(8)}}
	for _, c := range []struct {
		name    string
		compare bool
		writes  []write
		want    int
	}{
		{"nothing is written", true, nil, 2}, {"its own entity is written", true, []write{{id: 1}}, 1},
		{"another one is written", true, []write{{id: 7}}, 2},
		{"its own entity was not read", false, []write{{id: 7}}, 1},
	} {
		e := effectOf(c.writes...)
		e.Seen = seen
		o := new(Results)
		o.add(result{at: keyspace.At(keyOf(1)), compare: c.compare, effect: e})
		if o.Compared != c.want {
			t.Errorf("%s: %d, want %d", c.name, o.Compared, c.want)
		}
	}
}

// TestBytesOfAPage checks that a page ends after the entity that fills its commit. The function
// must not run on later entities, except those whose calls overlap. In a Visit, these calls have
// had their effects, so their results must be added.
func TestBytesOfAPage(t *testing.T) {
	for _, c := range []struct {
		atOnce, batch int
		bytes         int // bytes written for each entity
		reached       int
		calls         int64
		mode          function.Mode
	}{
		{1, 0, maxBytes / 2, 2, 2, function.Update}, {1, 0, maxBytes/2 - 1, 3, 3, function.Update},
		{1, 1, maxBytes / 2, 2, 2, function.Update}, {1, 1, maxBytes/2 - 1, 3, 3, function.Update},
		{5, 0, maxBytes / 2, 2, 5, function.Update}, {5, 0, maxBytes/2 - 1, 3, 5, function.Update},
		{1, 0, maxBytes / 2, 2, 2, function.Visit}, {5, 0, maxBytes / 2, 5, 5, function.Visit},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := new(atomic.Int64)
			p := over(kindOf(idsTo(5)...), c.mode, func(*call) error { return nil }, idsTo(5)...)
			p.AtOnce, p.BatchSize = c.atOnce, c.batch
			effect := func() *function.Effect {
				calls.Add(1)
				return &function.Effect{Bytes: c.bytes}
			}
			p.Call = func(context.Context, function.Job, *datastore.Key, *pb.Entity) (*function.Effect, error) {
				return effect(), nil
			}
			p.Batch = func(context.Context, []function.Subject) ([]function.Answer, error) {
				return []function.Answer{{Effect: effect()}}, nil
			}
			o, err := p.Run(t.Context())
			if err != nil || o.Reached != c.reached || calls.Load() != c.calls {
				t.Errorf("%+v: %d reached after %d calls, %v", c, o.Reached, calls.Load(), err)
			}
		})
	}
}

// TestNothingIsFull checks after which results a page must end before its next entity.
func TestNothingIsFull(t *testing.T) {
	late := func(is bool) Late { return func(*Results, int, int) bool { return is } }
	for _, c := range []struct {
		name  string
		o     *Results
		place int
		want  bool
	}{
		{"at its first entity", &Results{Reached: 0, sum: sum{Bytes: maxBytes}}, 0, false},
		{"with little", &Results{Reached: 1, late: late(false), sum: sum{Bytes: maxBytes - 1}}, 1, false},
		{"with as much as it may have", &Results{Reached: 1, sum: sum{Bytes: maxBytes}}, 1, true},
		{"while others wait", &Results{Reached: 1, late: late(true)}, 1, true},
		{"while others wait, and nothing has run", &Results{late: late(true)}, 1, false},
		{"after its time", &Results{Reached: 1, Spent: time.Hour}, 1, true},
		{"before an entity that it has written", &Results{Reached: 1,
			sum: sum{written: map[string]bool{keyOf(2).Encode(): true}}}, 1, true},
	} {
		if got := c.o.full(keyOf(2), c.place, 5, time.Second); got != c.want {
			t.Errorf("a page is full %s: %v", c.name, got)
		}
	}
}

// TestHopeless checks when the function is at fault for a failed batch, and not some entities.
func TestHopeless(t *testing.T) {
	for _, c := range []struct {
		n    narrowing
		page int
		want bool
	}{
		{narrowing{alone: 10}, 10, false}, {narrowing{alone: 11}, 1000, true},
		{narrowing{alone: 11, accepted: true}, 1000, false}, {narrowing{alone: 11, accepted: true}, 200, true},
		{narrowing{alone: 51, accepted: true}, 1000, true}, {narrowing{alone: 50, accepted: true}, 1000, false},
	} {
		if got := c.n.hopeless(c.page); got != c.want {
			t.Errorf("%d alone of a page of %d, some accepted %v: %v", c.n.alone, c.page, c.n.accepted, got)
		}
	}
	n := new(narrowing)
	n.note(make([]*hand, 2), errBad)
	n.note(make([]*hand, 1), errBad)
	if n.alone != 1 || n.accepted {
		t.Errorf("%+v", n)
	}
	if n.note(make([]*hand, 1), nil); n.alone != 1 || !n.accepted {
		t.Errorf("%+v", fmt.Sprint(n.alone, n.accepted))
	}
}

// TestCollectedBytes checks that an entity from which the function has collected something counts
// towards the page's bytes, because the page keeps it in memory.
func TestCollectedBytes(t *testing.T) {
	p := over(kindOf(1, 2), function.Visit, func(*call) error { return nil }, 1, 2)
	p.Call = func(_ context.Context, _ function.Job, key *datastore.Key, _ *pb.Entity) (*function.Effect, error) {
		if key.ID == 2 {
			return &function.Effect{}, nil
		}
		return &function.Effect{Collected: []any{1}, Bytes: 5}, nil
	}
	o, err := p.Run(t.Context())
	if want := 5 + keyspace.EntitySize(entityOf(1, 1)); err != nil || o.Bytes != want {
		t.Errorf("%d bytes, %v, want %d", o.Bytes, err, want)
	}
}

// TestReturned checks that a function can't read any more after it has returned.
func TestReturned(t *testing.T) {
	p := over(kindOf(1, 7), function.Visit, func(*call) error { return nil }, 1)
	h := &hand{r: result{at: p.At[0]}, view: &view{get: p.Others, outcome: new(Results)}}
	p.keep(h, new(function.Effect), nil)
	if _, err := h.view.Look(t.Context(), []*datastore.Key{keyOf(7)}); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}

// TestEmptyPage checks that a page without entities makes one read, because that read may also read
// the range's record.
func TestEmptyPage(t *testing.T) {
	p := over(kindOf(1), function.Visit, func(*call) error { return nil })
	reads := 0
	p.Read = func(at []*keyspace.Position) ([]wire.Stamp, error) { reads++; return nil, nil }
	if o, err := p.Run(t.Context()); err != nil || o.Reached != 0 || reads != 1 {
		t.Errorf("%+v, %v, %d reads", o, err, reads)
	}
}

// TestReads checks how many entities a page reads at a time. The first read must fill a lookup,
// together with the range's record. The time of reads must count as the page's time.
func TestReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := over(kindOf(), function.Visit, func(*call) error { return nil }, idsTo(2*maxRead)...)
		p.Job.PageTime = int64(time.Hour)
		p.Paces.Add(p.Job.Ref(), pace.Throughput{Entities: 1e6, Bytes: 1e6, Spent: time.Second})
		var reads []int
		p.Read = func(at []*keyspace.Position) ([]wire.Stamp, error) {
			reads = append(reads, len(at))
			time.Sleep(time.Second)
			return make([]wire.Stamp, len(at)), nil
		}
		o, err := p.Run(t.Context())
		if err != nil || len(reads) < 2 || reads[0] != maxRead || o.Spent != time.Duration(len(reads))*time.Second {
			t.Errorf("reads of %v, %v are spent, %v", reads, o.Spent, err)
		}
	})
}
