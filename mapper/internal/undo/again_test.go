package undo

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// TestAgain undoes pages that deleted entities, after the undo of other pages has restored these
// entities. The entity 51 has its first state when one page deletes it, and another client's state
// when another page does.
func TestAgain(t *testing.T) {
	deletes := func(w *world, somebody int64, pages ...int) {
		for i, page := range pages {
			if i > 0 {
				w.somebody(to{51: somebody + int64(i) - 1})
			}
			w.page(page, to{51: gone, int64(10*page + 1): 7})
		}
		w.end()
		time.Sleep(5 * time.Minute)
	}
	for _, c := range []struct {
		name string
		job  func(w *world) // writes of the job and of others, and pages that the undo has taken back
		page int
		want []string
	}{
		{"an earlier page", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{0}, []int{1})
			w.undoes(0, 0)
		}, 1, []string{"11 becomes 11", "51 becomes 9"}},
		{"an earlier page, and a page that did not write it", func(w *world) {
			deletes(w, 9, 0, 2)
			w.page(1, to{11: 7})
			w.begin([]int{0, 1}, []int{2})
			w.undoes(0, 0, 1)
		}, 2, []string{"21 becomes 21", "51 becomes 9"}},
		{"an earlier page, by a range over all", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin(nil)
			w.parts[0].Entities = 1
			w.undoes(0, 0)
		}, 1, []string{"11 becomes 11", "51 becomes 9"}},
		{"a later page", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{0}, []int{1})
			w.undoes(1, 1)
		}, 0, []string{"1 becomes 1", "51 stays: " + whyChanged}},
		{"an earlier and a later page", func(w *world) {
			deletes(w, 9, 0, 2, 1)
			w.begin([]int{0, 1}, []int{2})
			w.undoes(0, 1)
		}, 2, []string{"21 becomes 21", "51 stays: " + whyChanged}},
		{"an earlier page, and it is as before this one", func(w *world) {
			deletes(w, 51, 0, 1)
			w.begin([]int{0}, []int{1})
			w.undoes(0, 0)
		}, 1, []string{"11 becomes 11"}},
		{"an earlier page, and others have changed it since", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{0}, []int{1})
			w.undoes(0, 0)
			w.somebody(to{51: 5})
		}, 1, []string{"11 becomes 11", "51 stays: " + whyChanged}},
		{"none: others have put it before the undo", func(w *world) {
			deletes(w, 9, 0, 1)
			w.somebody(to{51: 5})
			time.Sleep(5 * time.Minute)
			w.begin([]int{0}, []int{1})
			w.undoes(0, 0)
		}, 1, []string{"11 becomes 11", "51 stays: " + whyChanged}},
		{"none: others have put it when the undo committed a page", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{0}, []int{1})
			w.with = []*datastore.Mutation{datastore.NewInsert(keyOf(51), &thing{5})}
			w.undoes(0, 2)
		}, 1, []string{"11 becomes 11", "51 stays: " + whyChanged}},
		{"the undo's page does not say whether it has", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{2, 3}, []int{1})
			w.with, w.lost = []*datastore.Mutation{datastore.NewInsert(keyOf(51), &thing{5})}, 1
			w.undoes(0, 2)
		}, 1, []string{"11 becomes 11", "51 stays: " + whyChanged}},
		{"the record of the undo's page was changed since", func(w *world) {
			deletes(w, 9, 0, 1)
			w.begin([]int{0}, []int{1})
			w.undoes(0, 0)
			w.parts[0].Pace++
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.parts[0].Update()); return err })
		}, 1, []string{"11 becomes 11", "51 stays: " + whyChanged}},
		{"others had deleted it, too, and the page deleted what the job had put", func(w *world) {
			w.page(0, to{51: gone})
			w.somebody(to{51: 9})
			w.somebody(to{51: gone})
			w.page(1, to{51: 8})
			w.page(2, to{51: gone, 21: 7})
			w.end()
			time.Sleep(5 * time.Minute)
			w.begin([]int{0}, []int{2})
			w.undoes(0, 0)
		}, 2, []string{"21 becomes 21", "51 stays: " + whyTwice}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 4, []int64{1, 11, 21, 31, 51}, func(w *world) {
				c.job(w)
				w.wantUndo(c.page, c.want...)
			})
		})
	}
}

// TestAgainFails fails each call of the undo of a page, one at a time. The page deleted an entity
// that the undo of an earlier page has restored. Without the records of the undone pages, nothing
// may be decided about the entity.
func TestAgainFails(t *testing.T) {
	inWorld(t, 2, []int64{11, 51}, func(w *world) {
		w.page(0, to{51: gone})
		w.somebody(to{51: 9})
		w.page(1, to{51: gone, 11: 7})
		w.end()
		time.Sleep(5 * time.Minute)
		w.begin([]int{0}, []int{1})
		w.undoes(0, 0)
		for after := 0; ; after++ {
			says := ""
			if !w.fail(after, false, func() { says = w.says(1) }) {
				break
			}
			if !strings.Contains(says, "injected") {
				t.Errorf("call %d fails: %s", after, says)
			}
		}
		w.wantUndo(1, "11 becomes 11", "51 becomes 9")
	})
}

// TestAgainUnkept undoes a page that deleted an entity, after the undo has restored this entity.
// The database no longer keeps the entity's earlier past, and this must be the reason why the
// entity stays.
func TestAgainUnkept(t *testing.T) {
	inWorld(t, 3, []int64{1, 51}, func(w *world) {
		time.Sleep(10*time.Minute + 30*time.Second)
		w.page(0, to{1: gone})
		time.Sleep(10 * time.Minute)
		w.page(1, to{1: 1})
		time.Sleep(80 * time.Minute)
		w.page(2, to{1: gone})
		w.end()
		time.Sleep(10 * time.Minute)
		w.begin([]int{0}, []int{2})
		w.wantUndo(0, "1 becomes 1")
		w.undoes(0, 0)
		w.wantUndo(2, "1 stays: "+whyUnkept)
	})
}

// TestAgainDamaged undoes a page while the record of another page can't be decoded.
func TestAgainDamaged(t *testing.T) {
	inWorld(t, 2, []int64{51}, func(w *world) {
		w.page(0, to{51: gone})
		w.somebody(to{51: 9})
		w.page(1, to{51: gone})
		w.end()
		time.Sleep(5 * time.Minute)
		w.begin([]int{0}, []int{1})
		w.undoes(0, 0)
		w.ranges[0].Wrote = []byte("\x00x")
		w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.ranges[0].Update()); return err })
		if _, err := w.run(1); !fault.IsPermanent(err) || !strings.Contains(err.Error(), "what a page has written") {
			t.Errorf("%v", err)
		}
	})
}

// TestUndoOfUndo undoes an undo whose pages have taken several commits each. Restored entities must
// get the state that the job had written, and deleted entities must exist again.
func TestUndoOfUndo(t *testing.T) {
	for _, most := range []int64{0, 1, 200} { // the largest size of the images in a commit, in bytes
		inWorld(t, 3, []int64{1, 2, 3, 11}, func(w *world) {
			w.page(0, to{1: 7, 2: gone, 99: 7})
			w.page(1, to{11: 8, 99: 8})
			w.page(2, nil)
			w.end()
			w.most.Store(most)
			w.begin([]int{0}, []int{1, 2})
			w.undoes(0, 0)
			w.undoes(1, 1, 2)
			w.undo.State, w.undo.Ended = "succeeded", time.Now()
			w.commit(func(tx *datastore.Transaction) error { _, err := tx.Mutate(w.undo.Update()); return err })
			again := w.again()
			if most == 1 { // the undo of the undo has several batches, too
				again.most.Store(1)
			}
			want := map[int]string{0: "1 becomes 7\n2 deleted", 1: "11 becomes 8\n99 becomes 8"}
			for n, want := range want {
				e, err := again.run(n)
				if err != nil {
					t.Fatal(err)
				}
				if got := says(e); most != 1 && got != want {
					t.Errorf("%d bytes, page %d: %s, want %s", most, n, got, want)
				}
				counts := []string{"map[removed:1 restored:1]", "map[restored:2]"}
				if got := counted(t, e); n < len(counts) && got != counts[n] {
					t.Errorf("%d bytes, page %d: %s", most, n, got)
				}
			}
			again.begin(nil)
			again.undoes(0, 0, 1)
			if w.n(1) != 7 || w.n(2) != gone || w.n(11) != 8 || w.n(99) != 8 {
				t.Errorf("%d bytes: %d %d %d %d", most, w.n(1), w.n(2), w.n(11), w.n(99))
			}
		})
	}
}
