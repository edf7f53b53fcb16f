package mapper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestBadNeighbours has up to 5% of a page be bad, in several ways at once: they are
// failures, and neither the job nor their neighbours are to blame, also when the page
// is halved for one of them.
func TestBadNeighbours(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		bad      int
		do       func(ctx context.Context, i int, a *mapper.Entity[growing]) error
		store    any
		options  mapper.StartOptions
		failures int64
	}{
		"permanent, and one that is too large": {bad: 13, failures: 13,
			do: func(_ context.Context, i int, a *mapper.Entity[growing]) error {
				if i == 12 {
					a.Value.Note = strings.Repeat("x", 1<<20)
					return nil
				}
				return mapper.Permanent(errors.New("no"))
			}},
		"hanging": {bad: 24, failures: 24, do: func(ctx context.Context, _ int, _ *mapper.Entity[growing]) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		"undecodable, more than 5%, and no limit": {bad: 30, failures: 30,
			options: mapper.StartOptions{FailureLimit: -1},
			store:   &struct{ Balance, Owner string }{"much", "somebody"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keys := names(5000)
				place := make(map[string]int)
				for i, k := range keys[2000 : 2000+c.bad] {
					place[k.Name] = i
				}
				m := mapper.Update("neighbours",
					func(ctx context.Context, a *mapper.Entity[growing], _ mapper.NoParams) error {
						a.Value.Balance += 10
						if i, bad := place[a.Key.Name]; bad && c.do != nil {
							return c.do(ctx, i, a)
						}
						return nil
					})
				w := newWorld(t, setting{queue: few(20)}, m)
				w.putAccounts(keys)
				for _, k := range keys[2000 : 2000+c.bad] {
					if c.store != nil {
						if _, err := w.client.Put(t.Context(), k, c.store); err != nil {
							t.Fatal(err)
						}
					}
				}
				s := over(w, m, &c.options)
				if s.State != mapper.StateSucceededWithFailures || s.Failures != c.failures ||
					s.Processed != 5000-c.failures || s.Ended.Sub(s.Created) > 2*time.Hour {
					t.Errorf("after %v: %+v", s.Ended.Sub(s.Created), s)
				}
				w.wantBalances(keys[:2000], 10)
			})
		})
	}
}

// TestBugs runs functions that fail on everything, quickly, slowly, or by hanging, and
// in small pages: the job gives up before many entities have a range of their own.
func TestBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	broken := errors.New("the bug")
	slow := func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
		time.Sleep(400 * time.Millisecond)
		return broken
	}
	hang := func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, c := range map[string]struct {
		m       *mapper.Mapper[mapper.NoParams]
		options mapper.StartOptions
	}{
		"slow": {m: mapper.Update("slow", slow)},
		"small": {m: mapper.Update("small", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return broken
		}), options: mapper.StartOptions{PageSize: 10}},
		"hanging": {m: mapper.Update("hanging", hang)}, "hanging visit": {m: mapper.Visit("hanging", hang)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(20)}, c.m)
				w.putAccounts(names(2000))
				c.options.ID = "j"
				s := over(w, c.m, &c.options)
				alone := 0
				for _, r := range records(t, w.client)["j"] {
					if r.Alone {
						alone++
					}
				}
				if s.State != mapper.StateFailed || !strings.Contains(s.Error, "the function failed on") ||
					s.Processed > 0 || alone > 400 || s.Ended.Sub(s.Created) > 2*time.Hour {
					t.Errorf("after %v, %d entities have a range of their own: %+v", s.Ended.Sub(s.Created), alone, s)
				}
				t.Logf("%v, %d entities have a range of their own", s.Ended.Sub(s.Created), alone)
			})
		})
	}
}
