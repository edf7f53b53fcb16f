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
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

// A hook is called for each call of the database and the queue that Jobs makes with a context. It
// decides whether the call is made, and which error it returns.
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

// A trialWorld is a world whose queue is paused until the test starts it. The calls of its Jobs go
// through hooks.
type trialWorld struct {
	*world
	hooked *datastore.Client // the client of Jobs, whose calls go through hooks
}

// inTrial runs a test in a synctest bubble, in a trialWorld. Its mappers are "m" and the ones in
// more.
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
		time.Sleep(10 * time.Minute) // until everything that the test has started has ended
	})
}

// stop pauses the queue, and start resumes it.
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

// passes lets the queue deliver tasks for the time d.
func (w *trialWorld) passes(d time.Duration) {
	w.Helper()
	w.start()
	time.Sleep(d)
	w.stop()
}

// running returns a new running job, whose tasks wait in the queue. Other jobs of its mapper may
// run at the same time.
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

// ended returns a job that has ended. The sweep that guarded its start was delivered.
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

// stored changes the record of a job in the database, and returns it. No task is enqueued.
func (w *trialWorld) stored(j *record.Job, change func(*record.Job)) *record.Job {
	w.Helper()
	now := w.Job(j.ID)
	change(now)
	_, err := w.Client.Mutate(w.Context(), now.Update())
	w.must(err)
	return w.Job(j.ID)
}

// deliver passes a task of a job to its handler, as the queue does at the given attempt. If the
// handler's answer is no success, it returns an error.
func (w *trialWorld) deliver(ctx context.Context, j *record.Job, path string, t body.Job, retries int) error {
	return w.hand(ctx, t.Task(j, path, time.Time{}), w.Queue.Name(), retries)
}

// hand passes a task of a queue to its handler.
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

// A trial makes one call fail, among the calls that are made with its context.
type trial struct {
	at   int  // number of calls before that call; rollbacks do not count
	lose bool // whether the call takes effect and only its answer is lost; otherwise it has no effect

	mu     sync.Mutex
	calls  int
	method string // the method of the call that has failed; empty: none has
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

// An act is something that an operator or a task does with a job.
type act struct {
	name   string
	before func(w *trialWorld, id string) *record.Job // makes the job; nil: a running job
	do     func(ctx context.Context, w *trialWorld, j *record.Job) error
	helps  []string                                 // methods whose failure does not make the act fail
	after  func(w *trialWorld, j *record.Job) error // checks the job after the act; nil: endsWell
	// calls after this number are not tried, because they are similar; 0: all are tried
	loses bool
	// number of calls to try, because later calls are similar; 0: all
	most int
}

// endsWell lets the queue deliver, and checks that the job succeeds with all its entities.
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

// is returns a check of a job's record after an act.
func is(what string, ok func(j *record.Job) bool) func(*trialWorld, *record.Job) error {
	return func(w *trialWorld, j *record.Job) error {
		if now := w.Job(j.ID); !ok(now) {
			return fmt.Errorf("not %s: state %s, error %q, epoch %d, generation %d, cleaning %q, cleaned %v", what,
				now.State, now.Error, now.Epoch, now.Generation, now.Cleaning, now.Cleaned)
		}
		return nil
	}
}

// tryAll runs each act several times, and makes another call fail each time. A usual run skips
// every second call of acts without helps. The act must return an error, unless the call is in
// helps. When the act is repeated without a failure, the result must be the same as if no call had
// failed.
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
	helps, some := slices.Clone(a.helps), func(int) bool { return true }
	if len(helps) == 0 {
		some = testflag.Part(w.T, 2)
	}
	for at := 0; a.most == 0 || at < a.most; at++ {
		if !some(at) {
			continue
		}
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
			if tr.calls == 0 {
				w.Error("it makes no call")
			}
			if len(helps) > 0 && !lose {
				w.Errorf("calls of %v were never refused without an error", helps)
			}
			return
		}
	}
}

// empty checks that no task is inside the process's gate.
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

// tickOf returns the number of a job's next tick, the time of a regular sweep. The sweep of this
// tick has a name of its own.
func tickOf(w *trialWorld, j *record.Job) int64 {
	w.Helper()
	for tick := time.Now().UnixNano()/int64(2*time.Minute) - 1; ; tick++ {
		if at := tickAt(j, tick); at.After(time.Now()) {
			return tick
		}
	}
}

// tickAt returns the time of a tick, at which a regular sweep runs. Ticks are two minutes apart.
// Their times depend on the job.
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

// A lines collects log lines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
