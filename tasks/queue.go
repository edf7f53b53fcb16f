package tasks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/googleapis/gax-go/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/auth"
)

// Options are the settings of a [Queue]. ServiceAccount or InsecureSkipVerify
// has to be set, or both.
type Options struct {
	// ServiceAccount is the e-mail address of the service account whose OIDC
	// token each delivery carries. The handler takes no others.
	ServiceAccount string

	// Audience is whom the token is meant for. Defaults to the queue's URL.
	Audience string

	// InsecureSkipVerify has the handler take whatever comes: for emulators, and for a
	// service whose callers something in front of it has already checked, as
	// Cloud Run's own IAM check does, which removes the token's signature. That
	// needs a ServiceAccount all the same. Anybody who reaches such a handler can
	// run tasks. Defaults to false.
	InsecureSkipVerify bool

	// KeysURL is where the public keys are that verify the tokens. Defaults to
	// Google's; an emulator has its own.
	KeysURL string

	// DispatchDeadline is how long a delivery may take before Cloud Tasks gives it up
	// and makes another, in [15s, 30m]. Defaults to 10m, Cloud Tasks' own
	// default.
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

// A Queue is a Cloud Tasks queue whose tasks are sent to one URL.
type Queue struct {
	client   *cloudtasks.Client
	name     string
	url      *url.URL
	opts     Options
	verifier *auth.Verifier // nil: whatever comes is taken
}

var queueName = regexp.MustCompile(`^(projects/[^/]+/locations/[^/]+)/queues/[A-Za-z0-9-]{1,100}$`)

// NewQueue returns the queue of a name, which is
// "projects/PROJECT/locations/LOCATION/queues/QUEUE" and has to exist. Its tasks
// are sent to paths below the target, such as "https://worker.example/mapper/".
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

// URL returns the URL below which tasks are sent.
func (q *Queue) URL() string { return q.url.String() }

// DispatchDeadline returns how long a delivery may take, see [Options.DispatchDeadline].
func (q *Queue) DispatchDeadline() time.Duration { return q.opts.DispatchDeadline }

// MaxConcurrent returns how many tasks the queue delivers at once. The caller needs the
// permission cloudtasks.queues.get.
func (q *Queue) MaxConcurrent(ctx context.Context) (int, error) {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return 0, fmt.Errorf("tasks: get %s: %w", q.name, err)
	}
	return int(queue.GetRateLimits().GetMaxConcurrentDispatches()), nil
}

// enqueueTimeout bounds one Enqueue with its retries.
const enqueueTimeout = 30 * time.Second

// transient are the errors after which a create is tried again. It may have
// taken place all the same: then its ID exists, which is a success.
var transient = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Aborted,
	codes.ResourceExhausted}

// ErrExists says that a queue has a task of that ID, or had one within a day or
// so.
var ErrExists = errors.New("a task of this ID exists, or existed recently")

// Enqueue creates a task. If its ID is taken the error is [ErrExists], and the
// task that took it is or was delivered in its place. The errors of a service
// that is out of reach for a moment are retried here.
func (q *Queue) Enqueue(ctx context.Context, t Task) error {
	req := q.request(ctx, t, time.Now())
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	_, err := q.client.CreateTask(ctx, req, gax.WithRetry(func() gax.Retryer {
		return gax.OnCodes(transient, gax.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Multiplier: 2})
	}))
	if status.Code(err) == codes.AlreadyExists {
		return fmt.Errorf("tasks: %s: %w", req.Task.Name, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("tasks: create %s: %w", req.Task.Name, err)
	}
	return nil
}

// Parallel is how many calls EnqueueAll has under way: those for the hundred children that a
// range has at most are two rounds, on the hundred streams that a connection of gRPC usually has.
const Parallel = 50

// EnqueueAll creates tasks, several at a time. A task whose ID is taken counts
// as created. It stops at the first error.
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
