package undo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

type thing struct{ N int64 }

// A to maps IDs of entities to new values of their property N.
type to = map[int64]int64

func keyOf(id int64) *datastore.Key { return datastore.IDKey("K", id, nil) }

// A world is a database with a job over the kind K. Its ranges have 10 IDs each: [1, 10), [10, 20)
// and so on. The keys of the first five ranges' records are in the same order. Other clients write,
// too. Each write comes a second after the one before.
type world struct {
	*testing.T
	client *datastore.Client
	job    *record.Job
	undo   *record.Job
	ranges []*record.Range
	parts  []*record.Range // the ranges of the undo

	off     [2]time.Duration      // how far the clocks are ahead that record the job's start and its end
	between func()                // called after a page's reads and before its commit; nil: nothing happens
	with    []*datastore.Mutation // further mutations in the next page's commit
	wrote   func(*undolog.Wrote)  // changes what the next page's record says; nil: no change
	lost    int64                 // number of entities that do not fit in the record of the undo's next page
	most    atomic.Int64

	mu   sync.Mutex
	tap  tap // the tap of the client's calls; nil: none
	made int // number of calls of the client
}

// A tap is an interceptor of Datastore calls. It may call pass to make the call, and may change the
// request or the answer.
type tap func(req, resp any, pass func() error) error

// taps sets the tap for the following calls.
func (w *world) taps(tap tap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tap = tap
}

// readTime returns the time of the past state that a request reads. It returns zero if the request
// reads no past state.
func readTime(req any) time.Time {
	if begin, ok := req.(*pb.BeginTransactionRequest); ok {
		if at := begin.GetTransactionOptions().GetReadOnly().GetReadTime(); at != nil {
			return at.AsTime()
		}
	}
	return time.Time{}
}

// calls returns the number of Datastore calls that f makes.
func (w *world) calls(f func()) int {
	w.mu.Lock()
	before := w.made
	w.mu.Unlock()
	f()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made - before
}

func (w *world) intercept(
	ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	w.mu.Lock()
	w.made++
	tap := w.tap
	w.mu.Unlock()
	pass := func() error { return invoke(ctx, method, req, resp, conn, opts...) }
	if tap == nil {
		return pass()
	}
	return tap(req, resp, pass)
}

// inWorld runs a test in a synctest bubble, in a world with the entities of the given IDs. N of
// each entity is its ID.
func inWorld(t *testing.T, ranges int64, ids []int64, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		var err error
		w.client, err = emulator.ForTest(t, &emulator.Options{PointInTimeRecovery: true}).DatastoreClient(t.Context(),
			"test", option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(w.intercept)))
		if err != nil {
			t.Fatal(err)
		}
		defer w.client.Close()
		now := map[int64]int64{}
		for _, id := range ids {
			now[id] = id
		}
		w.somebody(now)
		time.Sleep(time.Hour)
		w.job = &record.Job{ID: "j", Incarnation: "0123456789abcdef0000005c", Mapper: "m", State: record.Running,
			Query: []byte(`{"kind":"K"}`), Params: []byte(`{}`), Created: time.Now()}
		w.undo = &record.Job{ID: "undo-j", Incarnation: "76543210fedcba9876543210", Mapper: Name("m"),
			State: record.Running}
		for n := range ranges {
			id := record.RangeID(w.job.Root(), n)
			if n == 0 {
				id = w.job.Root()
			}
			w.ranges = append(w.ranges, &record.Range{Job: "j", Incarnation: w.job.Incarnation, ID: id,
				State: record.Pending, Open: "j", Start: keyspace.At(keyOf(max(1, 10*n))),
				End: keyspace.At(keyOf(10 * (n + 1)))})
		}
		w.commit(func(tx *datastore.Transaction) error {
			all := []*datastore.Mutation{w.job.Insert(), w.undo.Insert()}
			for _, r := range w.ranges {
				all = append(all, r.Insert())
			}
			_, err := tx.Mutate(all...)
			return err
		})
		test(w)
	})
}

// restart replaces the record of the job, or of the undo, by a new one, as if it started now.
func (w *world) restart(job *record.Job) {
	w.Helper()
	w.commit(func(tx *datastore.Transaction) error { return tx.Delete(record.JobKey(job.ID)) })
	job.Created = time.Now().Add(w.off[0])
	w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(job.Insert()); return err })
}

func (w *world) commit(f func(tx *datastore.Transaction) error) {
	w.Helper()
	time.Sleep(time.Second)
	if _, err := w.client.RunInTransaction(w.Context(), f); err != nil {
		w.Fatal(err)
	}
}

// gone stands for a deletion in a to.
const gone = -1

// changes returns mutations that set the property N of entities.
func changes(to map[int64]int64) (all []*datastore.Mutation) {
	for _, id := range slices.Sorted(maps.Keys(to)) {
		if to[id] == gone {
			all = append(all, datastore.NewDelete(keyOf(id)))
		} else {
			all = append(all, datastore.NewUpsert(keyOf(id), &thing{to[id]}))
		}
	}
	return all
}

// somebody writes entities outside of the job, as another client does.
func (w *world) somebody(to map[int64]int64) {
	w.Helper()
	w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(changes(to)...); return err })
}

// page processes the page of range n: it changes entities, and ends the range.
func (w *world) page(n int, to map[int64]int64) {
	w.Helper()
	r := w.ranges[n]
	wrote := undolog.Wrote{Settled: time.Now().Add(-2 * time.Minute)}
	var found []*keyspace.Position
	all, err := w.client.GetAll(w.Context(), datastore.NewQuery("K").KeysOnly(), nil)
	if err != nil {
		w.Fatal(err)
	}
	var own, deleted []*datastore.Key
	contains := func(key *datastore.Key) bool {
		return r.Alone && key.Equal(r.Start.Key) || !r.Alone && r.Contains(keyspace.At(key))
	}
	for _, key := range all {
		if contains(key) {
			found = append(found, keyspace.At(key))
		}
	}
	if r.Alone {
		found = []*keyspace.Position{r.Start}
	}
	for _, id := range slices.Sorted(maps.Keys(to)) {
		switch key := keyOf(id); {
		case !contains(key):
			wrote.Others = append(wrote.Others, key)
		case to[id] == gone:
			deleted = append(deleted, key)
			fallthrough
		default:
			own = append(own, key)
		}
	}
	wrote.Own, wrote.Gone = undolog.KeysOf(own, len(own) == len(found)),
		undolog.KeysOf(deleted, len(deleted) == len(own))
	wrote.Written = int64(len(own))
	if w.wrote != nil {
		w.wrote(&wrote)
		w.wrote = nil
	}
	if w.between != nil {
		w.between()
		w.between = nil
	}
	r.State, r.Open, r.Wrote, r.Entities, r.Keys = record.Done, "", wrote.Encode(), int64(len(found)),
		record.KeysDigest(found)
	w.commit(func(tx *datastore.Transaction) error {
		_, err := tx.Mutate(slices.Concat(changes(to), w.with, []*datastore.Mutation{r.Update()})...)
		return err
	})
	w.with = nil
}

// another returns a new range of the job.
func (w *world) another(n int) *record.Range {
	return &record.Range{Job: "j", Incarnation: w.job.Incarnation, ID: record.RangeID(w.job.Root(), int64(n)),
		State: record.Pending, Open: "j"}
}

func (w *world) end() {
	if w.job.Ended = time.Now().Add(w.off[1]); w.job.State == record.Running {
		w.job.State = record.Succeeded
	}
	w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.job.Update()); return err })
}

// function returns the function of the undo. If the undo has not started, function starts it.
func (w *world) function() function.Func {
	w.Helper()
	if w.undo.Created.IsZero() {
		tap := w.tap
		w.taps(nil)
		w.begin()
		w.taps(tap)
	}
	params, err := json.Marshal(Of(w.job))
	if err != nil {
		w.Fatal(err)
	}
	m := Mapper(&function.Definition{Name: "m"}, w.client, nil, &w.most)
	if canonical, err := m.Canonical(params); err != nil || string(canonical) != string(params) {
		w.Fatalf("the parameters %s are %s, %v", params, canonical, err)
	}
	call, err := m.Prepare(params, true)
	if err != nil {
		w.Fatal(err)
	}
	return call
}

func (w *world) undoer() undoer {
	w.Helper()
	u := undoer{client: w.client, source: source.New(w.client, nil), params: Of(w.job), most: together,
		history: newHistory(), undoes: newHistory()}
	if err := json.Unmarshal(w.job.Query, &u.query); err != nil {
		w.Fatal(err)
	}
	return u
}

// says describes the effect of an undo's page: which state each entity gets, and which entities
// stay.
func says(e *function.Effect) string {
	var all []string
	for _, m := range e.Mutations {
		what := fmt.Sprintf("%d deleted", m.Key.ID)
		if !m.Deletes {
			what = fmt.Sprintf("%d becomes %d", m.Key.ID, m.On.Writes.Properties["N"].GetIntegerValue())
		}
		all = append(all, what)
	}
	slices.Sort(all)
	for _, l := range e.Left {
		id := int64(0)
		if l.Key != nil {
			id = l.Key.ID
		}
		all = append(all, fmt.Sprintf("%d stays: %s", id, l.Why))
	}
	return strings.Join(all, "\n")
}

// wantUndo checks the effect of undoing the page of range n.
func (w *world) wantUndo(n int, want ...string) {
	w.Helper()
	e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[n].Key(), nil)
	if err != nil {
		w.Errorf("page %d: %v", n, err)
		return
	}
	if got := says(e); got != strings.Join(want, "\n") {
		w.Errorf("page %d: %s\nwant %s", n, got, strings.Join(want, "\n"))
	}
}

// says returns the effect of undoing the page of range n, as text.
func (w *world) says(n int) string {
	w.Helper()
	e, err := w.run(n)
	if err != nil {
		return err.Error()
	}
	return says(e)
}

// run undoes the page of range n, without a commit.
func (w *world) run(n int) (*function.Effect, error) {
	w.Helper()
	return w.function()(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[n].Key(), nil)
}

// begin starts the undo. Each of its ranges takes back some pages of the job; the first range is
// the root. If parts is empty, the root takes back all pages.
func (w *world) begin(parts ...[]int) {
	w.Helper()
	w.undo.Query, w.undo.Params = encoded(w, Records(w.job)), encoded(w, Of(w.job))
	w.restart(w.undo)
	var all []*datastore.Mutation
	for i, pages := range parts {
		r := w.undo.RootRange()
		if i > 0 {
			r.ID = record.RangeID(w.undo.Root(), int64(i))
		}
		keys := w.records(pages)
		if len(pages) > 0 {
			r.Start = keyspace.At(keys[0])
			r.End = keyspace.At(datastore.NameKey(record.RangeKind, keys[len(keys)-1].Name+"0", nil))
		}
		r.Entities = int64(len(keys))
		w.parts = append(w.parts, r)
		all = append(all, r.Insert())
	}
	if len(all) > 0 {
		w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(all...); return err })
	}
}

// records returns the keys of the records of these ranges, sorted. If ranges is empty, it returns
// all.
func (w *world) records(ranges []int) (keys []*datastore.Key) {
	for n, r := range w.ranges {
		if len(ranges) == 0 || slices.Contains(ranges, n) {
			keys = append(keys, r.Key())
		}
	}
	slices.SortFunc(keys, keyspace.CompareKeys)
	return keys
}

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// undoes undoes pages, and commits this as the page of the undo's range part.
func (w *world) undoes(part int, pages ...int) {
	w.Helper()
	r, call := w.parts[part], w.function()
	var wrote undolog.Wrote
	var all []wire.Mutation
	for _, key := range w.records(pages) {
		e, err := call(w.Context(), function.Job{Ref: w.undo.Ref()}, key, nil)
		if err != nil {
			w.Fatal(err)
		}
		for _, m := range e.Mutations {
			wrote.Others = append(wrote.Others, m.Key)
			all = append(all, m.Wire())
		}
	}
	for _, m := range w.with {
		all = append(all, wire.Mutation{Mutation: m})
	}
	wrote.Lost, w.with, w.lost = w.lost, nil, 0
	r.State, r.Open, r.Wrote = record.Done, "", wrote.Encode()
	time.Sleep(time.Second)
	if _, err := wire.Commit(w.Context(), w.client, append(all, wire.Mutation{Mutation: r.Update()})); err != nil {
		w.Fatal(err)
	}
}

// again returns a world in which another job undoes the undo.
func (w *world) again() *world {
	w.Helper()
	other := &world{T: w.T, client: w.client, job: w.undo, ranges: w.parts,
		undo: &record.Job{ID: "undo-undo-j", Incarnation: "2222222222222222aaaaaaaa", Mapper: Name("m"),
			State: record.Running}}
	w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(other.undo.Insert()); return err })
	return other
}

// n returns the property N of an entity, or gone if it does not exist.
func (w *world) n(id int64) int64 {
	var is thing
	if err := w.client.Get(w.Context(), keyOf(id), &is); err != nil {
		return gone
	}
	return is.N
}
