package undo

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestUndo undoes pages of a job over the entities 1, 2, 3 and 11. The job's query does not include
// the entities 51 and 52.
func TestUndo(t *testing.T) {
	unknown := []string{"unknown"}
	for _, c := range []struct {
		name string
		job  func(w *world) // writes of the job and of other clients
		want [][]string     // for each page, the effect of its undo
	}{
		{"nothing was written", func(w *world) { w.page(0, nil); w.page(1, nil) }, [][]string{nil, nil}},
		{"a page is open", func(w *world) { w.page(0, to{1: 7}) }, [][]string{{"1 becomes 1"}, nil}},
		{"changed", func(w *world) { w.page(0, to{1: 7, 3: 8}); w.page(1, to{11: 9}) },
			[][]string{{"1 becomes 1", "3 becomes 3"}, {"11 becomes 11"}}},
		{"deleted", func(w *world) { w.page(0, to{1: gone, 2: gone, 3: gone}) },
			[][]string{{"1 becomes 1", "2 becomes 2", "3 becomes 3"}}},
		{"put", func(w *world) { w.page(0, to{51: 7, 99: 7}) }, [][]string{{"51 becomes 51", "99 deleted"}}},
		{"somebody has changed one since", func(w *world) { w.page(0, to{1: 7, 2: 7}); w.somebody(to{1: 8}) },
			[][]string{{"2 becomes 2", "1 stays: " + whyChanged}}},
		{"somebody has deleted one since", func(w *world) { w.page(0, to{1: 7, 2: 7}); w.somebody(to{1: gone}) },
			[][]string{{"2 becomes 2", "1 stays: " + whyDeleted}}},
		{"somebody has put it back", func(w *world) { w.page(0, to{1: 7, 2: 7}); w.somebody(to{1: 1}) },
			[][]string{{"2 becomes 2"}}},
		{"somebody has changed another one", func(w *world) { w.page(0, to{1: 7}); w.somebody(to{2: 9}) },
			[][]string{{"1 becomes 1"}}},
		{"somebody had changed it before the page", func(w *world) { w.somebody(to{1: 5}); w.page(0, to{1: 7}) },
			[][]string{{"1 becomes 5"}}},
		{"two pages have put one: that of the last page restores it", func(w *world) {
			w.page(0, to{51: 7})
			w.page(1, to{51: 8})
		}, [][]string{nil, {"51 becomes 51"}}},
		{"two pages, and one that was not there", func(w *world) { w.page(0, to{99: 7}); w.page(1, to{99: 8}) },
			[][]string{nil, {"99 deleted"}}},
		{"one deletes what the other has put", func(w *world) { w.page(0, to{51: 7}); w.page(1, to{51: gone}) },
			[][]string{nil, {"51 becomes 51"}}},
		{"somebody was between the two: the undo goes back to his state", func(w *world) {
			w.page(0, to{51: 7})
			w.somebody(to{51: 6})
			w.page(1, to{51: 8})
		}, [][]string{{"51 stays: " + whyChanged}, {"51 becomes 6"}}},
		{"somebody has deleted what was put", func(w *world) { w.page(0, to{99: 7}); w.somebody(to{99: gone}) },
			[][]string{nil}},
		{"somebody has put what was deleted", func(w *world) { w.page(0, to{51: gone}); w.somebody(to{51: 6}) },
			[][]string{{"51 stays: " + whyChanged}}},
		{"a page deletes it again: the undo goes back to what somebody has put", func(w *world) {
			w.page(0, to{51: gone})
			w.somebody(to{51: 6})
			w.page(1, to{51: gone})
			// two reads of the past may miss an entity that existed only for a while
		}, [][]string{unknown, {"51 becomes 6"}}},
		{"a page deletes it, and another puts it", func(w *world) { w.page(0, to{51: gone}); w.page(1, to{51: 7}) },
			[][]string{nil, {"51 becomes 51"}}},
		{"and deleted it again, after the job had ended", func(w *world) {
			w.page(0, to{51: gone})
			w.somebody(to{51: 6})
			w.end() // the undo reads the past at this time
			w.somebody(to{51: gone})
		}, [][]string{{"51 stays: " + whyDeleted}}},
		{"and deleted it again, and the undo comes after an hour", func(w *world) {
			time.Sleep(5 * time.Minute)
			w.page(0, to{1: gone})
			w.somebody(to{1: 6}) // after the last whole minute before the job's end
			w.end()
			time.Sleep(2 * time.Minute)
			w.somebody(to{1: gone})
			time.Sleep(2 * time.Hour)
		}, [][]string{{"1 stays: " + whyDeleted}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, ended := range []bool{false, true} {
				inWorld(t, 2, []int64{1, 2, 3, 11, 51, 52}, func(w *world) {
					if c.job(w); ended && w.job.Ended.IsZero() {
						w.end()
						time.Sleep(5 * time.Minute)
					}
					for n, want := range c.want {
						if !slices.Equal(want, unknown) {
							w.wantUndo(n, want...)
						}
					}
				})
			}
		})
	}
}

// TestRefused undoes pages that can't be undone. The error must be permanent.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world, r *record.Range) // what happens after the page
		want error
		says string
	}{
		{name: "it is as it was", then: func(*world, *record.Range) {}, says: "1 becomes 1"},
		{name: "its record is gone", then: func(w *world, r *record.Range) {
			w.commit(func(tx *datastore.Transaction) error { return tx.Delete(r.Key()) })
		}, want: errGone},
		{name: "its record was changed since", then: func(w *world, r *record.Range) {
			r.Pace++
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(r.Update()); return err })
		}, want: errChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 1, []int64{1}, func(w *world) {
				w.page(0, map[int64]int64{1: 7})
				c.then(w, w.ranges[0])
				e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref()}, w.ranges[0].Key(), nil)
				if !errors.Is(err, c.want) || err != nil && !fault.IsPermanent(err) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if err == nil && says(e) != c.says {
					t.Errorf("%s, want %s", says(e), c.says)
				}
			})
		})
	}
}

// TestOther undoes pages whose records do not match what their commits wrote.
func TestOther(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *record.Range)
		says   string
		wrong  error
	}{
		{"an older build has not recorded it", func(r *record.Range) { r.Wrote = nil }, "", errOld},
		{"it has failed: nothing was written", func(r *record.Range) { r.Failed, r.Wrote = "j", nil }, "", nil},
		{"nothing was written", func(*record.Range) {}, "", nil},
		{"there was no room for all", func(r *record.Range) { r.Wrote = (&undolog.Wrote{Lost: 3}).Encode() },
			"0 stays: the page has put or deleted 3 other entities that its record had no room for", nil},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			r := w.ranges[0]
			r.State, r.Open, r.Wrote = record.Done, "", (&undolog.Wrote{}).Encode()
			c.change(r)
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(r.Update()); return err })
			e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref()}, r.Key(), nil)
			if !errors.Is(err, c.wrong) || err == nil && says(e) != c.says {
				t.Errorf("%s: %v, want %v, %s", c.name, err, c.wrong, c.says)
			}
		})
	}
}

// TestCheck checks that Check reports, before an undo starts, whether a job can be undone.
func TestCheck(t *testing.T) {
	for age, ok := range map[time.Duration]bool{time.Minute: true, 2 * time.Hour: true, 24 * 8 * time.Hour: false} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, map[int64]int64{1: 7})
			w.end()
			time.Sleep(age)
			if err := Check(w.Context(), w.client, w.job); (err == nil) != ok || err != nil &&
				!errors.Is(err, record.ErrState) {
				t.Errorf("after %v: %v", age, err)
			}
		})
	}
}

// TestNames checks the names of mappers that undo jobs.
func TestNames(t *testing.T) {
	if name := Name("m"); !Is(name) || Name(name) != name || Is("m") {
		t.Errorf("%q undoes m, and %q that", name, Name(name))
	}
	_, err := Mapper(&function.Definition{Name: "m"}, nil, nil, new(atomic.Int64)).Canonical([]byte(`{"other":1}`))
	if err == nil {
		t.Error("parameters of something else are an undo's")
	}
	q := Records(&record.Job{ID: "j", Incarnation: "0123456789abcdef01234567"})
	root := (&record.Job{ID: "j", Incarnation: "0123456789abcdef01234567"}).Root()
	key := record.RangeKey(record.Ref{ID: "j", Incarnation: "0123456789abcdef01234567"}, root)
	if keyspace.CompareKeys(q.Start, key) > 0 || keyspace.CompareKeys(key, q.End) >= 0 {
		t.Errorf("the record %v is not in [%v, %v)", key, q.Start, q.End)
	}
}
