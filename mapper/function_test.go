package mapper_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// over runs a mapper without parameters over the accounts, to its end.
func over(w *world, m *mapper.Mapper[mapper.NoParams], o *mapper.StartOptions) *mapper.Status {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := make(map[string]int)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
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
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 3 || s.Processed != 297 ||
			s.Counters["seen"] != 297 {
			t.Errorf("status %+v", s)
		}
		failed := []int{3, 5, 7}
		for i, k := range keys {
			a := w.account(k)
			want := int64(i) + 10
			if slices.Contains(failed, i) {
				want = int64(i)
			}
			if a.Balance != want {
				t.Errorf("%v has %d, want %d", k, a.Balance, want)
			}
		}
		want := map[string]int{"user-0000003": mapper.DefaultUpdateAttempts,
			"user-0000005": mapper.DefaultUpdateAttempts,
			"user-0000007": 1, "user-0000009": 3}
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
	t.Parallel()
	for _, permanent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
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
			s := over(w, m, &mapper.StartOptions{PageSize: 100, ExpectedWorkers: 4})
			if s.State != mapper.StateFailed || !strings.Contains(s.Error, "the bug") ||
				!strings.Contains(s.Error, "of a page") {
				t.Errorf("status %+v", s)
			}
			if limit := int64(1000 * mapper.DefaultUpdateAttempts); calls.Load() > limit {
				t.Errorf("the function was called %d times, want at most %d", calls.Load(), limit)
			}
			time.Sleep(48 * time.Hour)
			w.wantBalances(keys, 0)
			if s.OpenRanges == 0 {
				t.Error("no range is open for another try")
			}
		})
	}
}

// TestLogsSayNothingOfEntities has the function put an entity's contents into
// its errors and panics: they are in the records, and not in the log.
func TestLogsSayNothingOfEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%2 == 0 {
				panic("panic of " + a.Value.Owner)
			}
			return errors.New("failure of " + a.Value.Owner)
		})
		w := newWorld(t, setting{log: &log}, m)
		w.putAccounts(names(200))
		for _, size := range []int{5, 100} { // entities fail one by one, and as a page
			s := over(w, m, &mapper.StartOptions{PageSize: size})
			if s.State == mapper.StateFailed && !strings.Contains(s.Error, " of owner ") {
				t.Errorf("the record does not say why: %q", s.Error)
			}
		}
		if log.String() == "" || strings.Contains(log.String(), "owner") || strings.Contains(log.String(), "user-0") {
			t.Errorf("the log:\n%.2000s", log.String())
		}
	})
}

// TestMixedErrors has most entities of a page fail, some of them for good: the
// others may pass, so the job goes on trying, and ends well once they do.
func TestMixedErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outage := time.Now().Add(time.Second)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
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
		if s := over(w, m, nil); s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestRefusedCommits has the function write what only the database refuses, and
// with it the whole commit: that entity is a failure, and the others go on.
func TestRefusedCommits(t *testing.T) {
	t.Parallel()
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
			m := mapper.Update("spoil", func(_ context.Context, e E, _ mapper.NoParams) error {
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
			if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 499 ||
				s.Counters["seen"] != 499 {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("panics", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
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
	t.Parallel()
	type misfit struct{ Owner int64 }
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("misfit", func(context.Context, *mapper.Entity[misfit], mapper.NoParams) error {
			return nil
		})
		w := newWorld(t, setting{}, m)
		keys := names(50)
		w.putAccounts(keys)
		s := over(w, m, nil)
		if s.State != mapper.StateFailed || !strings.Contains(s.Error, `"Owner"`) {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 0)
	})
}
