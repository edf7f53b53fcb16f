package protocol_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// meddler does all that the function of an Update can do to accounts, by the last digit of their
// names.
var meddler = mapper.Update("meddler", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	name := a.Key.Name
	switch name[len(name)-1] {
	case '0', '1', '2':
		a.Value.Balance += p.Amount
	case '3':
		a.Delete(a.Key)
	case '4': // some notes exist
		a.Put(datastore.NameKey("Note", name, nil), &account{Owner: "meddler"})
	case '5':
		a.Put(datastore.IncompleteKey("Event", a.Key), &account{Owner: name})
		a.Put(datastore.IncompleteKey("Event", nil), &account{Owner: name})
	case '6':
		a.Delete(datastore.NameKey("Note", name, nil))
		a.Value.Balance = -1
	case '7':
		return mapper.Permanent(errors.New("seven"))
	case '8':
		a.Touch()
	}
	return nil
})

// images returns all entities of some kinds, byte for byte, by key.
func images(t testing.TB, client *datastore.Client, kinds ...string) map[string]string {
	t.Helper()
	queries := make([]*datastore.Query, len(kinds))
	for i, kind := range kinds {
		queries[i] = datastore.NewQuery(kind)
	}
	return imagesOf(t, client, queries...)
}

// imagesOf returns the entities of queries in the same form as images.
func imagesOf(t testing.TB, client *datastore.Client, queries ...*datastore.Query) map[string]string {
	t.Helper()
	ctx, results := wire.Reading(t.Context())
	all := make(map[string]string)
	for _, q := range queries {
		for it := client.Run(ctx, q); ; {
			key, err := it.Next(new(datastore.PropertyList))
			if errors.Is(err, iterator.Done) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			e := results.Of(key).Entity
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			all[key.String()] = fmt.Sprintf("%x %s", b, protojson.Format(e))
		}
	}
	return all
}

// leftBy returns all entities that an undo has left, by key.
func leftBy(t testing.TB, undo *mapper.Job) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for cursor := ""; ; {
		left, next, err := undo.NotUndonePage(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			all[l.Key.String()] = l.Reason
		}
		if cursor = next; next == "" {
			return all
		}
	}
}

// putMeddled puts accounts with all kinds of properties, and notes for some of them.
func putMeddled(t testing.TB, client *datastore.Client, n int) {
	t.Helper()
	inner := &datastore.Entity{Key: datastore.NameKey("In", "side", nil),
		Properties: []datastore.Property{{Name: "A", Value: int64(1), NoIndex: true}}}
	for i := range n {
		name := fmt.Sprintf("a-%05d", i)
		keys, all := []*datastore.Key{datastore.NameKey("Account", name, nil)}, []datastore.PropertyList{{
			{Name: "Balance", Value: int64(i)}, {Name: "Owner", Value: "somebody", NoIndex: i%2 == 0},
			{Name: "Inner", Value: inner},
			{Name: "List", Value: []any{int64(i), "text", nil, 1.5, time.UnixMicro(int64(i)).UTC()}},
			{Name: "Nothing", Value: nil}, {Name: "Place", Value: datastore.GeoPoint{Lat: 1, Lng: 2}},
			{Name: "Empty", Value: []any{}},
		}}
		if i%4 > 0 {
			keys, all = append(keys, datastore.NameKey("Note", name, nil)),
				append(all, datastore.PropertyList{{Name: "Text", Value: []byte{1, 2, byte(i)}, NoIndex: true}})
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUndo runs a job that does all that a function can do, and lets others change some entities.
// The undo restores the unchanged rest byte for byte. It leaves and lists the others.
func TestUndo(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setting{"optimistic": {},
		"pessimistic": {emulator: emulator.Options{PessimisticConcurrency: true}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, s, meddler, slowVisit), t.Context()
				const n = 400
				putMeddled(t, w.client, n)
				before := images(t, w.client, "Account", "Note", "Event")
				job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{7},
					&mapper.StartOptions{ID: "done", PageSize: 30, FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Undo(ctx, nil); !errors.Is(err, mapper.ErrWrongState) {
					t.Errorf("an undo of a job that runs: %v", err)
				}
				if s, err := job.Wait(ctx); err != nil || s.State != mapper.StateSucceededWithFailures ||
					s.Failures != n/10 {
					t.Fatalf("status %+v, %v", s, err)
				}
				if len(images(t, w.client, "Event")) != n/5 {
					t.Fatal("the job has put no events")
				}

				// Others change some of the entities.
				account, note := func(i int) *datastore.Key {
					return datastore.NameKey("Account", fmt.Sprintf("a-%05d", i), nil)
				}, func(i int) *datastore.Key {
					return datastore.NameKey("Note", fmt.Sprintf("a-%05d", i), nil)
				}
				mine := &datastore.PropertyList{{Name: "Mine", Value: true}}
				put := func(keys ...*datastore.Key) {
					for _, key := range keys {
						if _, err := w.client.Put(ctx, key, mine); err != nil {
							t.Fatal(err)
						}
					}
				}
				touched := []*datastore.Key{account(10), account(21), account(32), account(103), note(104), note(146),
					account(126)}
				put(touched...)
				gone := []*datastore.Key{account(40), note(144)}
				if err := w.client.DeleteMulti(ctx, gone); err != nil {
					t.Fatal(err)
				}
				put(account(9), account(n), note(8)) // which the job has not touched
				after := images(t, w.client, "Account", "Note", "Event")

				rehearsal, err := job.Undo(ctx, &mapper.UndoOptions{DryRun: true})
				if err != nil {
					t.Fatal(err)
				}
				rehearsed := w.wait(rehearsal)
				if diff := cmp.Diff(after, images(t, w.client, "Account", "Note", "Event")); diff != "" {
					t.Errorf("a rehearsal has changed something:\n%s", diff)
				}
				undo, err := job.Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				status := w.wait(undo)
				if status.State != mapper.StateSucceeded || status.ID != "undo-done" ||
					status.Mapper != "undo:meddler" {
					t.Errorf("status %+v", status)
				}
				want, wantLeft := maps.Clone(before), make(map[string]string)
				for _, key := range touched {
					want[key.String()], wantLeft[key.String()] = after[key.String()],
						"it was changed after the page wrote it"
				}
				for _, key := range []*datastore.Key{account(9), account(n), note(8)} {
					want[key.String()] = after[key.String()]
				}
				for _, key := range gone {
					delete(want, key.String())
					wantLeft[key.String()] = "it was deleted after the page wrote it"
				}
				delete(wantLeft, note(144).String()) // it did not exist before
				if diff := cmp.Diff(want, images(t, w.client, "Account", "Note", "Event")); diff != "" {
					t.Errorf("(-want +got)\n%.3000s", diff)
				}
				if diff := cmp.Diff(wantLeft, leftBy(t, undo)); diff != "" {
					t.Errorf("left (-want +got)\n%s", diff)
				}
				for _, name := range []string{"restored", "removed", "left"} {
					if status.Counters[name] == 0 || status.Counters[name] != rehearsed.Counters[name] {
						t.Errorf("%s: %d, rehearsed %d", name, status.Counters[name], rehearsed.Counters[name])
					}
				}
				for _, j := range []*mapper.Job{job, undo, rehearsal} {
					if proof, err := j.Verify(ctx, nil); err != nil || len(proof.Problems) > 0 {
						t.Errorf("proof %+v, %v", proof, err)
					}
				}

				// From here on the job is undone, and no further call changes that.
				for what, err := range map[string]error{"retry": job.Retry(ctx, nil), "resume": job.Resume(ctx)} {
					if !errors.Is(err, mapper.ErrWrongState) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if again, err := job.Undo(ctx, nil); err != nil || again.ID != undo.ID {
					t.Errorf("a second undo: %v", err)
				}
				if _, err := job.Undo(ctx, &mapper.UndoOptions{ID: "other"}); !errors.Is(err, mapper.ErrWrongState) ||
					!strings.Contains(err.Error(), "undo-done") {
					t.Errorf("another undo: %v", err)
				}

				// An undo can be undone like any job.
				redo, err := undo.Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				if s := w.wait(redo); s.State != mapper.StateSucceeded || s.Counters["left"] > 0 {
					t.Errorf("status %+v", s)
				}
				if diff := cmp.Diff(after, images(t, w.client, "Account", "Note", "Event")); diff != "" {
					t.Errorf("after all (-want +got)\n%.3000s", diff)
				}
			})
		})
	}
}

// TestUndoOnGoogle undoes a job on Google's Firestore emulator. The classic emulator does not tell
// when an entity was written, and Undo says so.
func TestUndoOnGoogle(t *testing.T) {
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			w, ctx := newWorld(t, setting{client: googletest.Client(t, p, mapper.ClientOption())}, meddler), t.Context()
			putMeddled(t, w.client, 60)
			before := images(t, w.client, "Account", "Note", "Event")
			job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{7},
				&mapper.StartOptions{ID: "done", PageSize: 15, FailureLimit: -1})
			if err != nil {
				t.Fatal(err)
			}
			if s, err := job.Wait(ctx); err != nil || s.State != mapper.StateSucceededWithFailures {
				t.Fatalf("status %+v, %v", s, err)
			}
			other := datastore.NameKey("Account", "a-00010", nil)
			if _, err := w.client.Put(ctx, other, &datastore.PropertyList{{Name: "Mine", Value: true}}); err != nil {
				t.Fatal(err)
			}
			after := images(t, w.client, "Account", "Note", "Event")
			undo, err := job.Undo(ctx, nil)
			if p == google.Classic {
				if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(err.Error(), "does not say when") {
					t.Errorf("an undo on a database that does not say when an entity was written: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			status := w.wait(undo)
			before[other.String()] = after[other.String()]
			if diff := cmp.Diff(before, images(t, w.client, "Account", "Note", "Event")); diff != "" ||
				status.Counters["left"] != 1 {
				t.Errorf("%+v (-want +got)\n%.3000s", status, diff)
			}
			if diff := cmp.Diff(map[string]string{other.String(): "it was changed after the page wrote it"},
				leftBy(t, undo)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// sweeper deletes an entity, or changes it so that the query no longer finds it.
var sweeper = mapper.Update("sweeper", func(_ context.Context, e *mapper.Entity[task], _ mapper.NoParams) error {
	if e.Value.Due%2 == 0 && e.Value.State != "" {
		e.Value.State = "done"
	} else {
		e.Delete(e.Key)
	}
	return nil
})

type task struct {
	State string
	Due   int64
}

// TestUndoQueries undoes jobs over all forms of queries. Their functions make entities leave the
// query.
func TestUndoQueries(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	top := datastore.NameKey("Top", "one", nil)
	for name, q := range map[string]mapper.Query{
		"filter":       {Kind: "Task", Filters: []mapper.Filter{mapper.Where("State", "=", "open")}},
		"sharded":      {Kind: "Task", ShardBy: "Due"},
		"sharded part": {Kind: "Task", ShardBy: "Due", Filters: []mapper.Filter{mapper.Where("Due", "<", 50)}},
		"share":        {Kind: "Task", Filters: []mapper.Filter{mapper.Share(0, 1, 3)}},
		"keys only":    {Kind: "Task", KeysOnly: true},
		"old keys":     {Kind: "Task", KeysOnly: true, Filters: []mapper.Filter{mapper.Where("Due", "<", 40)}},
		"ancestor":     {Kind: "Task", Ancestor: top},
		"range": {Kind: "Task", Start: datastore.NameKey("Task", "t-030", nil),
			End: datastore.NameKey("Task", "t-060", nil)},
		"namespaces":     {Kinds: []string{"Task", "Chore"}, Namespaces: []string{"", "n"}},
		"all namespaces": {Kind: "Task", AllNamespaces: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{}, sweeper), t.Context()
				for i := range 100 {
					for _, key := range []*datastore.Key{datastore.NameKey("Task", fmt.Sprintf("t-%03d", i), nil),
						datastore.NameKey("Task", fmt.Sprintf("t-%03d", i), top),
						datastore.NameKey("Chore", fmt.Sprint(i), nil)} {
						for _, namespace := range []string{"", "n"} {
							for k := key; k != nil && key.Parent == nil; k = k.Parent {
								k.Namespace = namespace
							}
							if _, err := w.client.Put(ctx, key,
								&datastore.PropertyList{{Name: "State", Value: []string{"open", "shut"}[i/50]},
									{Name: "Due", Value: int64(i)},
									{Name: "More", Value: "text", NoIndex: true}}); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				all := func() map[string]string {
					together := images(t, w.client, "Task", "Chore")
					for key, image := range imagesOf(t, w.client, datastore.NewQuery("Task").Namespace("n"),
						datastore.NewQuery("Chore").Namespace("n")) {
						together["n "+key] = image
					}
					return together
				}
				before := all()
				job, err := sweeper.Start(ctx, w.engine, q, mapper.NoParams{},
					&mapper.StartOptions{ID: "done", PageSize: 7})
				if err != nil {
					t.Fatal(err)
				}
				s := w.wait(job)
				if s.Written < 30 || len(all()) == len(before) {
					t.Fatalf("status %+v", s)
				}
				undo, err := job.Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				if undone := w.wait(undo); undone.Counters["restored"] != s.Written || undone.Counters["left"] > 0 {
					t.Errorf("%d were written; %v", s.Written, undone.Counters)
				}
				if diff := cmp.Diff(before, all()); diff != "" {
					t.Errorf("(-want +got)\n%.2000s", diff)
				}
			})
		})
	}
}

// TestUndoLarge undoes pages whose images exceed a commit, and a page that has put more entities
// than its record can list.
func TestUndoLarge(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		deletes := mapper.Update("deletes",
			func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
				e.Delete(e.Key)
				return nil
			})
		many := mapper.Update("many", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Value.Owner = "set"
			for i := range 10 {
				h := sha256.Sum256([]byte(a.Key.Name + fmt.Sprint(i)))
				a.Put(datastore.NameKey("Many", hex.EncodeToString(h[:]), nil), &account{})
			}
			return nil
		})
		w, ctx := newWorld(t, setting{}, deletes, many), t.Context()
		rng := rand.NewChaCha8([32]byte{})
		for i := range 300 {
			b := make([]byte, 60_000)
			_, _ = rng.Read(b)
			if _, err := w.client.Put(ctx, datastore.NameKey("Big", fmt.Sprint(i), nil),
				&datastore.PropertyList{{Name: "B", Value: b, NoIndex: true}}); err != nil {
				t.Fatal(err)
			}
		}
		before := images(t, w.client, "Big")
		job, err := deletes.Start(ctx, w.engine, mapper.Query{Kind: "Big"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "deletes", ExpectedWorkers: 1})
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		for _, o := range []*mapper.UndoOptions{{DryRun: true}, nil} {
			undo, err := job.Undo(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			if s := w.wait(undo); s.Counters["restored"] != 300 {
				t.Errorf("status %+v", s)
			}
		}
		if after := images(t, w.client, "Big"); !maps.Equal(before, after) {
			t.Errorf("%d of %d are there", len(after), len(before))
		}

		w.putAccounts(names(500))
		accounts := images(t, w.client, "Account")
		if job, err = many.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "many", ExpectedWorkers: 1}); err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(undo)
		rest := len(images(t, w.client, "Many"))
		if diff := cmp.Diff(accounts, images(t, w.client, "Account")); diff != "" || s.Counters["restored"] != 500 ||
			s.Counters["removed"]+int64(rest) != 5000 || rest == 0 || s.Counters["left"] != int64(rest) {
			t.Errorf("%v, %d left: %.500s", s.Counters, rest, diff)
		}
		if left, _, err := undo.NotUndonePage(ctx, ""); err != nil || len(left) == 0 || left[0].Key != nil ||
			!strings.Contains(left[0].Reason, fmt.Sprint(rest)) {
			t.Errorf("%v, %v", left, err)
		}
	})
}

// beside returns an engine of a world in another process, whose calls pass through f.
func (w *world) beside(f grpc.UnaryClientInterceptor, mappers ...mapper.AnyMapper) *mapper.Engine {
	w.Helper()
	client, err := w.emulator.DatastoreClient(w.Context(), "test", mapper.ClientOption(),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(f)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { client.Close() })
	e, err := mapper.NewEngine(client, w.queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))})
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// doneJob runs setOwner over some accounts.
func (w *world) doneJob(accounts int) *mapper.Job {
	w.Helper()
	w.putAccounts(names(accounts))
	job, err := setOwner.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "done", PageSize: 5})
	if err != nil {
		w.Fatal(err)
	}
	w.wait(job)
	return job
}

// unrestored returns how many accounts still have setOwner's owner.
func (w *world) unrestored() (n int) {
	w.Helper()
	var all []account
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery("Account"), &all); err != nil {
		w.Fatal(err)
	}
	for _, a := range all {
		if a.Owner == "set" {
			n++
		}
	}
	return n
}

// A deed is an operator's call on the job "done".
type deed struct {
	name string
	do   func(ctx context.Context, e *mapper.Engine) error
}

// TestUndoBesideCleanUp stops the process of an operator at each of its calls, one after the other.
// Meanwhile another operator makes a whole other call on the same job. Then the process wakes. No
// operator is told of a success that did not happen.
func TestUndoBesideCleanUp(t *testing.T) {
	t.Parallel()
	cleanUp := func(o *mapper.CleanUpOptions) func(context.Context, *mapper.Engine) error {
		return func(ctx context.Context, e *mapper.Engine) error { return e.Job("done").CleanUp(ctx, o) }
	}
	undoAs := func(id string) func(context.Context, *mapper.Engine) error {
		return func(ctx context.Context, e *mapper.Engine) error {
			_, err := e.Job("done").Undo(ctx, &mapper.UndoOptions{ID: id, PageSize: 1, ExpectedWorkers: 1})
			return err
		}
	}
	undo, other := deed{"undo", undoAs("")}, deed{"another undo", undoAs("other")}
	clean, all := deed{"clean up", cleanUp(nil)},
		deed{"clean up with the job", cleanUp(&mapper.CleanUpOptions{IncludeJob: true})}
	for _, pair := range [][2]deed{{clean, undo}, {all, undo}, {undo, clean}, {undo, all}, {undo, other}, {undo, undo},
		{clean, all}} {
		t.Run(pair[0].name+" beside "+pair[1].name, func(t *testing.T) {
			step := testflag.Size(t, 3, 4, 1) // every call in one of this many runs, on average
			for call, stood := int(testflag.Seed(t)%uint64(step)), true; stood; call += step {
				synctest.Test(t, func(t *testing.T) {
					w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
					w.doneJob(100)
					var calls atomic.Int64
					stands, goes := make(chan struct{}), make(chan struct{})
					wake := sync.OnceFunc(func() { close(goes) })
					defer wake() // a later look at the queue
					sleeper := w.beside(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
						invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						if calls.Add(1)-1 == int64(call) {
							close(stands)
							<-goes
						}
						return invoker(ctx, method, req, reply, cc, opts...)
					}, setOwner)
					ended := make(chan error, 1)
					go func() { ended <- pair[0].do(ctx, sleeper) }()
					var first, second error
					select {
					case <-stands:
						second = pair[1].do(ctx, w.engine)
						time.Sleep(20 * time.Millisecond) // part of its work is done by then
						wake()
						first = <-ended
					case first = <-ended:
						stood = false
					}
					time.Sleep(time.Hour)
					set, running := w.unrestored(), 0
					jobs, _, err := w.engine.JobsPage(ctx, nil, "")
					if err != nil {
						t.Fatal(err)
					}
					for _, j := range jobs {
						if j.Mapper != "undo:set-owner" {
							continue
						}
						running++
						s, err := w.engine.Job(j.ID).Status(ctx)
						if err != nil || s.State != mapper.StateSucceeded || s.Counters["restored"] != 100 || set > 0 {
							t.Errorf("call %d: %v, %v; %+v, %v: %d accounts are not restored", call, first, second, s,
								err, set)
						}
					}
					if undoes := pair[0].name == undo.name || stood && pair[1].name == undo.name; undoes &&
						running == 0 && (first == nil && pair[0].name == undo.name || stood && second == nil &&
						pair[1].name == undo.name) {
						t.Errorf("call %d: an undo was started and does not exist: %v, %v", call, first, second)
					}
					if running > 1 {
						t.Errorf("call %d: %d undos", call, running)
					}
				})
			}
		})
	}
}

// TestOldCleanUp lets an older build clean up a job that is being undone: that build ignores undos.
// This build continues the clean-up only after the undo has ended. The undo can't know what was
// deleted, so it does not succeed.
func TestOldCleanUp(t *testing.T) {
	t.Parallel()
	for name, deletes := range map[string]bool{"it has deleted nothing": false, "it has deleted some records": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
				job := w.doneJob(100)
				before := w.count(record.RangeKind, "wrote")
				undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1,
					Rate: mapper.Rate{EntitiesPerSecond: 2}})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if err := undo.Pause(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				undone := w.status(undo).Processed
				if undone == 0 || undone >= int64(before) {
					t.Fatalf("%d of %d pages are undone", undone, before)
				}
				w.cleanUpAsBefore("done")
				records := w.keysOf(".done.")
				if deletes {
					if err := w.client.DeleteMulti(ctx, records[:len(records)/2]); err != nil {
						t.Fatal(err)
					}
					records = records[len(records)/2:]
				}
				if err := job.CleanUp(ctx, nil); err != nil { // the clean-up's tasks are enqueued again
					t.Fatal(err)
				}
				if err := w.engine.ReviveJobs(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				if now := w.keysOf(".done."); len(now) != len(records) {
					t.Fatalf("%d of %d records are there still", len(now), len(records))
				}
				if err := undo.Resume(ctx); err != nil {
					t.Fatal(err)
				}
				s, err := undo.Wait(ctx)
				if err != nil || s.State != mapper.StateFailed ||
					!strings.Contains(s.Error, "an older build cleaned up the records of the job") {
					t.Errorf("the undo: %+v, %v", s, err)
				}
				if set := w.unrestored(); set > 0 != deletes {
					t.Errorf("%d accounts are not restored", set)
				}
				if err := undo.Resume(ctx); err != nil { // the undo may still go on
					t.Errorf("resume: %v", err)
				}
				if s, err = undo.Wait(ctx); err != nil || s.State != mapper.StateFailed {
					t.Errorf("the undo, resumed: %+v, %v", s, err)
				}
				if err := undo.Abort(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				if now := w.keysOf(".done."); len(now) > 0 {
					t.Errorf("%d records are there still, after the undo was aborted", len(now))
				}
			})
		})
	}
}

// keysOf returns the keys of range records whose names contain a text.
func (w *world) keysOf(text string) (some []*datastore.Key) {
	w.Helper()
	keys, err := w.client.GetAll(w.Context(), datastore.NewQuery(record.RangeKind).KeysOnly(), nil)
	if err != nil {
		w.Fatal(err)
	}
	for _, key := range keys {
		if strings.Contains(key.Name, text) {
			some = append(some, key)
		}
	}
	return some
}

// cleanUpAsBefore starts the clean-up of a job as older builds did, without a look at its undo.
func (w *world) cleanUpAsBefore(id string) {
	w.Helper()
	key := datastore.NameKey(record.JobKind, id, nil)
	_, err := w.client.RunInTransaction(w.Context(), func(tx *datastore.Transaction) error {
		var list datastore.PropertyList
		if err := tx.Get(key, &list); err != nil {
			return err
		}
		has := false
		for i := range list {
			switch p := &list[i]; p.Name {
			case "cleaning":
				p.Value = "{}"
			case "cleaned":
				p.Value = true
			case "epoch":
				p.Value = p.Value.(int64) + 1
			case "active":
				p.Value, has = true, true
			}
		}
		if !has {
			list = append(list, datastore.Property{Name: "active", Value: true})
		}
		_, err := tx.Put(key, &list)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

// TestUndoAfterCleanUp undoes, resumes and retries jobs after a clean-up.
func TestUndoAfterCleanUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, setOwner), t.Context()
		job := w.doneJob(50)
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.wait(undo)
		if err := job.CleanUp(ctx, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if again, err := job.Undo(ctx, nil); err != nil || again.ID != undo.ID {
			t.Errorf("the same undo once more: %v", err)
		}
		if again, err := job.Undo(ctx, &mapper.UndoOptions{ID: undo.ID}); err != nil || again.ID != undo.ID {
			t.Errorf("the same undo by its ID: %v", err)
		}
		if _, err := job.Undo(ctx, &mapper.UndoOptions{ID: "other"}); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("another undo: %v", err)
		}
		if err := undo.Retry(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "cleaned up") {
			t.Errorf("a retry of the undo: %v", err)
		}
		if s := w.status(undo); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
	})
}

// TestUndoOutlived undoes a job so slowly that the database forgets the state before the last
// pages. Those pages are failures, and the others are restored.
func TestUndoOutlived(t *testing.T) {
	if testing.Short() {
		t.Skip("a page every 20 s, for more than an hour")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(1)}, setOwner), t.Context()
		job := w.doneJob(1100)
		undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1,
			Rate: mapper.Rate{EntitiesPerSecond: 0.05}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := undo.Wait(ctx)
		if err != nil || s.State != mapper.StateSucceededWithFailures || s.Failures < 2 ||
			s.Counters["restored"] < 500 {
			t.Fatalf("status %+v, %v", s, err)
		}
		if set := w.unrestored(); int64(set) != 1100-s.Counters["restored"] || int64(set) > 5*s.Failures {
			t.Errorf("%d accounts are not restored: %+v", set, s)
		}
	})
}

// TestUndoRefused asks for impossible undos. Nothing changes, and the job can still be retried.
func TestUndoRefused(t *testing.T) {
	t.Parallel()
	done := func(w *world, m *mapper.Mapper[mapper.NoParams]) *mapper.Job {
		job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done"})
		if err != nil {
			w.Fatal(err)
		}
		w.wait(job)
		return job
	}
	for name, test := range map[string]struct {
		setting setting
		mapper  *mapper.Mapper[mapper.NoParams]
		spoil   func(w *world, job *mapper.Job) error
		want    error
		text    string
	}{
		"no versions": {setting{plain: true}, setOwner, nil, mapper.ErrWrongState, "which versions"},
		"visit":       {setting{}, slowVisit, nil, mapper.ErrInvalidArgument, "no Update"},
		"cleaned up": {setting{}, setOwner, func(w *world, job *mapper.Job) error {
			defer time.Sleep(time.Hour / 2)
			return job.CleanUp(w.Context(), nil)
		}, mapper.ErrWrongState, "cleaned up"},
		"gone": {setting{}, setOwner, func(w *world, job *mapper.Job) error {
			defer time.Sleep(time.Hour / 2)
			return job.CleanUp(w.Context(), &mapper.CleanUpOptions{IncludeJob: true})
		}, mapper.ErrNoSuchJob, "done"},
		"old": {setting{}, setOwner, func(*world, *mapper.Job) error {
			time.Sleep(61 * time.Minute)
			return nil
		}, mapper.ErrWrongState, "can't be read as it was at"},
		"mapper gone": {setting{}, setOwner, func(w *world, _ *mapper.Job) (err error) {
			w.engine, err = mapper.NewEngine(w.client, w.queue,
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
			return err
		}, mapper.ErrUnknownMapper, "set-owner"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.setting, test.mapper)
				w.putAccounts(names(50))
				job := done(w, test.mapper)
				if test.spoil != nil {
					if err := test.spoil(w, job); err != nil {
						t.Fatal(err)
					}
				}
				read := func() string {
					var all []account
					_, err := w.client.GetAll(t.Context(), datastore.NewQuery("Account"), &all)
					return fmt.Sprint(all, err)
				}
				before := read()
				if _, err := w.engine.Job("done").Undo(t.Context(), nil); !errors.Is(err, test.want) ||
					!strings.Contains(err.Error(), test.text) {
					t.Errorf("%v, want %v, and %q", err, test.want, test.text)
				}
				if s, err := job.Status(t.Context()); err == nil && s.UndoneBy != "" {
					t.Errorf("the job is undone by %q", s.UndoneBy)
				}
				if diff := cmp.Diff(before, read()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
	t.Run("paused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, setOwner), t.Context()
			w.putAccounts(names(50))
			job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "done", PageSize: 5, Rate: mapper.Rate{EntitiesPerSecond: 5}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if err := job.Pause(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if _, err := job.Undo(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "abort it first") {
				t.Errorf("the undo of a job that is paused: %v", err)
			}
			if err := job.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != 50 || s.UndoneBy != "" {
				t.Errorf("status %+v", s)
			}
		})
	})
	t.Run("by name", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, setOwner)
			for _, name := range []string{"undo:set-owner", "rehearsal:undo:set-owner"} {
				if _, err := w.engine.StartByName(t.Context(), name, mapper.Query{Kind: record.RangeKind}, []byte(`{}`),
					nil); !errors.Is(err, mapper.ErrUnknownMapper) || strings.Contains(err.Error(), "have undo") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	})
}

// setOwner is an Update without parameters.
var setOwner = mapper.Update("set-owner", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Value.Owner = "set"
	return nil
})

// TestUndoUnknown undoes pages whose writes are not known. They are failures, and none of their
// entities changes.
func TestUndoUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(datastore.PropertyList) datastore.PropertyList
		text  string
	}{
		"older build": {func(l datastore.PropertyList) datastore.PropertyList {
			return slices.DeleteFunc(l, func(p datastore.Property) bool { return p.Name == "wrote" })
		}, "an older build has done the page"},
		"changed": {func(l datastore.PropertyList) datastore.PropertyList {
			return append(l, datastore.Property{Name: "mended", Value: true, NoIndex: true})
		}, "record was changed after its commit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{}, setOwner), t.Context()
				w.putAccounts(names(50))
				job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{ID: "done", PageSize: 20})
				if err != nil {
					t.Fatal(err)
				}
				w.wait(job)
				after := images(t, w.client, "Account")
				var all []datastore.PropertyList
				keys, err := w.client.GetAll(ctx, datastore.NewQuery(record.RangeKind), &all)
				if err != nil {
					t.Fatal(err)
				}
				for i := range all {
					all[i] = test.spoil(all[i])
				}
				if _, err := w.client.PutMulti(ctx, keys, all); err != nil {
					t.Fatal(err)
				}
				undo, err := job.Undo(ctx, &mapper.UndoOptions{FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				s, err := undo.Wait(ctx)
				failures, _, err2 := undo.FailuresPage(ctx, "")
				if err != nil || err2 != nil || s.Failures != int64(len(keys)) || len(failures) == 0 ||
					!strings.Contains(failures[0].Error, test.text) {
					t.Errorf("%+v, %v, %v %v", s, err, failures, err2)
				}
				if diff := cmp.Diff(after, images(t, w.client, "Account")); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestUndoRecords undoes jobs while their records block the undo: they are cleaned up meanwhile, or
// other jobs have their IDs.
func TestUndoRecords(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
		w.putAccounts(names(1000))
		before := images(t, w.client, "Account")
		start := func(id string) *mapper.Job {
			t.Helper()
			job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: id, PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			w.wait(job)
			return job
		}
		job := start("nightly")
		if _, err := job.Undo(ctx, &mapper.UndoOptions{ID: "nightly"}); !errors.Is(err, mapper.ErrIDTaken) {
			t.Errorf("an undo under the ID of its job: %v", err)
		}
		if s := w.status(job); s.UndoneBy != "" {
			t.Errorf("it is undone by %q", s.UndoneBy)
		}
		if _, _, err := job.NotUndonePage(ctx, ""); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("what a job has left that is no undo: %v", err)
		}
		undo, err := job.Undo(ctx, &mapper.UndoOptions{Rate: mapper.Rate{EntitiesPerSecond: 1}, ExpectedWorkers: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "undo-nightly") {
			t.Errorf("a clean-up meanwhile: %v", err)
		}
		time.Sleep(30 * time.Second)
		if s := w.status(undo); s.Counters["restored"] == 0 || s.State != mapper.StateRunning {
			t.Fatalf("status %+v", s)
		}
		if err := undo.Abort(ctx); err != nil {
			t.Fatal(err)
		}
		again, err := job.Undo(ctx, nil)
		if err != nil || again.ID == undo.ID {
			t.Fatalf("once more: %v", err)
		}
		if s := w.wait(again); s.Counters["left"] > 0 { // the first one has left its restored entities unchanged
			t.Errorf("%v", s.Counters)
		}
		if diff := cmp.Diff(before, images(t, w.client, "Account")); diff != "" {
			t.Errorf("%.1000s", diff)
		}
		if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)

		// The next job of that ID.
		job = start("nightly")
		last, err := job.Undo(ctx, nil)
		if err != nil || last.ID == undo.ID || last.ID == again.ID {
			t.Fatalf("the next one: %v", err)
		}
		if s := w.wait(last); s.Counters["restored"] != 1000 {
			t.Errorf("counters %+v", s.Counters)
		}
		if same, err := job.Undo(ctx, nil); err != nil || same.ID != last.ID {
			t.Errorf("the same: %v", err)
		}
	})
}
