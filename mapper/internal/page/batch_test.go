package page

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// TestBatches checks how many calls a function over 100 entities gets in batches, and which
// entities fail.
func TestBatches(t *testing.T) {
	later := fault.RetryAfter(errBad, time.Second)
	some := func(err error, ids ...int64) func(c *call, n int64) error {
		return func(c *call, _ int64) error {
			if slices.Contains(ids, c.id) {
				return err
			}
			return nil
		}
	}
	for _, c := range []struct {
		name  string
		batch int
		fn    func(c *call, n int64) error // called for each entity; n is the number of calls so far
		with  func(p *Page)
		calls int64
		want  string
		err   string
	}{
		{name: "all in one", batch: 500, fn: some(nil), calls: 1, want: "100 reached, 100 done"},
		{name: "the last one is smaller", batch: 30, fn: some(nil), calls: 4, want: "100 reached, 100 done"},
		{name: "two entities fail", batch: 50, fn: some(errBad, 7, 60), calls: 2,
			want: "100 reached, 98 done; failed 7, 60"},
		{name: "one entity fails its batch", batch: 100, fn: some(errWhole, 30), calls: 15,
			want: "100 reached, 99 done; failed 30"},
		{name: "two fail it permanently", batch: 100, fn: some(fault.Permanent(errWhole), 30, 77), calls: 27,
			want: "100 reached, 98 done; failed 30 permanently, 77 permanently"},
		{name: "too many fail it for a page", batch: 100, fn: func(c *call, _ int64) error {
			if c.id%8 == 0 {
				return errWhole
			}
			return nil
		}, calls: 86, want: "100 reached, 77 done; failed 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 89, 90, 91, 92, " +
			"93, 94, 95, 96, 97, 98, 99, 100"},
		{name: "one panics", batch: 100, fn: func(c *call, _ int64) error {
			if c.id == 100 {
				panic("ouch")
			}
			return nil
		}, calls: 13, want: "100 reached, 99 done; failed 100"},
		{name: "the service has a bad moment", batch: 50, fn: func(_ *call, n int64) error {
			if n == 1 {
				return errWhole
			}
			return nil
		}, calls: 4, want: "100 reached, 100 done"},
		{name: "some are refused for a moment", batch: 50, fn: func(c *call, n int64) error {
			if n <= 2 && c.id%10 == 1 {
				return later
			}
			return nil
		}, calls: 4, want: "100 reached, 100 done"},
		{name: "a batch is refused for a moment", batch: 50, fn: func(_ *call, n int64) error {
			if n == 1 {
				return fault.RetryAfter(errWhole, time.Second)
			}
			return nil
		}, calls: 3, want: "100 reached, 100 done"},
		{name: "the service goes away", batch: 20, fn: func(c *call, _ int64) error {
			if c.id > 25 {
				return later
			}
			return nil
		}, calls: 4, want: "25 reached, 25 done"},
		{name: "the service is away", batch: 20, fn: some(later, idsTo(100)...), calls: 3,
			err: "refuses most calls"},
		{name: "it has been away for an hour", batch: 20, fn: some(later, idsTo(100)...),
			with: func(p *Page) { p.Impatient = true }, calls: 3, want: "1 reached, 0 done; failed 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := new(atomic.Int64)
				p := over(kindOf(idsTo(100)...), function.Visit, func(of *call) error { return c.fn(of, calls.Load()) },
					idsTo(100)...)
				p.BatchSize, p.Pause, p.Job.PageTime = c.batch, 10*time.Second, int64(time.Hour)
				p.Paces.Expect(p.Job.Ref(), 100)
				slowly(p, 100*time.Millisecond, calls)
				if c.with != nil {
					c.with(p)
				}
				o, err := p.Run(t.Context())
				if calls.Load() != c.calls {
					t.Errorf("%d calls, want %d", calls.Load(), c.calls)
				}
				if c.err != "" {
					refusal := new(fault.Refusal)
					if !errors.As(err, refusal) || !strings.Contains(err.Error(), c.err) || !refusal.Later {
						t.Errorf("%v, want %q", err, c.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := said(o); got != c.want {
					t.Errorf("%s\nwant %s", got, c.want)
				}
			})
		})
	}
}

// TestBatchesAllFail checks a function that fails on everything. After a few calls, all entities
// must fail, so that the page is retried as a whole.
func TestBatchesAllFail(t *testing.T) {
	for _, n := range []int64{8, 100, 500} {
		synctest.Test(t, func(t *testing.T) {
			calls := new(atomic.Int64)
			p := over(kindOf(idsTo(n)...), function.Update, func(*call) error { return errWhole }, idsTo(n)...)
			p.BatchSize, p.Pause, p.Job.PageSize, p.Job.PageTime = 500, 10*time.Second, 500, int64(time.Hour)
			p.Paces.Expect(p.Job.Ref(), 100)
			slowly(p, 10*time.Millisecond, calls)
			o, err := p.Run(t.Context())
			if err != nil || len(o.Failures) != int(n) || calls.Load() > 40 {
				t.Errorf("%d of %d failed after %d calls, %v", len(o.Failures), n, calls.Load(), err)
			}
		})
	}
}

// TestBatchEnds checks a page that searches for the entities at fault in a failed batch. It must
// end if its time is over, or if its process drains.
func TestBatchEnds(t *testing.T) {
	for _, drains := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			begun, calls := time.Now(), new(atomic.Int64)
			p := over(kindOf(idsTo(100)...), function.Update, func(*call) error { return errWhole }, idsTo(100)...)
			p.BatchSize = 100
			if drains {
				p.Ends = func() bool { return time.Since(begun) > 10*time.Second }
			} else {
				p.Job.PageTime = int64(5 * time.Second)
			}
			slowly(p, time.Second, calls)
			o, err := p.Run(t.Context())
			if took := time.Since(begun); err != nil || o.Reached == 0 || o.Reached > 10 ||
				len(o.Failures) != o.Reached || took > 20*time.Second {
				t.Errorf("%s, %v, after %v", said(o), err, took)
			}
		})
	}
}

// TestBatchHangs checks a batch that hangs. The page must end before it. If it is the page's first
// batch, the page must be retried with fewer entities.
func TestBatchHangs(t *testing.T) {
	for hangs, want := range map[int64]string{5: "a batch of 10: ", 25: "20 reached, 20 done"} {
		synctest.Test(t, func(t *testing.T) {
			p := over(kindOf(idsTo(100)...), function.Update, func(c *call) error {
				if c.id == hangs {
					time.Sleep(time.Hour)
				}
				return nil
			}, idsTo(100)...)
			p.BatchSize, p.Job.PageTime = 10, int64(time.Hour)
			o, err := p.Run(t.Context())
			if batch := new(BatchError); errors.As(err, batch) {
				if !strings.HasPrefix(err.Error(), want) || batch.Entities != 10 {
					t.Errorf("%v, want %s", err, want)
				}
			} else if got := fmt.Sprint(said(o)); err != nil || got != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
			if p.Strays.Load() != 1 {
				t.Errorf("%d strays", p.Strays.Load())
			}
			time.Sleep(time.Hour)
		})
	}
}
