package undo

import (
	"fmt"
	"testing"
	"time"
)

// TestMinute undoes pages after two hours, when the database serves only whole minutes. An entity
// that was unchanged for two minutes before the page must be restored, and the others must be left.
func TestMinute(t *testing.T) {
	const why = "its state just before the page is not known: it may have been changed within the minute before, and " +
		"after an hour only whole minutes are kept"
	const others = "others have put or deleted entities within the minute before the page, which wrote %d: at least " +
		"%d of them are not known, as after an hour only whole minutes are kept"
	for _, c := range []struct {
		name string
		job  func(w *world)
		want []string
	}{
		{"changed", func(w *world) { w.page(0, to{1: 7, 2: 8}) }, []string{"1 becomes 1", "2 becomes 2"}},
		{"deleted", func(w *world) { w.page(0, to{1: gone}) }, []string{"1 becomes 1"}},
		{"an entity of others, of which nothing is known", func(w *world) { w.page(0, to{1: 7, 51: 8}) },
			[]string{"1 becomes 1", "51 stays: " + why}},
		{"changed since", func(w *world) { w.page(0, to{1: 7, 2: 8}); w.somebody(to{1: 9}) },
			[]string{"2 becomes 2", "1 stays: " + whyChanged}},
		{"deleted since", func(w *world) { w.page(0, to{1: 7, 2: 8}); w.somebody(to{1: gone}) },
			[]string{"2 becomes 2", "1 stays: " + whyDeleted}},
		{"put back since", func(w *world) { w.page(0, to{1: 7, 2: 8}); w.somebody(to{1: 1}) },
			[]string{"2 becomes 2"}},
		{"somebody has put one within the minute before", func(w *world) { w.somebody(to{5: 5}); w.page(0, to{5: 7}) },
			[]string{"0 stays: " + fmt.Sprintf("%d entities of the page were put, or came into the query, within the "+
				"minute before it, and after an hour only whole minutes are kept", 1)}},
		{"one has a state before the commit that an earlier page has written", func(w *world) {
			w.page(1, to{1: 7})
			time.Sleep(5 * time.Minute)
			w.page(0, to{1: 8, 2: 8})
		}, []string{"2 becomes 2", "1 stays: " + whyUnkept}},
		{"it was deleted, and the job ended within the same minute", func(w *world) {
			w.page(0, to{1: gone})
			time.Sleep(5 * time.Second)
		}, []string{"1 becomes 1"}},
		{"others have put one, of all, within the minute before", func(w *world) {
			w.somebody(to{4: 4})
			w.page(0, to{1: 7, 2: 7, 3: gone, 4: 7})
			w.somebody(to{1: 9})
		}, []string{"2 becomes 2", "3 becomes 3", "0 stays: " + fmt.Sprintf(others, 4, 1), "1 stays: " + whyWhich}},
		{"others have put one, of all, and all were deleted", func(w *world) {
			w.somebody(to{4: 4})
			w.page(0, to{1: gone, 2: gone, 3: gone, 4: gone})
		}, []string{"0 stays: " + fmt.Sprintf(others, 4, 1), "1 stays: " + whyWhich, "2 stays: " + whyWhich,
			"3 stays: " + whyWhich}},
		{"others have deleted one, perhaps the page", func(w *world) {
			w.somebody(to{3: gone, 4: 4})
			w.page(0, to{1: 7, 2: 7, 4: 7})
		}, []string{"1 becomes 1", "2 becomes 2", "0 stays: " + fmt.Sprintf(others, 3, 1), "3 stays: " + whyWhich}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 2, []int64{1, 2, 3, 51}, func(w *world) {
				time.Sleep(10*time.Minute + 30*time.Second)
				c.job(w)
				w.end()
				time.Sleep(2 * time.Hour)
				w.wantUndo(0, c.want...)
			})
		})
	}
}
