package undo

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// batches returns the numbers of restored and deleted entities of each batch of the undo.
func (w *world) batches() (all []string) {
	w.Helper()
	var records []*record.Batch
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery(record.BatchKind), &records); err != nil {
		w.Fatal(err)
	}
	for _, b := range records {
		all = append(all, fmt.Sprintf("%d+%d", b.Restored, b.Removed))
	}
	slices.Sort(all)
	return all
}

// TestApart checks that changes which do not fit in one commit are committed in batches. The limits
// of a batch are half of the commit's bytes, 500 entities, and 40 KiB of keys.
func TestApart(t *testing.T) {
	const size = 100 // bytes of a change
	for _, c := range []struct {
		name    string
		changes int
		key     int // size of a key in bytes; 0: the usual size
		most    int
		batches []string
		rest    int
	}{
		{"all fit", 10, 0, 10 * size, nil, 10},
		{"all but one byte fit", 10, 0, 10*size - 1, []string{"4+0"}, 6},
		{"a batch has half of the bytes", 20, 0, 10 * size, []string{"5+0", "5+0"}, 10},
		{"or less", 20, 0, 10*size - 2, []string{"4+0", "4+0", "4+0"}, 8},
		{"each is too large", 3, 0, size - 1, []string{"1+0", "1+0", "1+0"}, 0},
		{"a batch has 500 entities", 1502, 0, 1500 * size, []string{"500+0"}, 1002},
		{"a batch's keys fill its record", 100, 1 << 10, 190 << 10, []string{"40+0"}, 60},
		{"or do so but for some bytes", 100, 1<<10 + 1, 190 << 10, []string{"39+0"}, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 1, nil, func(w *world) {
				u := w.undoer()
				u.most = c.most
				o := newOutcome(function.Job{Ref: w.undo.Ref()}, w.ranges[0].ID)
				for n := range c.changes {
					o.changes = append(o.changes, changeOf(n, c.key, size))
				}
				if err := u.commitApart(w.Context(), o); err != nil {
					t.Fatal(err)
				}
				if got := w.batches(); !slices.Equal(got, c.batches) || len(o.changes) != c.rest {
					t.Errorf("batches %v, %d remain, want %v, %d", got, len(o.changes), c.batches, c.rest)
				}
			})
		})
	}
}

// changeOf returns a change that restores an entity. The key has key bytes if key is not 0. Key and
// image together have size bytes, if possible.
func changeOf(n, key, size int) change {
	name := fmt.Sprintf("%06d", n)
	missing := key - keyspace.KeySize(datastore.NameKey("K", name, nil))
	c := change{key: datastore.NameKey("K", name+strings.Repeat("x", max(0, missing)), nil)}
	c.image = &pb.Entity{Key: pbvalue.Key(c.key), Properties: map[string]*pb.Value{}}
	for fill := 0; c.size() < size; fill++ {
		c.image.Properties = map[string]*pb.Value{"p": {ValueType: &pb.Value_StringValue{
			StringValue: strings.Repeat("x", fill)}, ExcludeFromIndexes: true}}
	}
	return c
}

// TestBatchCounts deletes entities in batches that the job has put. Each entity must be counted
// once, even if a call for a batch fails, or its answer is lost.
func TestBatchCounts(t *testing.T) {
	for _, lose := range []bool{false, true} {
		for after, failed := 0, true; failed; after++ {
			inWorld(t, 1, []int64{1, 2, 3, 11}, func(w *world) {
				w.page(0, to{1: 7, 2: gone, 11: 7, 99: 7})
				w.most.Store(1) // no image fits in a commit, so all need batches
				var err error
				failed = w.fail(after, lose, func() { _, err = w.run(0) })
				if err != nil && !strings.Contains(err.Error(), "injected") || fault.IsPermanent(err) {
					t.Errorf("call %d fails, answer lost %v: %v", after, lose, err)
				}
				e, err := w.run(0)
				if err != nil {
					t.Fatal(err)
				}
				if got := says(e) + counted(t, e); got != "map[removed:1 restored:3]" {
					t.Errorf("after call %d failed, answer lost %v: %s", after, lose, got)
				}
				if w.n(1) != 1 || w.n(2) != 2 || w.n(11) != 11 || w.n(99) != gone {
					t.Errorf("after call %d failed, answer lost %v: %d %d %d %d", after, lose, w.n(1), w.n(2), w.n(11),
						w.n(99))
				}
			})
		}
	}
}

// TestMoved changes an entity just before a batch restores it. The batch must have no effect, and
// the undo must try the page again.
func TestMoved(t *testing.T) {
	for times, want := range map[int]string{
		1: "1 stays: " + whyChanged, 2: "1 stays: " + whyChanged + "\n2 stays: " + whyChanged, batchAttempts: "",
	} {
		// The database may refuse the batch with either code.
		for _, code := range []codes.Code{codes.FailedPrecondition, codes.Aborted} {
			inWorld(t, 1, []int64{1, 2, 3}, func(w *world) {
				w.page(0, to{1: 7, 2: 7, 3: 7})
				w.most.Store(1)
				came, here := 0, false
				w.taps(func(req, _ any, pass func() error) error {
					if _, commits := req.(*pb.CommitRequest); !commits || came == times || here {
						return pass()
					}
					came, here = came+1, true
					w.somebody(to{int64(came): 9})
					here = false
					return status.Error(code, pass().Error())
				})
				e, err := w.run(0)
				switch {
				case times == batchAttempts:
					if !errors.Is(err, errMoved) || fault.IsPermanent(err) {
						t.Errorf("%v: somebody comes each time: %v", code, err)
					}
				case err != nil || says(e) != want ||
					counted(t, e) != fmt.Sprintf("map[left:%d restored:%d]", times, 3-times):
					t.Errorf("%v: somebody comes %d times: %+v, %v, want %s", code, times, e, err, want)
				}
			})
		}
	}
}

// TestBatchOfEndedRange commits a batch of a delivery that stopped in between. If another delivery
// has ended the undo's range in the meantime, it may have listed the entity as not restored, so the
// batch must have no effect.
func TestBatchOfEndedRange(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  func(part *record.Range) *datastore.Mutation
		fails error
	}{
		{"it is pending", nil, nil},
		{"it is done", func(part *record.Range) *datastore.Mutation {
			part.State, part.Open = record.Done, ""
			return part.Update()
		}, record.ErrState},
		{"its record is gone", func(part *record.Range) *datastore.Mutation {
			return datastore.NewDelete(part.Key())
		}, datastore.ErrNoSuchEntity},
	} {
		inWorld(t, 1, []int64{1}, func(w *world) {
			w.page(0, to{1: 7})
			w.begin([]int{0})
			stored, err := w.undoer().lookup(w.Context(), []*datastore.Key{keyOf(1)}, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			is := stored.Of(keyOf(1))
			if c.then != nil {
				w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(c.then(w.parts[0])); return err })
			}
			o := newOutcome(function.Job{Ref: w.undo.Ref(), Range: w.parts[0].Key()}, w.ranges[0].ID)
			image := proto.CloneOf(is.Entity)
			image.Properties["N"].ValueType = &pb.Value_IntegerValue{IntegerValue: 1}
			err = w.undoer().commitBatch(w.Context(), o, []change{{keyOf(1), image, is.Version}})
			want, restored := int64(1), int64(1)
			if c.fails != nil {
				want, restored = 7, 0
			}
			if !errors.Is(err, c.fails) || w.n(1) != want || o.restored != restored {
				t.Errorf("%s: %v, the entity has %d, %d are restored", c.name, err, w.n(1), o.restored)
			}
		})
	}
}

// TestSameText deletes two entities in one batch. Their keys have the same text: one has an ID, and
// the other a name with the same digits.
func TestSameText(t *testing.T) {
	inWorld(t, 1, nil, func(w *world) {
		keys := []*datastore.Key{datastore.IDKey("K", 99, nil), datastore.NameKey("K", "99", nil)}
		put, err := w.client.Mutate(w.Context(), datastore.NewInsert(keys[0], &thing{1}), datastore.NewInsert(keys[1],
			&thing{1}))
		if err != nil || len(put) != 2 {
			t.Fatal(err)
		}
		u := w.undoer()
		stored, err := u.lookup(w.Context(), keys, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		o := newOutcome(function.Job{Ref: w.undo.Ref()}, w.ranges[0].ID)
		var some []change
		for _, key := range keys {
			some = append(some, change{key: key, version: stored.Of(key).GetVersion()})
		}
		if err := u.commitBatch(w.Context(), o, some); err != nil {
			t.Fatal(err)
		}
		if n, err := w.client.Count(w.Context(), datastore.NewQuery("K")); n != 0 || err != nil {
			t.Errorf("%d are left, %v", n, err)
		}
	})
}

// TestRehearsed rehearses an undo, without writes. The rehearsal only counts the changes, so they
// have no images.
func TestRehearsed(t *testing.T) {
	inWorld(t, 1, []int64{1, 2}, func(w *world) {
		w.page(0, to{1: 7, 2: gone, 99: 7})
		for _, rehearses := range []bool{false, true} {
			e, err := w.function()(w.Context(), function.Job{Ref: w.undo.Ref(), Rehearses: rehearses},
				w.ranges[0].Key(), nil)
			if err != nil {
				t.Fatal(err)
			}
			properties, deletes := 0, 0
			for _, m := range e.Mutations {
				if m.Deletes {
					deletes++
				} else {
					properties += len(m.On.Writes.GetProperties())
				}
			}
			if want := map[bool]int{true: 0, false: 2}[rehearses]; properties != want || deletes != 1 {
				t.Errorf("rehearses %v: %d properties, %d deletions", rehearses, properties, deletes)
			}
			if got := counted(t, e); got != "map[removed:1 restored:2]" {
				t.Errorf("rehearses %v: %s", rehearses, got)
			}
		}
	})
}
