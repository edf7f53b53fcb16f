package mapper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/mapper"
)

// over runs a mapper without parameters over the accounts, to its end.
func over(w *world, m *mapper.Mapper[mapper.None], o *mapper.StartOptions) *mapper.Status {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.None{}, o)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 24*time.Hour)
	defer cancel()
	status, err := job.Wait(ctx)
	if err != nil {
		w.Fatal(err)
	}
	return status
}

// TestFailingEntities has the function fail on a few entities of many, in every
// way. The others of their pages go on.
func TestFailingEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := make(map[string]int)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			a.Value.Balance += 10
			a.Count("seen", 1)
			mu.Lock()
			defer mu.Unlock()
			tries[a.Key.Name]++
			switch a.Key.Name {
			case "user-0000003":
				return errors.New("no")
			case "user-0000005":
				panic("oh")
			case "user-0000007":
				return mapper.Permanent(errors.New("never"))
			case "user-0000009":
				if tries[a.Key.Name] < 3 {
					return errors.New("not yet")
				}
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		keys := names(300)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{PageSize: 100})
		if s.State != mapper.SucceededWithFailures || s.Failures != 3 || s.Processed != 297 || s.Counters["seen"] != 297 {
			t.Errorf("status %+v", s)
		}
		failed := []int{3, 5, 7}
		for i, k := range keys {
			var a account
			if err := w.client.Get(t.Context(), k, &a); err != nil {
				t.Fatal(err)
			}
			want := int64(i) + 10
			if slices.Contains(failed, i) {
				want = int64(i)
			}
			if a.Balance != want {
				t.Errorf("%v has %d, want %d", k, a.Balance, want)
			}
		}
		want := map[string]int{"user-0000003": mapper.MaxAttempts, "user-0000005": mapper.MaxAttempts, "user-0000007": 1, "user-0000009": 3}
		for name, n := range want {
			if tries[name] != n {
				t.Errorf("%s was tried %d times, want %d", name, tries[name], n)
			}
		}
	})
}

// TestFailingFunction has the function fail on everything: the job fails with
// its error, soon, and nothing is changed or lost.
func TestFailingFunction(t *testing.T) {
	for _, permanent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
				calls.Add(1)
				a.Value.Balance = -1
				err := errors.New("the bug")
				if permanent {
					err = mapper.Permanent(err)
				}
				return err
			})
			w := newWorld(t, setting{}, m)
			keys := names(1000)
			w.putAccounts(keys)
			s := over(w, m, &mapper.StartOptions{PageSize: 100, Workers: 4})
			if s.State != mapper.Failed || !strings.Contains(s.Error, "the bug") || !strings.Contains(s.Error, "of a page") {
				t.Errorf("status %+v", s)
			}
			if limit := int64(1000 * mapper.MaxAttempts); calls.Load() > limit {
				t.Errorf("the function was called %d times, want at most %d", calls.Load(), limit)
			}
			time.Sleep(48 * time.Hour)
			w.wantBalances(keys, 0)
			if s.Open == 0 {
				t.Error("no range is open for another try")
			}
		})
	}
}

// TestLogsSayNothingOfEntities has the function put an entity's contents into
// its errors and panics: they are in the records, and not in the log.
func TestLogsSayNothingOfEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			if a.Value.Balance%2 == 0 {
				panic("panic of " + a.Value.Owner)
			}
			return errors.New("failure of " + a.Value.Owner)
		})
		w := newWorld(t, setting{log: &log}, m)
		w.putAccounts(names(200))
		for _, size := range []int{5, 100} { // entities fail one by one, and as a page
			s := over(w, m, &mapper.StartOptions{PageSize: size})
			if s.State == mapper.Failed && !strings.Contains(s.Error, " of owner ") {
				t.Errorf("the record does not say why: %q", s.Error)
			}
		}
		if log.Len() == 0 || strings.Contains(log.String(), "owner") || strings.Contains(log.String(), "user-0") {
			t.Errorf("the log:\n%.2000s", log.String())
		}
	})
}

// TestMixedErrors has most entities of a page fail, some of them for good: the
// others may pass, so the job goes on trying, and ends well once they do.
func TestMixedErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outage := time.Now().Add(time.Second)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			if a.Key.Name == "user-0000007" {
				return mapper.Permanent(errors.New("never"))
			}
			if time.Now().Before(outage) {
				return errors.New("not now")
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		if s := over(w, m, nil); s.State != mapper.SucceededWithFailures || s.Failures != 1 || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestRefusedCommits has the function write what only the database refuses, and
// with it the whole commit: that entity is a failure, and the others go on.
func TestRefusedCommits(t *testing.T) {
	type grown struct {
		Balance int64
		Text    []byte `datastore:",noindex"`
	}
	type E = *mapper.Entity[grown]
	for name, spoil := range map[string]func(E){
		"larger than an entity can be": func(e E) { e.Value.Text = make([]byte, 1<<20) },
		"a large entity besides": func(e E) {
			e.Put(datastore.NameKey("Other", "x", nil), &grown{Text: make([]byte, 1<<20)})
		},
		"a long key": func(e E) {
			key := datastore.NameKey("Other", strings.Repeat("x", 1400), nil)
			for range 5 {
				key = datastore.NameKey("Other", strings.Repeat("x", 1400), key)
			}
			e.Delete(key)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("spoil", func(_ context.Context, e E, _ mapper.None) error {
				e.Value.Balance += 10
				e.Count("seen", 1)
				if e.Key.Name == "user-0000123" {
					spoil(e)
				}
				return nil
			})
			w := newWorld(t, setting{}, m)
			keys := names(500)
			accounts := make([]grown, len(keys))
			if _, err := w.client.PutMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			s := over(w, m, nil)
			if s.State != mapper.SucceededWithFailures || s.Failures != 1 || s.Processed != 499 || s.Counters["seen"] != 499 {
				t.Errorf("%s: status %+v", name, s)
			}
			if err := w.client.GetMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			for i, a := range accounts {
				if want := int64(10); i != 123 && a.Balance != want || i == 123 && a.Balance != 0 {
					t.Errorf("%s: %v has %d", name, keys[i], a.Balance)
				}
			}
		})
	}
}

// TestPanicSaysWhere checks that the record of a panic names the user's code.
func TestPanicSaysWhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("panics", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			var missing *account
			a.Value.Balance = missing.Balance
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		s := over(w, m, nil)
		for _, want := range []string{"nil pointer dereference", "TestPanicSaysWhere", "function_test.go:"} {
			if !strings.Contains(s.Error, want) {
				t.Errorf("the error does not say %q: %s", want, s.Error)
			}
		}
	})
}

// TestStructThatDoesNotFit runs over entities that don't fit the Go type: the
// error names the field, and the entities stay as they are.
func TestStructThatDoesNotFit(t *testing.T) {
	type misfit struct{ Owner int64 }
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("misfit", func(context.Context, *mapper.Entity[misfit], mapper.None) error { return nil })
		w := newWorld(t, setting{}, m)
		keys := names(50)
		w.putAccounts(keys)
		s := over(w, m, nil)
		if s.State != mapper.Failed || !strings.Contains(s.Error, `"Owner"`) {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 0)
	})
}

// TestPutsAndDeletes has the function write other entities, and delete some.
func TestPutsAndDeletes(t *testing.T) {
	type entry struct{ Account string }
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("move", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			a.Put(datastore.NameKey("Named", a.Key.Name, nil), &entry{a.Key.Name})
			a.Put(datastore.IncompleteKey("Entry", nil), &entry{a.Key.Name})
			switch a.Value.Balance % 3 {
			case 0:
				a.Delete(a.Key)
			case 1:
				a.Value.Balance += 1000
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		keys := names(300)
		w.putAccounts(keys)
		if s := over(w, m, &mapper.StartOptions{PageSize: 40}); s.State != mapper.Succeeded || s.Processed != 300 {
			t.Errorf("status %+v", s)
		}
		for i, k := range keys {
			var a account
			err := w.client.Get(t.Context(), k, &a)
			switch {
			case i%3 == 0:
				if !errors.Is(err, datastore.ErrNoSuchEntity) {
					t.Errorf("%v: %v, want it deleted", k, err)
				}
			case err != nil || a.Balance != int64(i)+int64(i%3%2)*1000:
				t.Errorf("%v has %d, %v", k, a.Balance, err)
			}
		}
		for _, kind := range []string{"Named", "Entry"} {
			var entries []entry
			if _, err := w.client.GetAll(t.Context(), datastore.NewQuery(kind), &entries); err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]int)
			for _, e := range entries {
				seen[e.Account]++
			}
			if len(entries) != 300 || len(seen) != 300 {
				t.Errorf("%s: %d entries for %d accounts, want one each for 300", kind, len(entries), len(seen))
			}
		}
	})
}

// TestPageMates has the function put and delete entities of its own page: they
// are read anew before it is their turn.
func TestPageMates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("mates", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			switch a.Key.Name {
			case "user-0000002":
				a.Put(datastore.NameKey("Account", "user-0000005", nil), &account{Balance: 5000})
			case "user-0000003":
				a.Delete(datastore.NameKey("Account", "user-0000006", nil))
			case "user-0000008":
				a.Put(datastore.NameKey("Account", "user-0000001", nil), &account{Balance: 1000})
			}
			a.Value.Balance++
			a.Count("seen", 1)
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(10))
		s := over(w, m, nil)
		if s.State != mapper.Succeeded || s.Counters["seen"] != 9 {
			t.Errorf("status %+v", s)
		}
		var accounts []account
		keys, err := w.client.GetAll(t.Context(), datastore.NewQuery("Account"), &accounts)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]int64)
		for i, k := range keys {
			got[strings.TrimLeft(k.Name, "user-0")] = accounts[i].Balance
		}
		want := map[string]int64{"": 1, "1": 1000, "2": 3, "3": 4, "4": 5, "5": 5001, "7": 8, "8": 9, "9": 10}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
	})
}

// TestMisuse checks that what a function may not do is an error of its entity.
func TestMisuse(t *testing.T) {
	key := datastore.NameKey("Other", "x", nil)
	type E = *mapper.Entity[account]
	updates := map[string]func(E){
		"put of itself":          func(e E) { e.Put(e.Key, &account{}) },
		"put of a nil key":       func(e E) { e.Put(nil, &account{}) },
		"put of a non-struct":    func(e E) { n := 5; e.Put(key, &n) },
		"put of nothing":         func(e E) { e.Put(key, nil) },
		"put of an invalid key":  func(e E) { e.Put(&datastore.Key{Kind: "A", ID: 1, Name: "both"}, &account{}) },
		"delete of a nil key":    func(e E) { e.Delete(nil) },
		"delete of no key":       func(e E) { e.Delete(datastore.IncompleteKey("Other", nil)) },
		"put of a reserved kind": func(e E) { e.Put(datastore.NameKey("__x__", "x", nil), &account{}) },
		"put without a kind":     func(e E) { e.Put(datastore.NameKey("", "x", nil), &account{}) },
		"put of a reserved name": func(e E) { e.Put(datastore.NameKey("Other", "__x__", nil), &account{}) },
		"put of a long name":     func(e E) { e.Put(datastore.NameKey("Other", strings.Repeat("x", 1501), nil), &account{}) },
		"put below no parent":    func(e E) { e.Put(datastore.NameKey("Other", "x", datastore.IncompleteKey("Other", nil)), &account{}) },
		"put in no namespace":    func(e E) { e.Put(&datastore.Key{Kind: "Other", Name: "x", Namespace: "a b"}, &account{}) },
		"delete of bad text":     func(e E) { e.Delete(datastore.NameKey("Other", "\xff", nil)) },
		"counter without name":   func(e E) { e.Count("", 1) },
		"too many counters": func(e E) {
			for i := range 101 {
				e.Count(fmt.Sprint(i), 1)
			}
		},
		"invalid text": func(e E) { e.Value.Owner = "\xff" },
		"long text":    func(e E) { e.Value.Owner = strings.Repeat("x", 1501) },
		"two keys of one text": func(e E) {
			e.Delete(datastore.IDKey("Other", 7, nil))
			e.Delete(datastore.NameKey("Other", "7", nil))
		},
	}
	visits := map[string]func(E){
		"put in a visit":    func(e E) { e.Put(key, &account{}) },
		"delete in a visit": func(e E) { e.Delete(key) },
	}
	check := func(name string, m *mapper.Mapper[mapper.None]) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, m)
			keys := names(2)
			w.putAccounts(keys)
			if s := over(w, m, nil); s.State != mapper.SucceededWithFailures || s.Failures != 2 || len(s.Counters) > 0 {
				t.Errorf("%s: status %+v", name, s)
			}
			w.wantBalances(keys, 0)
		})
	}
	for name, misuse := range updates {
		check(name, mapper.Update("m", func(_ context.Context, e E, _ mapper.None) error { e.Value.Balance++; misuse(e); return nil }))
	}
	for name, misuse := range visits {
		check(name, mapper.Visit("m", func(_ context.Context, e E, _ mapper.None) error { misuse(e); return nil }))
	}
}

// TestUseAfterReturn checks that an entity that outlives its function says so.
func TestUseAfterReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept *mapper.Entity[account]
		m := mapper.Update("keep", func(_ context.Context, e *mapper.Entity[account], _ mapper.None) error { kept = e; return nil })
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(1))
		over(w, m, nil)
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		kept.Count("late", 1)
	})
}

// TestVisit checks that a visit sees every entity, with keys that tell its
// repetitions, and that its counters are exact.
func TestVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := make(map[string][]string)
		m := mapper.Visit("look", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			a.Value.Balance = -1 // not saved
			a.Count("seen", 1)
			mu.Lock()
			defer mu.Unlock()
			calls[a.Key.Name] = append(calls[a.Key.Name], a.IdempotencyKey())
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		keys := names(1000)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{ID: "one", PageSize: 100})
		if s.State != mapper.Succeeded || s.Processed != 1000 || s.Counters["seen"] != 1000 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 0)
		distinct := make(map[string]bool)
		for _, k := range keys {
			ids := slices.Compact(slices.Clone(calls[k.Name]))
			if len(ids) != 1 {
				t.Errorf("%v was visited with the keys %v", k, ids)
				continue
			}
			distinct[ids[0]] = true
		}
		if len(distinct) != 1000 {
			t.Errorf("%d different idempotency keys, want 1000", len(distinct))
		}
		first := calls[keys[0].Name][0]
		clear(calls)
		over(w, m, &mapper.StartOptions{ID: "two"})
		if calls[keys[0].Name][0] == first {
			t.Error("two jobs have the same idempotency key")
		}
	})
}

// TestUnchangedIsNotWritten counts the writes of an update that changes a part
// of the entities, and of one that touches them.
func TestUnchangedIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		some := mapper.Update("some", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			if a.Value.Balance%10 == 0 {
				a.Value.Balance++
			}
			return nil
		})
		touch := mapper.Update("touch", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			a.Touch()
			return nil
		})
		w := newWorld(t, setting{}, some, touch)
		w.putAccounts(names(1000))
		for _, c := range []struct {
			m    *mapper.Mapper[mapper.None]
			want int64
		}{{some, 100}, {touch, 1000}} {
			before := w.emulator.Usage()
			s := over(w, c.m, nil)
			writes := w.emulator.Usage().Sub(before).Writes - 2*s.Tasks
			if writes < c.want || writes > c.want+5 || s.Processed != 1000 {
				t.Errorf("%s: %d writes besides the ranges', want %d: %+v", c.m.Name(), writes, c.want, s)
			}
		}
	})
}

// TestSlowPages has the function take so long that pages end before their
// entities do.
func TestSlowPages(t *testing.T) {
	for _, define := range []func(string, func(context.Context, *mapper.Entity[account], mapper.None) error) *mapper.Mapper[mapper.None]{
		mapper.Update[account, mapper.None], mapper.Visit[account, mapper.None],
	} {
		synctest.Test(t, func(t *testing.T) {
			m := define("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
				time.Sleep(200 * time.Millisecond)
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(100))
			s := over(w, m, &mapper.StartOptions{PageSize: 50, PageTime: time.Second})
			if s.State != mapper.Succeeded || s.Counters["seen"] != 100 || s.Pages < 15 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestSlowFunctions compares how long jobs over slow functions take with what
// they would ideally: what is left of a page that took its time is spread, and
// not done one page after the other.
func TestSlowFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		entities, workers int
		cost              func(i int) time.Duration
		most              float64 // of the ideal
	}{
		"all of them": {2000, 20, func(int) time.Duration { return 100 * time.Millisecond }, 2},
		"a slow tenth": {20000, 20, func(i int) time.Duration {
			return time.Duration(2+98*boolToInt(i >= 9000 && i < 11000)) * time.Millisecond
		}, 2},
		"a slow page": {20000, 20, func(i int) time.Duration {
			return time.Duration(2+98*boolToInt(i >= 10000 && i < 10500)) * time.Millisecond
		}, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ideal time.Duration
			for i := range c.entities {
				ideal += c.cost(i) / time.Duration(c.workers)
			}
			m := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
				time.Sleep(c.cost(int(a.Value.Balance)))
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t, setting{queue: &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(c.workers)}}}, m)
			w.putAccounts(names(c.entities))
			begun := time.Now()
			s := over(w, m, &mapper.StartOptions{Workers: c.workers})
			ratio := float64(time.Since(begun)) / float64(ideal)
			t.Logf("%s: %.2f of the ideal by %d pages", name, ratio, s.Pages)
			if s.State != mapper.Succeeded || s.Counters["seen"] != int64(c.entities) || ratio > c.most {
				t.Errorf("%s: %.2f of the ideal, want at most %.1f: %+v", name, ratio, c.most, s)
			}
		})
	}
}

// TestLargeEntities updates entities of which a page does not fit a commit.
func TestLargeEntities(t *testing.T) {
	type large struct {
		Text []byte `datastore:",noindex"`
		N    int
	}
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("grow", func(_ context.Context, a *mapper.Entity[large], _ mapper.None) error { a.Value.N++; return nil })
		w := newWorld(t, setting{}, m)
		keys := names(60)
		for _, k := range keys {
			if _, err := w.client.Put(t.Context(), k, &large{Text: make([]byte, 900<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		s := over(w, m, nil)
		if s.State != mapper.Succeeded || s.Processed != 60 {
			t.Errorf("status %+v", s)
		}
		for _, k := range keys {
			var l large
			if err := w.client.Get(t.Context(), k, &l); err != nil || l.N != 1 || len(l.Text) != 900<<10 {
				t.Errorf("%v: N %d, %d bytes, %v", k, l.N, len(l.Text), err)
			}
		}
	})
}

// TestManyCounters has the pages of a job count under more names than a job
// shows: what is above adds up as one.
func TestManyCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Visit("count", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			a.Count("c-"+a.Key.Name, 1)
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(500))
		s := over(w, m, &mapper.StartOptions{PageSize: 50})
		sum := int64(0)
		for _, n := range s.Counters {
			sum += n
		}
		if s.State != mapper.Succeeded || sum != 500 || len(s.Counters) > 101 {
			t.Errorf("%q: %d counters add up to %d", s.State, len(s.Counters), sum)
		}
	})
}
