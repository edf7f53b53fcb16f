package undo

import (
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// stored returns the result of looking up an entity with a version.
func stored(id, n, version int64) *pb.EntityResult {
	return &pb.EntityResult{Version: version, Entity: &pb.Entity{Key: pbvalue.Key(keyOf(id)),
		Properties: map[string]*pb.Value{"N": {ValueType: &pb.Value_IntegerValue{IntegerValue: n}}}}}
}

// described returns an outcome as text.
func described(o *outcome) string {
	var all []string
	for _, c := range o.changes {
		what := "is deleted"
		if c.image != nil {
			what = fmt.Sprintf("becomes %d", c.image.Properties["N"].GetIntegerValue())
		}
		all = append(all, fmt.Sprintf("%d of version %d %s", c.key.ID, c.version, what))
	}
	for _, l := range o.left {
		all = append(all, fmt.Sprintf("%d stays: %s", l.Key.ID, l.Why))
	}
	return strings.Join(all, ", ")
}

// TestTake checks what an outcome has for each decision about an entity.
func TestTake(t *testing.T) {
	image := stored(1, 5, 0).Entity
	for _, c := range []struct {
		name string
		all  []*entity
		want string
		left int64
	}{
		{"it becomes what it was", []*entity{{now: stored(1, 7, 3), becomes: image}}, "1 of version 3 becomes 5", 0},
		{"it is there again", []*entity{{becomes: image}}, "1 of version 0 becomes 5", 0},
		{"it is deleted", []*entity{{now: stored(1, 7, 3)}}, "1 of version 3 is deleted", 0},
		{"it is deleted already", []*entity{{}}, "", 0},
		{"it stays", []*entity{{now: stored(1, 7, 3), becomes: image, why: whyChanged}}, "1 stays: " + whyChanged, 1},
		{"it stays deleted", []*entity{{becomes: image, why: whyDeleted}}, "1 stays: " + whyDeleted, 1},
		{"it is not there, and it is not known what it was", []*entity{{why: whyUnkept}}, "1 stays: " + whyUnkept, 1},
		{"nothing remains to be done", []*entity{{now: stored(1, 7, 3), becomes: image, passed: true}}, "", 0},
		{"nor to be listed", []*entity{{why: whyChanged, passed: true}}, "", 0},
		{"it is as before already", []*entity{{now: stored(1, 5, 3), becomes: image, why: whyChanged, already: true}},
			"", 0},
		{"two commits of the page have deleted it", []*entity{{becomes: image}, {becomes: stored(1, 6, 0).Entity}},
			"1 of version 0 becomes 5, 1 stays: " + whyTwice, 1},
	} {
		u := undoer{most: together, history: newHistory()}
		o := newOutcome(function.Job{}, "page")
		for _, e := range c.all {
			e.key = keyOf(1)
			if err := u.take(t.Context(), o, []*entity{e}); err != nil {
				t.Fatal(err)
			}
		}
		if got := described(o); got != c.want || o.kept != c.left {
			t.Errorf("%s: %s, %d left, want %s", c.name, got, o.kept, c.want)
		}
	}
}

// TestSeen undoes a page whose record names an entity twice: as one of the page's own entities, and
// as another one that its function has put.
func TestSeen(t *testing.T) {
	inWorld(t, 1, []int64{1}, func(w *world) {
		w.wrote = func(wrote *undolog.Wrote) { wrote.Others = keysOf(1) }
		w.page(0, to{1: 7})
		w.wantUndo(0, "1 becomes 1")
	})
}

// TestRestoredBefore lets another client change an entity that a batch of an earlier attempt has
// restored. The entity must count as restored, and not also as left.
func TestRestoredBefore(t *testing.T) {
	inWorld(t, 1, []int64{1, 2}, func(w *world) {
		w.page(0, to{1: 7, 2: 7})
		w.most.Store(1)
		if _, err := w.run(0); err != nil || w.n(1) != 1 {
			t.Fatalf("it is %d, %v", w.n(1), err)
		}
		w.somebody(to{1: 9})
		e, err := w.run(0)
		if err != nil || says(e) != "" || counted(t, e) != "map[restored:2]" {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// TestBatchRecords undoes pages that have records of batches which can't be used.
func TestBatchRecords(t *testing.T) {
	other := func(w *world, job *record.Job, page string, wrote []byte) {
		w.commit(func(tx *datastore.Transaction) error {
			_, err := tx.Put(record.BatchKey(job.Ref(), page+".b"),
				&record.Batch{Job: job.ID, Incarnation: job.Incarnation, Page: page, Wrote: wrote, Restored: 1})
			return err
		})
	}
	t.Run("of the undo", func(t *testing.T) {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, to{1: 7})
			other(w, w.undo, w.ranges[0].ID, []byte("\x00x"))
			_, err := w.run(0)
			if !fault.IsPermanent(err) || !strings.Contains(err.Error(), "what a page has written") {
				t.Errorf("%v", err)
			}
			rehearses := function.Job{Ref: w.undo.Ref(), Rehearses: true}
			e, err := w.function()(w.Context(), rehearses, w.ranges[0].Key(), nil)
			if err != nil || says(e) == "" {
				t.Errorf("a rehearsal, which has no batches: %v", err)
			}
		})
	})
	for _, c := range []struct {
		name  string
		wrote []byte
		plain bool // whether the database returns no versions of batches
		want  string
	}{
		{"damaged", []byte("\x00x"), false, "what a page has written"},
		{"of an older build", nil, false, errOld.Error()},
		{"without a version", (&undolog.Wrote{Others: keysOf(1)}).Encode(), true, errNoVersions.Error()},
	} {
		t.Run("of an undo that is undone: "+c.name, func(t *testing.T) {
			inWorld(t, 1, []int64{1}, func(w *world) {
				w.page(0, to{1: 7})
				w.end()
				w.begin([]int{0})
				w.undoes(0, 0)
				other(w, w.undo, w.ranges[0].ID, c.wrote)
				if c.plain {
					w.taps(func(_, resp any, pass func() error) error {
						err := pass()
						if resp, ok := resp.(*pb.RunQueryResponse); ok {
							for _, r := range resp.GetBatch().GetEntityResults() {
								r.Version = 0
							}
						}
						return err
					})
				}
				if _, err := w.again().run(0); !fault.IsPermanent(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
			})
		})
	}
}

// TestAloneBatches looks for batches of an undo's ranges. The range of a single page has no
// batches, because they belong to the range that had this page before.
func TestAloneBatches(t *testing.T) {
	inWorld(t, 3, []int64{1, 11, 21}, func(w *world) {
		for n := range w.ranges {
			w.page(n, to{int64(10*n + 1): 7})
		}
		w.end()
		w.begin([]int{0}, []int{1, 2})
		w.most.Store(1)
		w.undoes(1, 1, 2)
		alone := *w.parts[1]
		alone.Alone, alone.End = true, nil
		for _, c := range []struct {
			r    *record.Range
			want int
		}{{w.parts[0], 0}, {w.parts[1], 2}, {&alone, 0}} {
			if all, err := w.again().undoer().batchesOf(w.Context(), c.r); err != nil || len(all) != c.want {
				t.Errorf("%v to %v, alone %v: %v, %v", c.r.Start, c.r.End, c.r.Alone, all, err)
			}
			w.commit(func(tx *datastore.Transaction) error { return tx.Delete(record.JobKey("undo-undo-j")) })
		}
	})
}
