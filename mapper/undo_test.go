package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// meddler does to accounts all that the function of an Update can do, by the last digit of their names.
var meddler = mapper.Update("meddler", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	name := a.Key.Name
	switch name[len(name)-1] {
	case '0', '1', '2':
		a.Value.Balance += p.Amount
	case '3':
		a.Delete(a.Key)
	case '4': // some notes are there
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

// images returns all entities of some kinds, byte for byte, by their keys.
func images(t testing.TB, client *datastore.Client, kinds ...string) map[string]string {
	t.Helper()
	ctx, results := wire.Reading(t.Context())
	all := make(map[string]string)
	for _, kind := range kinds {
		for it := client.Run(ctx, datastore.NewQuery(kind)); ; {
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

// leftBy returns all that an undo has left, by key.
func leftBy(t testing.TB, undo *mapper.Job) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for cursor := ""; ; {
		left, next, err := undo.Left(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			all[l.Key.String()] = l.Why
		}
		if cursor = next; next == "" {
			return all
		}
	}
}

// putMeddled puts accounts that have all kinds of properties, and notes of some of them.
func putMeddled(t testing.TB, client *datastore.Client, n int) {
	t.Helper()
	inner := &datastore.Entity{Key: datastore.NameKey("In", "side", nil), Properties: []datastore.Property{{Name: "A", Value: int64(1), NoIndex: true}}}
	for i := range n {
		name := fmt.Sprintf("a-%05d", i)
		keys, all := []*datastore.Key{datastore.NameKey("Account", name, nil)}, []datastore.PropertyList{{
			{Name: "Balance", Value: int64(i)}, {Name: "Owner", Value: "somebody", NoIndex: i%2 == 0},
			{Name: "Inner", Value: inner}, {Name: "List", Value: []any{int64(i), "text", nil, 1.5, time.UnixMicro(int64(i)).UTC()}},
			{Name: "Nothing", Value: nil}, {Name: "Place", Value: datastore.GeoPoint{Lat: 1, Lng: 2}}, {Name: "Empty", Value: []any{}},
		}}
		if i%4 > 0 {
			keys, all = append(keys, datastore.NameKey("Note", name, nil)), append(all, datastore.PropertyList{{Name: "Text", Value: []byte{1, 2, byte(i)}, NoIndex: true}})
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUndo has a job do all that a function can, and others change some of it. Its undo restores what they have left alone, byte for
// byte, and leaves and lists the rest.
func TestUndo(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setting{"optimistic": {}, "pessimistic": {emulator: emulator.Options{Pessimistic: true}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, s, meddler, slowVisit), t.Context()
				const n = 400
				putMeddled(t, w.client, n)
				before := images(t, w.client, "Account", "Note", "Event")
				job, err := meddler.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{7}, &mapper.StartOptions{ID: "done", PageSize: 30, FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Undo(ctx, nil); !errors.Is(err, mapper.ErrState) {
					t.Errorf("an undo of a job that runs: %v", err)
				}
				if s, err := job.Wait(ctx); err != nil || s.State != mapper.SucceededWithFailures || s.Failures != n/10 {
					t.Fatalf("%+v, %v", s, err)
				}
				if len(images(t, w.client, "Event")) != n/5 {
					t.Fatal("the job has put no events")
				}

				// Others change what they like.
				account, note := func(i int) *datastore.Key { return datastore.NameKey("Account", fmt.Sprintf("a-%05d", i), nil) }, func(i int) *datastore.Key {
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
				touched := []*datastore.Key{account(10), account(21), account(32), account(103), note(104), note(146), account(126)}
				put(touched...)
				gone := []*datastore.Key{account(40), note(144)}
				if err := w.client.DeleteMulti(ctx, gone); err != nil {
					t.Fatal(err)
				}
				put(account(9), account(n), note(8)) // which the job has not touched
				after := images(t, w.client, "Account", "Note", "Event")

				rehearsal, err := job.Undo(ctx, &mapper.StartOptions{Rehearse: true})
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
				if status.State != mapper.Succeeded || status.ID != "undo-done" || status.Mapper != "undo:meddler" {
					t.Errorf("%+v", status)
				}
				want, wantLeft := maps.Clone(before), make(map[string]string)
				for _, key := range touched {
					want[key.String()], wantLeft[key.String()] = after[key.String()], "it was changed since"
				}
				for _, key := range []*datastore.Key{account(9), account(n), note(8)} {
					want[key.String()] = after[key.String()]
				}
				for _, key := range gone {
					delete(want, key.String())
					wantLeft[key.String()] = "it was deleted since"
				}
				delete(wantLeft, note(144).String()) // that was not there before, either
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
					if proof, err := j.Verify(ctx); err != nil || len(proof.Problems) > 0 {
						t.Errorf("%+v, %v", proof, err)
					}
				}

				// From here on it is undone, and undone once.
				for what, err := range map[string]error{"retry": job.Retry(ctx), "resume": job.Resume(ctx)} {
					if !errors.Is(err, mapper.ErrState) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if again, err := job.Undo(ctx, nil); err != nil || again.ID != undo.ID {
					t.Errorf("a second undo: %v", err)
				}
				if _, err := job.Undo(ctx, &mapper.StartOptions{ID: "other"}); !errors.Is(err, mapper.ErrState) || !strings.Contains(err.Error(), "undo-done") {
					t.Errorf("another undo: %v", err)
				}

				// An undo is undone as any job is.
				redo, err := undo.Undo(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				if s := w.wait(redo); s.State != mapper.Succeeded || s.Counters["left"] > 0 {
					t.Errorf("%+v", s)
				}
				if diff := cmp.Diff(after, images(t, w.client, "Account", "Note", "Event")); diff != "" {
					t.Errorf("after all (-want +got)\n%.3000s", diff)
				}
			})
		})
	}
}
