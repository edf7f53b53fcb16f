package lifecycle

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

const (
	// lookTime is the longest time for which Delivery asks the queue.
	lookTime = 5 * time.Second

	// fewAttempts is a number of failed deliveries of a task that Delivery does not report, because
	// a process may be starting, for example. With the usual back-off, three attempts take less
	// than a second, and ten less than two minutes.
	fewAttempts = 3

	// idle is how long a due task may wait before Delivery asks whether the queue is paused.
	idle = 30 * time.Second
)

// Delivery returns what the queue says about the job's tasks: why it can't deliver them, or that
// they wait for other jobs' tasks. It returns the zero value if this process may not ask the queue,
// or if the queue does not answer.
//
// It asks about two tasks: the task of the range that has been due longest, and the last sweep that
// was due. If no range is due, it asks about the task that ends the job instead. If no task
// arrives, no handler can report it. So Delivery is called when a job's status is read, and by
// Revive.
func (js *Jobs) Delivery(ctx context.Context, job *record.Job, waiting *record.Range) (q estimate.Queue) {
	if job.State != record.Running || js.Queue == nil || job.Queue.Is(js.Queue.Name()) != nil {
		return q
	}
	q.Name, q.Others = js.Queue.Name(), estimate.Unknown
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	now := time.Now()
	tick, _ := nextTick(job, now)
	looked := []tasks.Task{body.Job{}.Task(job, finalizePath, time.Time{}),
		body.Job{Tick: tick - 1}.Task(job, sweepPath, time.Time{})}
	if waiting != nil {
		looked[0] = body.TaskOf(waiting, job)
	}
	found := make([]sighting, len(looked))
	var group sync.WaitGroup
	for i, task := range looked {
		group.Go(func() { found[i] = js.lookAt(ctx, task, now) })
	}
	group.Wait()
	if found[0].gone && waiting != nil {
		found = append(found, sighting{complaint: js.lost(ctx, job, waiting, now)})
	}
	for _, f := range found {
		if f.complaint != "" {
			js.Observer.Undelivered(ctx, job, f.complaint)
			q.Complaint = f.complaint
			return q
		}
	}
	if q.Waits = waiting != nil && found[0].unseen; q.Waits {
		q.Others, q.Named = js.others(ctx, job)
	}
	return q
}

// A sighting is what the queue says about one task. It is zero if the queue does not answer.
type sighting struct {
	complaint string // why the task can't be delivered; empty: it can
	gone      bool   // whether the queue does not have the task
	unseen    bool   // whether the task is due, and was not delivered yet
}

// lookAt asks the queue about a task.
func (js *Jobs) lookAt(ctx context.Context, task tasks.Task, now time.Time) sighting {
	s, err := js.Queue.Lookup(ctx, task)
	if s == nil {
		return sighting{gone: err == nil}
	}
	found := sighting{complaint: js.complaintOf(s), unseen: s.Attempts == 0 && now.After(s.ScheduleTime)}
	if s.Attempts == 0 && now.Sub(s.ScheduleTime) > idle {
		if paused, err := js.Queue.Paused(ctx); err == nil && paused {
			found.complaint = "the queue " + js.Queue.Name() + " is paused"
		}
	}
	return found
}

// others counts the other running jobs in the job's queue, up to estimate.ManyOthers, and returns
// the IDs of the ones that started last.
func (js *Jobs) others(ctx context.Context, job *record.Job) (n int, named [3]string) {
	all, err := js.Store.Jobs(ctx, []record.Owner{job.Queue}, record.Listing{State: record.Running}, "",
		estimate.ManyOthers+1)
	if err != nil {
		return estimate.Unknown, named
	}
	for _, j := range all {
		if j.ID == job.ID || n == estimate.ManyOthers {
			continue
		}
		if n < len(named) {
			named[n] = j.ID
		}
		n++
	}
	return n, named
}

// overdue is the longest time for which a lost task may be missing while the job's sweeps work.
const overdue = guardDelay + 2*sweepEvery

// lost returns a text for the operator if a range's task is lost: the queue does not have it, and
// it was not carried out. Probably somebody has purged the queue, or something other than the
// handler answers with success. The text is empty in these cases: the task is not lost, the range
// has changed since it was read, or a sweep is about to enqueue the task.
func (js *Jobs) lost(ctx context.Context, job *record.Job, waiting *record.Range, now time.Time) string {
	late := now.Sub(waiting.Due())
	if late <= idle {
		return ""
	}
	switch s, err := js.Queue.Lookup(ctx, fullSweep(job)); {
	case err != nil:
		return ""
	case s != nil:
		return js.complaintOf(s)
	}
	r, err := js.Store.LoadRange(ctx, waiting.Ref(), waiting.ID)
	if err != nil || r.State != record.Pending || r.Generation != waiting.Generation || !r.Due().Equal(waiting.Due()) {
		return ""
	}
	text := fmt.Sprintf("a task that was due at %s is not in the queue, and was not carried out: ",
		waiting.Due().UTC().Format(time.RFC3339))
	if late > overdue {
		text += "no sweep has enqueued it again, which resuming the job does: "
	}
	return text + "has " + js.Queue.Name() + " been purged, or does something other than the handler answer at " +
		js.Queue.URL() + "?"
}

// complaintOf returns a text that says why deliveries of a task fail. If they do not fail, it
// returns "".
func (js *Jobs) complaintOf(s *tasks.TaskInfo) string {
	if s.Attempts < fewAttempts || !s.Ended || s.Code == codes.OK {
		return ""
	}
	const longest = 200
	text := fmt.Sprintf("the queue has tried %d times to deliver a task to %s, and the last attempt ended with %.*s",
		s.Attempts, s.URL, longest, strings.TrimSpace(s.Message))
	// A draining process answers with this status, see tasks.Redeliver.
	if strings.Contains(s.Message, strconv.Itoa(http.StatusMisdirectedRequest)) {
		return text + ": the process there drains, or has drained: does another one run?"
	}
	if s.TargetChanged {
		return text + ": tasks are made for " + js.Queue.URL() +
			" now, or for another account; older tasks keep the old target until the job is resumed"
	}
	switch s.Code {
	case codes.NotFound:
		return text + ": is this the URL that the handler is mounted at?"
	case codes.PermissionDenied, codes.Unauthenticated:
		return text + ": may the account of the tasks call the service?"
	case codes.Unavailable:
		return text + ": is the service there, and does it start?"
	case codes.ResourceExhausted:
		return text + ": it had no instance free. Does the queue deliver more tasks at once than the service's " +
			"instances times its concurrency?"
	case codes.DeadlineExceeded:
		return text + ": it took too long for the service's time-out, or for the task's deadline"
	}
	return text + ": the service's log says why"
}

// startLook is how long after a start or Resume the process checks whether the queue delivers the
// job's tasks.
const startLook = 90 * time.Second

// LookLater calls Look after startLook, if the job still runs and this process does not drain.
func (js *Jobs) LookLater(job *record.Job) {
	if job.State != record.Running {
		return
	}
	time.AfterFunc(startLook, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*lookTime)
		defer cancel()
		if now, err := js.Store.LoadJob(ctx, job.Ref()); err == nil && now.State == record.Running &&
			!js.Gate.IsDraining() {
			js.Look(ctx, now)
		}
	})
}

// lookRanges is the number of open ranges that Look reads. Among them, it chooses the one that has
// been due longest.
const lookRanges = 20

// Look returns a text that says why the queue can't deliver the job's tasks, or "". Unlike
// Delivery, it reads the job's ranges first.
func (js *Jobs) Look(ctx context.Context, job *record.Job) string {
	open, err := js.Store.FirstMarked(ctx, "open", job.Ref(), "", lookRanges)
	if err != nil {
		return ""
	}
	js.Observer.Looked(job, open, time.Now())
	return js.Delivery(ctx, job, job.Overdue(open)).Complaint
}
