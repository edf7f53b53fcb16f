package lifecycle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// beside returns the Jobs of another queue in the same process.
func (w *world) beside() *lifecycle.Jobs {
	w.Helper()
	const location = "projects/test/locations/here"
	_, err := w.Tasks.CreateQueue(w.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/other"}})
	w.must(err)
	other := *w.World.Jobs
	other.Queue, err = tasks.NewQueue(w.Tasks, location+"/queues/other", "http://worker/",
		&tasks.Options{InsecureSkipVerify: true})
	w.must(err)
	return &other
}

// TestMove moves a job to another queue. That queue must have its tasks, and the first queue must
// not process the job any more.
func TestMove(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(w *world, j *record.Job) // called before the move
		adapt error
		tasks bool // whether the other queue has tasks
	}{
		{"it runs", func(*world, *record.Job) {}, nil, true},
		{"it is paused", func(w *world, j *record.Job) { w.must(w.Pause(w.Context(), j.Ref())) }, nil, false},
		{"it can't run there", func(*world, *record.Job) {}, errBad, false},
	} {
		inWorld(t, new(function.Definition), func(w *world) {
			j, other := w.NewJob("j", "m"), w.beside()
			w.works = false
			w.Begin(j)
			time.Sleep(10 * time.Second)
			c.do(w, j)
			err := other.Move(w.Context(), j.Ref(), func(*record.Job) error { return c.adapt })
			if !errors.Is(err, c.adapt) || err != nil && c.adapt == nil {
				w.Errorf("%s: %v", c.name, err)
			}
			moved := w.Job("j")
			if is := moved.Queue == record.Owner(other.Queue.Name()); is != (c.adapt == nil) {
				w.Errorf("%s: it belongs to %s", c.name, moved.Queue)
			}
			sweep := body.Job{All: true}.Task(moved, "sweep", time.Time{})
			if exists, err := other.Queue.Exists(w.Context(), sweep); err != nil || exists != c.tasks {
				w.Errorf("%s: it has tasks there: %v, %v", c.name, exists, err)
			}
			if err := other.Move(w.Context(), record.Ref{ID: "none"}, nil); !errors.Is(err, record.ErrNoSuchJob) {
				w.Errorf("a move of a job that does not exist: %v", err)
			}
			if err := w.Abort(w.Context(), j.Ref()); (err != nil) != (c.adapt == nil) {
				w.Errorf("%s: the first queue aborts it: %v", c.name, err)
			}
		})
	}
}

// TestFindOut checks what FindOut reads about the queue and the database for the start of a job.
func TestFindOut(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		_, err := w.Client.Put(w.Context(), testworld.Key(1), &testworld.Thing{N: 1})
		w.must(err)
		j := w.NewJob("j", "m")
		w.Begin(j)
		src := source.New(w.Client, nil)
		found, err := w.FindOut(w.Context(), src, query.Query{Kind: "K"}, "j", true, false)
		w.must(err)
		n, err := lifecycle.Concurrency(w.Context(), w.Queue)
		w.must(err)
		again := new(record.Job)
		if err := found.Database(again); err != nil || found.Existing.Incarnation != j.Incarnation || !again.Masks ||
			found.Concurrent != n || n <= 0 {
			w.Errorf("%+v, %v", found, err)
		}
		found, err = w.FindOut(w.Context(), src, query.Query{Kind: "Mistake"}, "none", true, false)
		if err != nil || found.Existing != nil || found.Database(again) == nil {
			w.Errorf("a kind without entities: %+v, %v", found, err)
		}
		found, err = w.FindOut(w.Context(), src, query.Query{Kind: "Mistake"}, "none", false, true)
		if err != nil || found.Database(again) != nil {
			w.Errorf("a kind that may be empty: %+v, %v", found, err)
		}
	})
	if first := lifecycle.Unique(); first == lifecycle.Unique() {
		t.Error("a number is drawn twice")
	}
}

// TestMoveDies moves jobs that have ended and are retained for a day. The moving process dies after
// each number of its calls. If a job was moved, its records must still be cleaned up after the day.
func TestMoveDies(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		for lives, died := 0, true; died; lives++ {
			id := fmt.Sprintf("j-%d", lives)
			j := w.stored(w.ended(id, nil), func(j *record.Job) { j.Queue, j.Retain = "old", 24*time.Hour })
			calls := 0
			died = false
			err := w.Move(under(w.Context(), func(_ string, call func() error) error {
				if calls++; calls > lives {
					died = true
					return status.Error(codes.PermissionDenied, "the process is dead")
				}
				return call()
			}), j.Ref(), func(*record.Job) error { return nil })
			if (err != nil) != died {
				w.Errorf("it dies after %d calls: %v", lives, err)
			}
			w.passes(30 * time.Hour)
			if now := w.Job(id); now.Queue != "old" && !now.Cleaned {
				w.Errorf("the process died after %d calls, and the job is moved and not cleaned up", lives)
			}
		}
	})
}
