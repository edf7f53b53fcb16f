package undo

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A story is a sequence of writes, by the job and by others, before the undo of a page. The job's
// ranges are [1, 10), [10, 20) and [20, 30). At first, the entities 1, 2, 3, 11, 51 and 52 exist.
type story struct {
	name  string
	job   func(w *world)
	page  int
	says  string // the expected effect of the page's undo
	calls int    // the expected number of Datastore calls; a read of the past takes two
}

const later = 5 * time.Minute // a time certainly after the job's end, despite differences between clocks

var stories = []story{
	{"nothing was written", func(w *world) { w.page(0, nil) }, 0, "", 4},
	{"one page", func(w *world) { w.page(0, to{1: 7, 2: 8}) }, 0, "1 becomes 1\n2 becomes 2", 8},
	{"entities of others only", func(w *world) { w.page(0, to{51: 7}) }, 0, "51 becomes 51", 6},
	{"changed by others before the job", func(w *world) {
		w.somebody(to{1: 5})
		time.Sleep(later)
		w.restart(w.job)
		w.page(0, to{1: 7})
	}, 0, "1 becomes 5", 8},
	{"a range of one entity", func(w *world) {
		r := w.ranges[0]
		r.Alone, r.Start, r.End = true, keyspace.At(keyOf(2)), nil
		w.page(0, to{2: 7})
	}, 0, "2 becomes 2", 6},
	{"changed by others since", func(w *world) { w.page(0, to{1: 7, 2: 8}); w.somebody(to{1: 9}) }, 0,
		"2 becomes 2\n1 stays: " + whyChanged, 19},
	{"changed by others after the job", func(w *world) {
		w.page(0, to{1: 7, 2: 8})
		w.end()
		time.Sleep(later)
		w.somebody(to{1: 9})
	}, 0, "2 becomes 2\n1 stays: " + whyChanged, 14},
	{"changed by others after the job, which had failures", func(w *world) {
		w.page(0, to{1: 7, 2: 8})
		w.job.State = record.SucceededWithFailures
		w.end()
		time.Sleep(later)
		w.somebody(to{1: 9})
	}, 0, "2 becomes 2\n1 stays: " + whyChanged, 14},
	{"changed by others after the job, which was aborted", func(w *world) {
		w.page(0, to{1: 7, 2: 8})
		w.job.State = record.Aborted
		w.end()
		time.Sleep(later)
		w.somebody(to{1: 9})
	}, 0, "2 becomes 2\n1 stays: " + whyChanged, 19},
	{"changed by others just after the job, and the undo comes later", func(w *world) {
		w.page(0, to{1: 7})
		w.end()
		w.somebody(to{1: 9})
		time.Sleep(later)
	}, 0, "1 stays: " + whyChanged, 20},
	{"changed by others three minutes after the job", func(w *world) {
		w.page(0, to{1: 7})
		w.end()
		time.Sleep(3 * time.Minute)
		w.somebody(to{1: 9})
	}, 0, "1 stays: " + whyChanged, 14},
	{"deleted by others since", func(w *world) { w.page(0, to{1: 7}); w.somebody(to{1: gone}) }, 0,
		"1 stays: " + whyDeleted, 93},
	{"deleted by others just after the job", func(w *world) {
		w.page(0, to{1: 7})
		w.end()
		w.somebody(to{1: gone})
	}, 0, "1 stays: " + whyDeleted, 22},
	{"changed and deleted by others since", func(w *world) {
		w.page(0, to{1: 7})
		w.somebody(to{1: 8})
		time.Sleep(10 * time.Second)
		w.somebody(to{1: gone})
	}, 0, "1 stays: " + whyDeleted, 21},
	{"deleted by others after the job", func(w *world) {
		w.page(0, to{1: 7})
		w.end()
		time.Sleep(later)
		w.somebody(to{1: gone})
	}, 0, "1 stays: " + whyDeleted, 14},
	{"put, and changed by others", func(w *world) { w.page(0, to{99: 7}); w.somebody(to{99: 8}) }, 0,
		"99 stays: " + whyChanged, 19},
	{"put back by others", func(w *world) { w.page(0, to{1: 7}); w.somebody(to{1: 1}) }, 0, "", 19},
	{"deleted", func(w *world) { w.page(0, to{1: gone}); w.end(); time.Sleep(time.Minute) }, 0, "1 becomes 1", 16},
	{"deleted, and put by others", func(w *world) { w.page(0, to{1: gone}); w.somebody(to{1: 9}) }, 0,
		"1 stays: " + whyChanged, 19},
	{"deleted, and put back by others", func(w *world) { w.page(0, to{1: gone}); w.somebody(to{1: 1}) }, 0, "", 19},
	{"deleted, and put and deleted by others since", func(w *world) {
		w.page(0, to{51: gone})
		w.somebody(to{51: 9})
		w.end()
		w.somebody(to{51: gone})
	}, 0, "51 stays: " + whyDeleted, 26},
	{"deleted, and put and deleted by others long after the job", func(w *world) {
		w.page(0, to{51: gone})
		w.end()
		time.Sleep(later)
		w.somebody(to{51: 9})
		time.Sleep(later / 10)
		w.somebody(to{51: gone})
		time.Sleep(later)
	}, 0, "51 stays: " + whyDeleted, 24},
	{"put and deleted by two pages", func(w *world) { w.page(0, to{99: 7}); w.page(1, to{99: gone}) }, 1, "", 21},
	{"put and deleted by two pages, and by others since", func(w *world) {
		w.page(0, to{99: 7})
		w.page(1, to{99: gone})
		w.somebody(to{99: 8})
		w.end()
		w.somebody(to{99: gone})
	}, 1, "", 35},
	{"two pages", func(w *world) { w.page(0, to{51: 7}); w.page(1, to{51: 8}) }, 1, "51 becomes 51", 15},
	{"two pages, long after the job", func(w *world) {
		w.page(0, to{51: 7})
		w.page(1, to{51: 8})
		w.end()
		time.Sleep(later)
	}, 1, "51 becomes 51", 15},
	{"the first of two pages", func(w *world) { w.page(0, to{51: 7}); w.page(1, to{51: 8}) }, 0, "", 18},
	{"the first of two pages, long after the job", func(w *world) {
		w.page(0, to{51: 7})
		w.page(1, to{51: 8})
		w.end()
		time.Sleep(later)
	}, 0, "", 19},
	{"two pages, with two entities", func(w *world) { w.page(0, to{51: 7, 52: 7}); w.page(1, to{51: 8, 52: 8}) }, 1,
		"51 becomes 51\n52 becomes 52", 17},
	{"three pages", func(w *world) { w.page(0, to{51: 7}); w.page(1, to{51: 8}); w.page(2, to{51: 9}) }, 2,
		"51 becomes 51", 22},
	{"two pages, and others in between", func(w *world) {
		w.page(0, to{51: 7})
		w.somebody(to{51: 9})
		w.page(1, to{51: 8})
	}, 1, "51 becomes 9", 12},
	{"two pages, and others who have put it back since", func(w *world) {
		w.page(0, to{51: 7})
		w.page(1, to{51: 8})
		w.somebody(to{51: 51})
	}, 1, "", 24},
	{"two pages, before others deleted it", func(w *world) {
		w.page(0, to{51: 7})
		w.page(1, to{51: 8})
		w.somebody(to{51: gone})
	}, 1, "51 stays: " + whyDeleted, 98},
	{"two pages have put it", func(w *world) { w.page(0, to{99: 7}); w.page(1, to{99: 8}) }, 1, "99 deleted", 17},
	{"put by a page that others came before", func(w *world) {
		w.somebody(to{99: 7})
		w.somebody(to{99: gone})
		w.page(0, to{99: 8})
	}, 0, "99 deleted", 8},
	{"deleted, and put by a later page", func(w *world) { w.page(0, to{51: gone}); w.page(1, to{51: 8}) }, 1,
		"51 becomes 51", 77},
	{"the first of these two pages", func(w *world) { w.page(0, to{51: gone}); w.page(1, to{51: 8}) }, 0, "", 80},
	{"deleted, put and deleted by others, and put by a later page", putBetween, 1, "51 deleted", 144},
	{"the first of these two pages, with others in between", putBetween, 0, "51 stays: " + whyChanged, 150},
	{"deleted an hour before the undo, and put by a later page", func(w *world) {
		w.page(0, to{51: gone})
		time.Sleep(30 * time.Minute)
		w.page(1, to{51: 8})
		time.Sleep(29*time.Minute + 20*time.Second)
	}, 1, "51 becomes 51", 123},
	{"put by a page more than an hour after the start", func(w *world) {
		time.Sleep(2 * time.Hour)
		w.page(1, to{99: 8})
	}, 1, "99 deleted", 10},
	{"deleted by two pages, and restored by the undo of the first", func(w *world) {
		w.page(0, to{51: gone})
		w.somebody(to{51: 9})
		w.page(1, to{51: gone})
		w.end()
		w.begin([]int{0}, []int{1})
		w.undoes(0, 0)
	}, 1, "51 becomes 9", 21},
	{"two such entities", func(w *world) {
		w.page(0, to{51: gone, 52: gone})
		w.somebody(to{51: 9, 52: 9})
		w.page(1, to{51: gone, 52: gone})
		w.end()
		w.begin([]int{0}, []int{1})
		w.undoes(0, 0)
	}, 1, "51 becomes 9\n52 becomes 9", 21},
	{"deleted, and put by others, before the undo began", func(w *world) {
		w.page(0, to{51: gone})
		w.somebody(to{51: 9})
		w.end()
		time.Sleep(later)
		w.begin([]int{0})
	}, 0, "51 stays: " + whyChanged, 19},
	{"changed, and changed by others, after the undo began", func(w *world) {
		w.page(0, to{51: 7})
		w.end()
		w.begin([]int{0})
		w.somebody(to{51: 9})
	}, 0, "51 stays: " + whyChanged, 18},
	{"after an hour", func(w *world) {
		time.Sleep(10*time.Minute + 30*time.Second)
		w.page(0, to{1: 7, 2: gone, 3: 8})
		w.somebody(to{3: 9})
		w.end()
		time.Sleep(2 * time.Hour)
	}, 0, "1 becomes 1\n2 becomes 2\n3 stays: " + whyChanged, 20},
	{"after an hour, if another page wrote it before", func(w *world) {
		time.Sleep(10*time.Minute + 30*time.Second)
		w.page(1, to{1: 7})
		time.Sleep(later)
		w.page(0, to{1: 8, 2: 8})
		w.end()
		time.Sleep(2 * time.Hour)
	}, 0, "2 becomes 2\n1 stays: " + whyUnkept, 10},
	{"after an hour, if others have put back what another page wrote before", func(w *world) {
		time.Sleep(10*time.Minute + 30*time.Second)
		w.page(1, to{1: 7})
		time.Sleep(later)
		w.page(0, to{1: 8})
		w.somebody(to{1: 7})
		time.Sleep(2 * time.Hour)
	}, 0, "1 stays: " + whyChanged, 10},
	{"another page wrote them more than an hour ago", func(w *world) {
		w.page(1, to{1: 7, 2: 7})
		time.Sleep(2 * time.Hour)
		w.page(0, to{1: 8, 2: 8})
	}, 0, "1 stays: " + whyUnkept + "\n2 stays: " + whyUnkept, 11},
	{"another page wrote it more than an hour ago, and others have put that back", func(w *world) {
		w.page(1, to{1: 7})
		time.Sleep(2 * time.Hour)
		w.page(0, to{1: 8})
		w.somebody(to{1: 7})
	}, 0, "1 stays: " + whyChanged, 20},
}

// putBetween lets one page delete an entity, then others put and delete it, and then another page
// put it.
func putBetween(w *world) {
	w.page(0, to{51: gone})
	time.Sleep(time.Minute)
	w.somebody(to{51: 9})
	w.somebody(to{51: gone})
	w.page(1, to{51: 8})
}
