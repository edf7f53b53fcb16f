package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// thirds marks the i-th range as done, failed or pending, in turn.
func thirds(i int, r *record.Range) {
	r.Created = time.Now().UTC()
	switch i % 3 {
	case 0:
		r.Processed = 10
		r.Finish(time.Now())
	case 1:
		r.Alone, r.End = true, nil
		r.Fail(errors.New("bad"), time.Now())
	default:
		r.Estimate, r.Pace = int64(i), time.Second
	}
}

// TestEachRecord checks that reading by slices and by marks finds the record of each of a job's
// ranges once, and no record of another job.
func TestEachRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		other := run(t, st, "other", func(j *record.Job) { j.Mapper = "other" })
		putRanges(t, st, j, 300, thirds)
		putRanges(t, st, other, 30, thirds)
		var mu sync.Mutex
		seen := make(map[string]int)
		if err := st.EachRecord(t.Context(), j.Ref(), func(r *record.Range) error {
			mu.Lock()
			defer mu.Unlock()
			seen[r.ID]++
			if r.Job != "j" || !r.Stored.Equal(r.Key()) {
				t.Errorf("%+v", r)
			}
			return nil
		}); err != nil || len(seen) != 301 {
			t.Errorf("%d records, %v", len(seen), err)
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%s comes %d times", id, n)
			}
		}
		errStop := errors.New("stop")
		if err := st.EachRecord(t.Context(), j.Ref(), func(*record.Range) error { return errStop }); !errors.Is(err,
			errStop) {
			t.Errorf("it does not stop: %v", err)
		}
		for _, mark := range []string{"open", "failed"} {
			var ids []string
			after := ""
			for {
				some, err := st.FirstMarked(t.Context(), mark, j.Ref(), after, 7)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range some {
					if after = r.ID; (mark == "open") != (r.Open == "j") || (mark == "failed") != (r.Failed == "j") {
						t.Errorf("%s: %+v", mark, r)
					}
					ids = append(ids, r.ID)
				}
				if len(some) < 7 {
					break
				}
			}
			if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != 100 || len(ids) != 100 {
				t.Errorf("%s: %d", mark, len(ids))
			}
		}
		for most, want := range map[int]int64{0: 100, 30: 30, 200: 100} {
			if n, err := st.CountFailures(t.Context(), j.Ref(), most); err != nil || n != want {
				t.Errorf("up to %d failures are counted as %d, %v", most, n, err)
			}
		}
		if open, err := st.HasOpen(t.Context(), j.Ref()); err != nil || !open {
			t.Errorf("it has open ranges: %v, %v", open, err)
		}
		if open, err := st.HasOpen(t.Context(), record.Ref{ID: "j", Incarnation: "other"}); err != nil || open {
			t.Errorf("another job of the ID has: %v, %v", open, err)
		}
		time.Sleep(time.Minute)
		look, part, err := st.LookOpen(t.Context(), j.Ref(), 1000)
		if err != nil || len(look) != 100 || part != 1 || look[0].Age < time.Minute || look[0].Pace != time.Second ||
			look[0].Estimate == 0 {
			t.Errorf("%d are open, %v of all, %+v, %v", len(look), part, look[:1], err)
		}
		var keys []*datastore.Key
		for id := range seen {
			keys = append(keys, record.RangeKey(j.Ref(), id))
		}
		if err := st.Delete(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		if open, err := st.HasOpen(t.Context(), j.Ref()); err != nil || open {
			t.Errorf("there are open ranges after all were deleted: %v, %v", open, err)
		}
		if n, err := st.CountFailures(t.Context(), other.Ref(), 0); err != nil || n != 10 {
			t.Errorf("the other job has %d failures, %v", n, err)
		}
	})
}

// TestSlices checks that the slices cover all IDs: each slice starts where another one ends.
func TestSlices(t *testing.T) {
	ids := []string{"00", "0fff", "10", "7f", "80", "ef", "f0", "ffff"}
	for _, id := range ids {
		in := 0
		for i := range int64(SlicesOfIDs) {
			if from, to := SliceOfIDs(i); from <= id && (to == "" || id < to) {
				in++
			}
		}
		if in != 1 {
			t.Errorf("%s is in %d slices", id, in)
		}
	}
}

// TestPage lists failures page by page. It checks that the cursor of one job is refused for another
// job.
func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		putRanges(t, st, j, 60, thirds)
		seen, cursor := make(map[string]bool), ""
		for pages := 1; ; pages++ {
			some, next, err := st.Page(t.Context(), j.Ref(), "failed", cursor, 8)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range some {
				seen[r.ID] = true
			}
			if cursor = next; next == "" {
				if pages != 3 || len(seen) != 20 {
					t.Errorf("%d failures on %d pages", len(seen), pages)
				}
				break
			}
		}
		for _, bad := range []string{"x", j.Root(), j.Incarnation, j.Incarnation + "x", "other" + j.Root()} {
			if _, _, err := st.Page(t.Context(), j.Ref(), "failed", bad, 8); !errors.Is(err, fault.ErrArguments) {
				t.Errorf("the cursor %q: %v", bad, err)
			}
		}
		if _, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.Retire(time.Now())
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := st.Page(t.Context(), j.Ref(), "failed", "", 8); !errors.Is(err, record.ErrState) {
			t.Errorf("after its retention: %v", err)
		}
		if _, _, err := st.Page(t.Context(), record.Ref{ID: "k"}, "failed", "", 8); !errors.Is(err,
			record.ErrNoSuchJob) {
			t.Errorf("of another job: %v", err)
		}
	})
}

// TestSample samples a job with 1,001 records, and checks the estimated number of records. In a
// shared context, concurrent callers must read only once.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em := emulator.ForTest(t, nil)
		client, err := em.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		st := New(client)
		j := run(t, st, "j", nil)
		putRanges(t, st, j, 1000, func(_ int, r *record.Range) {
			r.Processed = 10
			r.Finish(time.Now())
		})
		for _, c := range []struct {
			mark  string
			most  int
			about float64
			exact bool
		}{{"", 2000, 1001, true}, {"", 1002, 1001, true}, {"", 250, 1001, false}, {"", 50, 1001, false},
			{"open", 10, 0, true}} {
			some, scale, err := st.Sample(t.Context(), j.Ref(), c.mark, c.most)
			n := float64(len(some)) * scale
			if err != nil || math.Abs(n-c.about) > 0.4*c.about || c.exact != (scale == 1) || len(some) > c.most {
				t.Errorf("%d of %q are a sample of %v, %v", c.most, c.mark, n, err)
			}
		}
		sum, estimated, err := st.SampleTotals(t.Context(), j)
		if err != nil || !estimated || sum.Processed < 6000 || sum.Processed > 14000 {
			t.Errorf("%d were processed, estimated %v, %v", sum.Processed, estimated, err)
		}
		reads := func(ask func()) int64 {
			before := em.Usage()
			ask()
			return em.Usage().Sub(before).Reads
		}
		sample := func() { _, _, _ = st.Sample(t.Context(), j.Ref(), "", 50) }
		one := reads(sample)
		shared := Sharing(t.Context())
		if three := reads(func() {
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					some, _, err := st.Sample(shared, j.Ref(), "", 50)
					if err != nil || len(some) != 50 {
						t.Errorf("%d, %v", len(some), err)
					}
				})
			}
			all.Wait()
		}); one == 0 || three != one {
			t.Errorf("a sample takes %d reads, and three with one context %d", one, three)
		}
		if other := reads(func() { _, _, _ = st.Sample(shared, j.Ref(), "", 60) }); other == 0 {
			t.Error("another sample is the same")
		}
	})
}

// TestLoadedJob checks that, in a shared context, LoadedJob reads a job's record at most once, and
// returns the record that was read last.
func TestLoadedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em := emulator.ForTest(t, nil)
		client, err := em.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		st := New(client)
		j := run(t, st, "j", nil)
		other := run(t, st, "k", func(j *record.Job) { j.Mapper = "n" })
		read := func(ctx context.Context, id string, want int64) *record.Job {
			t.Helper()
			before := em.Usage()
			got, err := st.LoadedJob(ctx, record.Ref{ID: id})
			if err != nil {
				t.Fatal(err)
			}
			if n := em.Usage().Sub(before).Reads; n != want || got.ID != id {
				t.Errorf("%d reads of %s, want %d of %s", n, got.ID, want, id)
			}
			return got
		}
		read(t.Context(), "j", 1)
		read(t.Context(), "j", 1)
		shared := Sharing(t.Context())
		read(shared, "j", 1)
		read(shared, "j", 0)
		read(shared, "k", 1)
		j.Mapper = "changed"
		if _, err := client.Mutate(t.Context(), j.Update(), other.Update()); err != nil {
			t.Fatal(err)
		}
		if got := read(shared, "j", 0); got.Mapper != "m" {
			t.Errorf("it is read again: %q", got.Mapper)
		}
		if _, err := st.LoadJob(shared, j.Ref()); err != nil {
			t.Fatal(err)
		}
		if got := read(shared, "j", 0); got.Mapper != "changed" {
			t.Errorf("it is not what was read last: %q", got.Mapper)
		}
	})
}

// TestSampleOfDamaged checks that Sample returns an error, and not a wrong estimate, for a record
// without a valid ID.
func TestSampleOfDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		r := j.RootRange()
		r.ID = "fz"
		if _, err := st.client.Mutate(t.Context(), r.Insert()); err != nil {
			t.Fatal(err)
		}
		if some, _, err := st.Sample(t.Context(), j.Ref(), "", 2); err == nil {
			t.Errorf("%d records, and no error", len(some))
		}
	})
}

// TestBatches lists the batches of a page, and sets the expiry of those that still exist.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j, page, other := record.Ref{ID: "u", Incarnation: "1"}, "aa", "ab"
		var keys []*datastore.Key
		for i, p := range []string{page, page, other} {
			key, b := record.NewBatch(j, p, []*datastore.Key{datastore.IDKey("K", int64(i+1), nil)}, 1, 0)
			if _, err := st.client.Put(t.Context(), key, b); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		list := func(from, to string) (said []string) {
			if err := st.EachBatch(t.Context(), Batches(j, from, to), func(_ *datastore.Key, b *record.Batch) error {
				said = append(said, fmt.Sprint(b.Page, " ", b.Expires.IsZero()))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return said
		}
		if got := list("", ""); !slices.Equal(got, []string{"aa true", "aa true", "ab true"}) {
			t.Errorf("%q", got)
		}
		if got := list(page, other); !slices.Equal(got, []string{"aa true", "aa true"}) {
			t.Errorf("of the page: %q", got)
		}
		if err := st.client.Delete(t.Context(), keys[0]); err != nil {
			t.Fatal(err)
		}
		if err := st.ExpireBatches(t.Context(), keys[:2], time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := list("", ""); !slices.Equal(got, []string{"aa false", "ab true"}) {
			t.Errorf("after some expire: %q", got)
		}
		key, b := record.NewBatch(j, other, []*datastore.Key{datastore.IDKey("K", 9, nil)}, 1, 0)
		if _, err := st.client.Put(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
		expired := new(record.Batch)
		if err := st.client.Get(t.Context(), keys[1], expired); err != nil {
			t.Fatal(err)
		}
		if err := st.ExpireBatches(t.Context(), append(keys[1:], key), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := list("", ""); !slices.Equal(got, []string{"aa false", "ab false", "ab false"}) {
			t.Errorf("after all expire: %q", got)
		}
		again := new(record.Batch)
		if err := st.client.Get(t.Context(), keys[1], again); err != nil || !again.Expires.Equal(expired.Expires) {
			t.Errorf("what expires is kept until %v instead of %v, %v", again.Expires, expired.Expires, err)
		}
		errStop := errors.New("stop")
		if err := st.EachBatch(t.Context(), Batches(j, "", ""), func(*datastore.Key, *record.Batch) error {
			return errStop
		}); !errors.Is(err, errStop) {
			t.Errorf("it does not stop: %v", err)
		}
	})
}

// TestMutate checks that Mutate returns an error if two keys to delete have the same text. The
// client would send only one deletion for both.
func TestMutate(t *testing.T) {
	number, name := datastore.IDKey("K", 7, nil), datastore.NameKey("K", "7", nil)
	for _, c := range []struct {
		name string
		keys []*datastore.Key // keys to delete
		ok   bool
	}{
		{"nothing", nil, true},
		{"two entities", []*datastore.Key{number, datastore.IDKey("K", 8, nil)}, true},
		{"two that look the same", []*datastore.Key{number, name}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				for _, key := range c.keys {
					if _, err := st.client.Put(t.Context(), key, &struct{ N int }{}); err != nil {
						t.Fatal(err)
					}
				}
				var e function.Effect
				e.Mutations = slices.Grow(e.Mutations, len(c.keys))[:len(c.keys)]
				for i, key := range c.keys {
					e.Mutations[i].Key, e.Mutations[i].Mutation = key, datastore.NewDelete(key)
				}
				err := st.Transact(t.Context(), func(tx *datastore.Transaction) error { return Mutate(tx, &e) })
				left, _ := st.client.Count(t.Context(), datastore.NewQuery("K"))
				if (err == nil) != c.ok || (left == 0) != c.ok {
					t.Errorf("%v, and %d are left", err, left)
				}
			})
		})
	}
}
