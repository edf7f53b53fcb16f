package executor

import (
	"context"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// TestSuspected delivers a range of the entities 1 to 20 in different states of suspicion. An
// earlier delivery may have died an hour ago. This delivery is the second attempt of the task.
func TestSuspected(t *testing.T) {
	dead := func(n int) (s record.Suspicion) {
		s.Solo = true
		for range n {
			s.Deaths = append(s.Deaths, "d")
			s.DeathsCountAt = append(s.DeathsCountAt, time.Unix(0, 0))
		}
		return s
	}
	begun := func(alone bool) record.Suspicion {
		return record.Suspicion{Begun: "before", BegunAt: time.Unix(0, 0), BegunAlone: alone, Solo: alone}
	}
	for _, c := range []struct {
		name   string
		s      record.Suspicion
		alone  bool // the range has only entity 1
		gone   bool // entity 1 is deleted
		calls  int  // how often this delivery calls the function
		failed bool // the entity is recorded as a failure
		solo   bool // the rest is suspected
	}{
		{"nothing has died: all goes on", record.Suspicion{}, false, false, 20, false, false},
		{"a process died that did other things, too: the page is exclusive", begun(false), false, false, 10, false,
			false},
		{"one died that did nothing else: the page is halved", begun(true), false, false, 5, false, true},
		{"an entity whose process died four times is tried again", dead(record.MaxDeaths - 1), true, false, 1, false,
			false},
		{"one whose process died five times is a failure", dead(record.MaxDeaths), true, false, 0, true, false},
		{"it is gone: nothing has failed", dead(record.MaxDeaths), true, true, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			inWorld(t, 20, function.Update, func(*testworld.Call) error { calls++; return nil },
				func(w *testworld.World, x *Executor) {
					j := w.NewJob("j", "m")
					r := j.RootRange()
					if r.Suspicion = c.s; c.alone {
						r.Alone, r.Start = true, keyspace.At(testworld.Key(1))
					}
					if _, err := w.Client.Mutate(w.Context(), j.Insert(), r.Insert()); err != nil {
						w.Fatal(err)
					}
					if c.gone {
						if err := w.Client.Delete(w.Context(), testworld.Key(1)); err != nil {
							w.Fatal(err)
						}
					}
					// ranges with a task of their own wait
					w.Range = func(context.Context, tasks.Delivery) error { return errBad }
					if err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(r, j).Body, TaskID: "t",
						RetryCount: 1}); err != nil {
						w.Fatal(err)
					}
					failed, solo := false, false
					for _, now := range w.Records(j) {
						failed, solo = failed || now.Failed != "", solo || now.State == record.Pending && now.Solo
						if now.Begun != "" && now.State == record.Pending {
							w.Errorf("a mark is left in %s", now.ID)
						}
					}
					if calls != c.calls || failed != c.failed || solo != c.solo {
						w.Errorf("%d calls, failed %v, the rest is suspected %v; want %d, %v, %v", calls, failed, solo,
							c.calls,
							c.failed, c.solo)
					}
				})
		})
	}
}
