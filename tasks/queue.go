package tasks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"sync/atomic"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/googleapis/gax-go/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/auth"
)

// Options are the settings of a [Queue]. Set ServiceAccount, InsecureSkipVerify, or both: the zero
// value is an error.
type Options struct {
	// ServiceAccount is the e-mail address of the service account whose OIDC token each delivery
	// carries. The handler refuses tokens of other accounts.
	ServiceAccount string

	// Audience is the audience of the token. Defaults to the queue's URL. It requires
	// ServiceAccount.
	Audience string

	// InsecureSkipVerify makes the handler accept every request without a look at its token.
	// Anybody who reaches such a handler can run tasks. Use it for emulators, and for a Cloud Run
	// service that requires authentication: Cloud Run has then verified the token, and removed its
	// signature. In that case set ServiceAccount, too, so that deliveries carry a token. Defaults
	// to false.
	InsecureSkipVerify bool

	// KeysURL is the URL of the public keys that verify the tokens. Defaults to Google's. For an
	// emulator it is [github.com/scattermap/scattermap/emulator.Emulator.KeysURL].
	KeysURL string

	// DispatchDeadline is how long a delivery may take, in [15s, 30m]. After that Cloud Tasks gives
	// it up and delivers the task again. Defaults to 10m, as in Cloud Tasks.
	DispatchDeadline time.Duration
}

// Bounds of Options.DispatchDeadline, from the documentation of Task.dispatch_deadline.
const (
	defaultDeadline  = 10 * time.Minute
	shortestDeadline = 15 * time.Second
	longestDeadline  = 30 * time.Minute
)

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.DispatchDeadline == 0 {
		opts.DispatchDeadline = defaultDeadline
	}
	return opts
}

func (o Options) validate() error {
	switch {
	case o.ServiceAccount == "" && !o.InsecureSkipVerify:
		return errors.New("tasks: Options.ServiceAccount is empty: name the account whose token the deliveries " +
			"carry, or set InsecureSkipVerify")
	case o.ServiceAccount == "" && o.Audience != "":
		return errors.New("tasks: Options.Audience is set without ServiceAccount, so deliveries carry no token: " +
			"set both or neither")
	case o.InsecureSkipVerify && o.KeysURL != "":
		return errors.New("tasks: Options.KeysURL is set with InsecureSkipVerify: no token is verified")
	case o.DispatchDeadline < shortestDeadline || o.DispatchDeadline > longestDeadline:
		return fmt.Errorf("tasks: Options.DispatchDeadline is %v, it has to be in [%v, %v]", o.DispatchDeadline,
			shortestDeadline, longestDeadline)
	}
	return nil
}

// A Queue is a Cloud Tasks queue together with the URL that its tasks are sent to. It can be used
// concurrently.
type Queue struct {
	client   *cloudtasks.Client
	name     string
	url      *url.URL
	opts     Options
	verifier *auth.Verifier // checks the tokens of deliveries; nil: every request is accepted

	// ahead is how far the clock of Cloud Tasks is ahead of this process' clock, as a
	// time.Duration. It is negative if this process' clock is ahead, and 0 if the clocks agree or
	// nothing is known.
	ahead atomic.Int64
}

var queueName = regexp.MustCompile(`^(projects/[^/]+/locations/[^/]+)/queues/[A-Za-z0-9-]{1,100}$`)

// NewQueue returns a Queue for a Cloud Tasks queue. It makes no call. The queue's name is
// "projects/PROJECT/locations/LOCATION/queues/QUEUE". The queue must exist when tasks are enqueued:
// see [Queue.Create].
//
// The target is an http or https URL without a query, such as "https://worker.example/mapper/".
// Tasks are sent to paths below it. NewQueue returns an error if an argument is invalid.
func NewQueue(client *cloudtasks.Client, name, target string, o *Options) (*Queue, error) {
	if !queueName.MatchString(name) {
		return nil, fmt.Errorf("tasks: the queue's name is %q, it has to be "+
			"projects/PROJECT/locations/LOCATION/queues/QUEUE", name)
	}
	u, err := parseURL("the target", target)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("tasks: the client is nil")
	}
	opts := o.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if opts.Audience == "" {
		opts.Audience = target
	}
	q := &Queue{client: client, name: name, url: u, opts: opts}
	if !opts.InsecureSkipVerify {
		if q.verifier, err = auth.NewOIDC(opts.Audience, []string{opts.ServiceAccount}, opts.KeysURL); err != nil {
			return nil, err
		}
	}
	return q, nil
}

func parseURL(what, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("tasks: %s is %q, it has to be an http or https URL without a query", what, s)
	}
	return u, nil
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// URL returns the target of [NewQueue].
func (q *Queue) URL() string { return q.url.String() }

// DispatchDeadline returns how long a delivery may take: see [Options].
func (q *Queue) DispatchDeadline() time.Duration { return q.opts.DispatchDeadline }

// A failure is the error of a call of Cloud Tasks.
type failure struct {
	error

	queue string
}

func (f failure) Unwrap() error { return f.error }

// Queue returns the full name of the queue that the call was about.
func (f failure) Queue() string { return f.queue }

// failed returns the error of a call that gets or creates the queue or task with this name.
func (q *Queue) failed(what, name string, err error) error {
	return failure{fmt.Errorf("tasks: %s %s: %w", what, name, err), q.name}
}

// MaxConcurrent returns how many tasks the queue delivers at once, its setting
// max-concurrent-dispatches. The caller needs the permission cloudtasks.queues.get.
func (q *Queue) MaxConcurrent(ctx context.Context) (int, error) {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return 0, q.failed("get", q.name, err)
	}
	return int(queue.GetRateLimits().GetMaxConcurrentDispatches()), nil
}

// enqueueTimeout limits the time of one Enqueue, with its retries.
const enqueueTimeout = 30 * time.Second

// transient are the codes of errors after which Enqueue tries again to create a task. The failed
// call may have created it, and the retry then fails because the ID exists.
var transient = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Aborted,
	codes.ResourceExhausted}

// ErrExists says that the queue has a task of this ID, or had one within about a day.
var ErrExists = errors.New("a task of this ID exists, or existed recently")

// Enqueue creates a task. If the queue has a task of that ID, or had one within about a day, the
// error is [ErrExists]. Transient errors are retried for up to 30 s. If an attempt created the task
// but its answer was lost, the error is [ErrExists], too.
func (q *Queue) Enqueue(ctx context.Context, t Task) error {
	req := q.request(ctx, t, time.Now())
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	sent := time.Now()
	task, err := q.client.CreateTask(ctx, req, gax.WithRetry(func() gax.Retryer {
		return gax.OnCodes(transient, gax.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Multiplier: 2})
	}))
	if status.Code(err) == codes.AlreadyExists {
		return fmt.Errorf("tasks: %s: %w", req.Task.Name, ErrExists)
	}
	if err != nil {
		return q.failed("create", req.Task.Name, err)
	}
	if created := task.GetCreateTime(); created.IsValid() {
		q.ahead.Store(int64(ahead(created.AsTime(), sent, time.Now())))
	}
	return nil
}

// ahead returns how far another clock is ahead of this process' clock. The other clock has shown
// the time at, rounded down to seconds, between the times from and to of this process. Differences
// of up to ten seconds count as none, and so do differences of more than a day: an emulator may
// have no clock.
func ahead(at, from, to time.Time) time.Duration {
	d := max(0, at.Sub(to)) + min(0, at.Sub(from))
	if d.Abs() <= 10*time.Second || d.Abs() > 24*time.Hour {
		return 0
	}
	return d
}

// local returns a time of Cloud Tasks' clock by this process' clock. A zero time stays zero.
func (q *Queue) local(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(-time.Duration(q.ahead.Load()))
}

// Parallel is how many calls [Queue.EnqueueAll] makes at once. A gRPC connection usually allows 100
// calls at once, so half of them remain for other calls.
const Parallel = 50

// EnqueueAll creates tasks, up to [Parallel] at once. A task whose ID is taken counts as created.
// After an error it starts no further calls, and returns the first error. Some of the tasks may
// have been created; call it again with all of them.
func (q *Queue) EnqueueAll(ctx context.Context, all []Task) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel)
	for _, t := range all {
		group.Go(func() error {
			if err := q.Enqueue(ctx, t); !errors.Is(err, ErrExists) {
				return err
			}
			return nil
		})
	}
	return group.Wait()
}
