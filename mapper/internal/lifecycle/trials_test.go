package lifecycle_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

// A hook sees each call of the database and the queue that Jobs makes in the hook's context. It
// decides whether the call is made, and what its error is.
type hook func(method string, call func() error) error

type hookKey struct{}

// under returns a context whose calls go through a hook.
func under(ctx context.Context, h hook) context.Context { return context.WithValue(ctx, hookKey{}, h) }

func throughHook(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	call := func() error { return invoke(ctx, method, req, reply, conn, opts...) }
	if h, ok := ctx.Value(hookKey{}).(hook); ok {
		return h(path.Base(method), call)
	}
	return call()
}

// A trialWorld is a world whose queue delivers nothing until somebody starts it. Calls of its Jobs
// go through hooks.
type trialWorld struct {
	*world
	hooked *datastore.Client // of Jobs
}

// inTrial runs a test in a bubble, in a world whose mappers are "m" and some more. The queue is
// paused.
func inTrial(t *testing.T, m *function.Definition, test func(w *trialWorld), more ...*function.Definition) {
	t.Helper()
	inWorld(t, m, func(w *world) {
		for _, def := range more {
			w.Mappers[def.Name] = def
		}
		through := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary, throughHook))
		client, err := w.Emulator.DatastoreClient(w.Context(), "test", through)
		w.must(err)
		w.Cleanup(func() { _ = client.Close() })
		queue, err := w.Emulator.TasksClient(w.Context(), through)
		w.must(err)
		w.Cleanup(func() { _ = queue.Close() })
		jobs := w.World.Jobs
		jobs.Store = store.New(client)
		jobs.Queue, err = tasks.NewQueue(queue, w.Queue.Name(), "http://worker/",
			&tasks.Options{InsecureSkipVerify: true})
		w.must(err)
		tw := &trialWorld{w, client}
		tw.stop()
		test(tw)
		time.Sleep(10 * time.Minute) // until what it has started has ended
	})
}

// stop pauses the queue, and start lets it go on.
func (w *trialWorld) stop() {
	w.Helper()
	_, err := w.Tasks.PauseQueue(w.Context(), &cloudtaskspb.PauseQueueRequest{Name: w.Queue.Name()})
	w.must(err)
}

func (w *trialWorld) start() {
	w.Helper()
	_, err := w.Tasks.ResumeQueue(w.Context(), &cloudtaskspb.ResumeQueueRequest{Name: w.Queue.Name()})
	w.must(err)
}

// passes lets the queue deliver for a time.
func (w *trialWorld) passes(d time.Duration) {
	w.Helper()
	w.start()
	time.Sleep(d)
	w.stop()
}

// running returns a new job whose tasks wait in the queue. It may run beside others.
func (w *trialWorld) running(id string, change func(*record.Job)) *record.Job {
	w.Helper()
	j := w.NewJob(id, "m")
	j.Beside = true
	if change != nil {
		change(j)
		j.Incarnate(w.Random())
	}
	w.Begin(j)
	return w.Job(id)
}

// ended returns a job that has ended, and whose guard has come.
func (w *trialWorld) ended(id string, change func(*record.Job)) *record.Job {
	w.Helper()
	w.running(id, change)
	w.passes(5 * time.Minute)
	j := w.Job(id)
	if !j.Over() {
		w.Fatalf("job %s is %s: %s", id, j.State, j.Error)
	}
	return j
}

// stored returns a job with the record that change leaves. No task knows of the change.
func (w *trialWorld) stored(j *record.Job, change func(*record.Job)) *record.Job {
	w.Helper()
	now := w.Job(j.ID)
	change(now)
	_, err := w.Client.Mutate(w.Context(), now.Update())
	w.must(err)
	return w.Job(j.ID)
}

// deliver hands a task of a job to its handler, as the queue does at the given attempt. It returns
// an error if the answer asks for another attempt.
func (w *trialWorld) deliver(ctx context.Context, j *record.Job, path string, t body.Job, retries int) error {
	return w.hand(ctx, t.Task(j, path, time.Time{}), w.Queue.Name(), retries)
}

// hand hands a task of a queue to its handler.
func (w *trialWorld) hand(ctx context.Context, t tasks.Task, queue string, retries int) error {
	r := httptest.NewRequestWithContext(ctx, "POST", "http://worker/"+t.Path, bytes.NewReader(t.Body))
	r.Header.Set("X-CloudTasks-TaskName", t.ID)
	r.Header.Set("X-CloudTasks-TaskRetryCount", strconv.Itoa(retries))
	r.Header.Set("Scattermap-Queue", queue)
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	if rec.Code != 200 {
		return fmt.Errorf("the answer is %d", rec.Code)
	}
	return nil
}

// A trial has one of the calls that are made in its context fail.
type trial struct {
	at   int  // how many calls come before it; rollbacks do not count
	lose bool // it is carried out, and its answer is lost; otherwise it is refused

	mu     sync.Mutex
	calls  int
	method string // of the call that has failed; empty: none has
}

func (tr *trial) hook(method string, call func() error) error {
	if method == "Rollback" {
		return call()
	}
	tr.mu.Lock()
	now := tr.calls == tr.at
	if tr.calls++; now {
		tr.method = method
	}
	tr.mu.Unlock()
	switch {
	case !now:
		return call()
	case !tr.lose:
		return status.Error(codes.PermissionDenied, "refused")
	}
	if err := call(); err != nil {
		return err
	}
	return status.Error(codes.Internal, "the answer is lost")
}

// An act is what somebody, or a task, does with a job.
type act struct {
	name   string
	before func(w *trialWorld, id string) *record.Job // nil: a running job
	do     func(ctx context.Context, w *trialWorld, j *record.Job) error
	helps  []string                                 // calls without which it succeeds, too
	after  func(w *trialWorld, j *record.Job) error // what is wrong after it; nil: the job has to end well
	loses  bool                                     // answers of its calls get lost, too
	most   int                                      // later calls are like these; 0: they are not
}

// endsWell lets the queue go on, and checks that the job succeeds, with all its entities.
func endsWell(w *trialWorld, j *record.Job) error {
	w.Helper()
	w.passes(30 * time.Minute)
	now := w.Job(j.ID)
	sum, err := now.RecordedTotals()
	if err != nil || now.State != record.Succeeded || sum.Processed != 4 {
		return fmt.Errorf("the job is %s (%s), with %d entities; %w", now.State, now.Error, sum.Processed, err)
	}
	return nil
}

// is returns a check of a job's record as it stands after an act.
func is(what string, ok func(j *record.Job) bool) func(*trialWorld, *record.Job) error {
	return func(w *trialWorld, j *record.Job) error {
		if now := w.Job(j.ID); !ok(now) {
			return fmt.Errorf("not %s: state %s, error %q, epoch %d, generation %d, cleaning %q, cleaned %v", what,
				now.State, now.Error, now.Epoch, now.Generation, now.Cleaning, now.Cleaned)
		}
		return nil
	}
}

// tryAll has each call of each act fail, one at a time. The act has to return an error, unless the
// call only helps. Done again, it has to succeed, as if nothing had happened.
func tryAll(t *testing.T, m *function.Definition, acts []act) {
	t.Helper()
	for _, a := range acts {
		t.Run(a.name, func(t *testing.T) {
			inTrial(t, m, func(w *trialWorld) {
				a.try(w, false)
				if a.loses {
					a.try(w, true)
				}
			})
		})
	}
}

func (a act) try(w *trialWorld, lose bool) {
	w.Helper()
	helps := slices.Clone(a.helps)
	for at := 0; a.most == 0 || at < a.most; at++ {
		id := fmt.Sprintf("j-%t-%d", lose, at)
		j := a.prepared(w, id)
		tr := &trial{at: at, lose: lose}
		err := a.do(under(w.Context(), tr.hook), w, j)
		w.empty()
		what := fmt.Sprintf("call %d, %s, fails (answer lost: %t)", at+1, tr.method, lose)
		if i := slices.Index(helps, tr.method); tr.method != "" && err == nil && !lose {
			if i < 0 {
				w.Errorf("%s, and the act says nothing", what)
			} else {
				helps = slices.Delete(helps, i, i+1)
			}
		}
		if err != nil {
			if tr.method == "" {
				w.Fatalf("with no call refused: %v", err)
			}
			if err := a.do(w.Context(), w, j); err != nil && !strings.Contains(err.Error(), "no such job") {
				w.Errorf("%s; done again: %v", what, err)
			}
		}
		check := a.after
		if check == nil {
			check = endsWell
		}
		if wrong := check(w, j); wrong != nil {
			w.Errorf("%s: %v", what, wrong)
		}
		if tr.method == "" {
			if at == 0 {
				w.Error("it makes no call")
			}
			if len(helps) > 0 && !lose {
				w.Errorf("calls of %v were never refused without an error", helps)
			}
			return
		}
	}
}

// empty checks that nobody is left in the process's gate.
func (w *trialWorld) empty() {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	place, err := w.Gate.Enter(ctx, true)
	if err != nil || place.Waited {
		w.Fatalf("somebody has not left the gate: %v", err)
	}
	place.Leave()
}

func (a act) prepared(w *trialWorld, id string) *record.Job {
	w.Helper()
	if a.before == nil {
		return w.running(id, nil)
	}
	return a.before(w, id)
}

// tickOf returns the number of a job's next tick: the sweep of that number has a name of its own.
func tickOf(w *trialWorld, j *record.Job) int64 {
	w.Helper()
	for tick := time.Now().UnixNano()/int64(2*time.Minute) - 1; ; tick++ {
		if at := tickAt(j, tick); at.After(time.Now()) {
			return tick
		}
	}
}

// tickAt returns the time of a tick. Ticks are two minutes apart, at a time that depends on the
// job.
func tickAt(j *record.Job, tick int64) time.Time {
	h := fnv.New64a()
	_, _ = h.Write([]byte(j.ID))
	phase := time.Duration(h.Sum64() % uint64(2*time.Minute)).Truncate(time.Second)
	return time.Unix(0, tick*int64(2*time.Minute)).Add(phase)
}

// insert writes the records of new ranges.
func (w *trialWorld) insert(all []*record.Range) {
	w.Helper()
	for some := range slices.Chunk(all, 500) {
		mutations := make([]*datastore.Mutation, len(some))
		for i, r := range some {
			mutations[i] = r.Insert()
		}
		_, err := w.Client.Mutate(w.Context(), mutations...)
		w.must(err)
	}
}

// A lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// String returns everything that was logged.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
