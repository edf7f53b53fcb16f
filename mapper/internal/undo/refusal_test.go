package undo

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestParams gives undos invalid parameters, and checks the errors.
func TestParams(t *testing.T) {
	m := Mapper(&function.Definition{Name: "m"}, nil, nil, new(atomic.Int64))
	for params, want := range map[string]string{
		`{"job":7}`: "job", `{"other":7,"query":{"kind":"K"}}`: "other",
		`{"job":"j","incarnation":"i","query":[]}`: "params: query", `{"job":"j","incarnation":"i"}`: "params: query",
	} {
		if f, err := m.Prepare([]byte(params), true); f != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", params, err, want)
		}
	}
}

// refuse makes the database refuse all reads of the past, or all except whole minutes if minutes is
// set.
func (w *world) refuse(minutes bool) {
	w.taps(func(req, _ any, pass func() error) error {
		if at := readTime(req); !at.IsZero() && (!minutes || !at.Equal(at.Truncate(time.Minute))) {
			return status.Error(codes.InvalidArgument, "the past is not kept")
		}
		return pass()
	})
}

// TestPastRefused undoes pages in a database that does not serve their past. The undo then tries
// the last whole minute before the page. If the database refuses this, too, the undo of the page
// must fail. Check must report the same before the undo starts.
func TestPastRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		age     time.Duration // age of the page
		minutes bool          // whether the database serves whole minutes
		undone  bool
	}{
		{"the page seems young, because the process' clock is slow", time.Minute, true, true},
		{"it is old", 2 * time.Hour, true, true},
		{"not even minutes are kept", 2 * time.Hour, false, false},
		{"the page is young, and nothing is kept", time.Minute, false, false},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			time.Sleep(10*time.Minute + 30*time.Second)
			w.page(0, to{1: 7})
			committed := time.Now()
			w.end()
			w.begin()
			time.Sleep(c.age - time.Since(committed))
			w.refuse(c.minutes)
			_, err := w.run(0)
			check := Check(w.Context(), w.client, w.job)
			if c.undone {
				if err != nil || check != nil {
					t.Errorf("%s: %v; %v", c.name, err, check)
				}
				return
			}
			if !fault.IsPermanent(err) || !strings.Contains(err.Error(), "the past is not kept") {
				t.Errorf("%s: %v", c.name, err)
			}
			if !errors.Is(check, record.ErrState) || !strings.Contains(check.Error(), "the past is not kept") {
				t.Errorf("%s: the check says %v", c.name, check)
			}
		})
	}
}

// TestChecked checks jobs before an undo. Only the past of a job's first page matters.
func TestChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world)
		ok   bool
	}{
		{"it has no page, and started a week ago", func(*world) { time.Sleep(8 * 24 * time.Hour) }, true},
		{"its first page is from today", func(w *world) { time.Sleep(8 * 24 * time.Hour); w.page(0, to{1: 7}) }, true},
		{"its first page's record is gone", func(w *world) {
			w.commit(func(tx *datastore.Transaction) error { return tx.Delete(w.ranges[0].Key()) })
		}, false},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			c.then(w)
			if err := Check(w.Context(), w.client, w.job); (err == nil) != c.ok || !c.ok &&
				!errors.Is(err, record.ErrState) {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
}

// TestCheckFails fails each call of Check, one at a time. The error must be temporary, and not say
// that the job can't be undone.
func TestCheckFails(t *testing.T) {
	for _, age := range []time.Duration{time.Minute, 2 * time.Hour} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, to{1: 7})
			time.Sleep(age)
			for after, failed := 0, true; failed; after++ {
				var err error
				failed = w.fail(after, false, func() { err = Check(w.Context(), w.client, w.job) })
				if failed != (err != nil) || errors.Is(err, record.ErrState) {
					t.Errorf("call %d after %v: %v", after, age, err)
				}
			}
		})
	}
}
