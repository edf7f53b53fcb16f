package protocol_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// meddler is an Update that does everything that a function can do to accounts. The last digit of
// an account's name decides what it does.
var meddler = mapper.Update("meddler", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	name := a.Key.Name
	switch name[len(name)-1] {
	case '0', '1', '2':
		a.Value.Balance += p.Amount
	case '3':
		a.Delete(a.Key)
	case '4': // this note may exist
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

// images returns all entities of the given kinds in encoded form, by key.
func images(t testing.TB, client *datastore.Client, kinds ...string) map[string]string {
	t.Helper()
	queries := make([]*datastore.Query, len(kinds))
	for i, kind := range kinds {
		queries[i] = datastore.NewQuery(kind)
	}
	return imagesOf(t, client, queries...)
}

// imagesOf returns the entities that queries find, in the same form as images.
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

// leftBy returns the entities that an undo lists as not restored, with the reasons, by key.
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

// putMeddled puts n accounts with properties of all kinds, and notes for some of them.
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

// TestUndo runs a job that does everything that a function can do. Then other clients change some
// entities. The undo must restore all other entities byte for byte. It must leave the changed ones,
// and list them.
func TestUndo(t *testing.T) {
	testflag.Sequential(t)
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

				// Other clients change some of the entities.
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
				put(account(9), account(n), note(8)) // entities that the job has not written
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
						"it was changed after the job wrote it"
				}
				for _, key := range []*datastore.Key{account(9), account(n), note(8)} {
					want[key.String()] = after[key.String()]
				}
				for _, key := range gone {
					delete(want, key.String())
					wantLeft[key.String()] = "it was deleted after the job wrote it"
				}
				delete(wantLeft, note(144).String()) // this entity did not exist before the job
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

				// From here on the job is undone, so these calls must be refused.
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

				// An undo can be undone like any other job.
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

// TestUndoOnGoogle undoes a job on Google's Firestore emulator. Google's classic emulator does not
// tell the time of an entity's last write, so there Undo must return an error that says so.
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
			if diff := cmp.Diff(map[string]string{other.String(): "it was changed after the job wrote it"},
				leftBy(t, undo)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// sweeper is an Update that deletes an entity, or changes it so that the job's query no longer
// finds it.
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

// TestUndoQueries undoes jobs over all forms of queries. Their functions change entities so that
// the query no longer finds them.
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

// TestUndoLarge undoes pages whose entities are too large for one commit, and a page that has put
// more entities than its record can list.
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
