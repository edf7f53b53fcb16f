package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A ServiceLimits is what runs the tasks of a queue: so many instances, of which each takes so many
// requests at once. What is zero is not known.
type ServiceLimits struct {
	MaxInstances int           // at most, of Cloud Run's --max-instances
	Concurrency  int           // requests that an instance takes at once, of --concurrency
	Timeout      time.Duration // after which a request is cut off, of --timeout
	Queues       int           // that deliver to it; 0 is one
}

// atOnce returns how many requests the service takes at once, or 0 if that is not known.
func (s ServiceLimits) atOnce() int { return s.MaxInstances * s.Concurrency }

// ForTasks returns how many tasks all queues of the service together may deliver at once, or 0 if
// that is not known: nine tenths of the requests that it takes, and one less at least. The rest is
// for operators: otherwise the request that pauses a job competes with the load that it is to stop.
// A service that takes one request at once has none to keep.
func (s ServiceLimits) ForTasks() int {
	n := s.atOnce()
	return max(min(n, 1), n-max(1, (n+operatorsShare-1)/operatorsShare))
}

// operatorsShare is which part of a service's requests is for operators: one in so many.
const operatorsShare = 10

const (
	// sensibleBackoff is the max-backoff of a queue that Create makes: a task whose process has
	// died several times waits no longer for the next one.
	sensibleBackoff = time.Minute

	// longestBackoff is the longest one that Check does not object to. A queue has an hour by
	// default.
	longestBackoff = 5 * time.Minute

	// defaultAtOnce is how many tasks a queue that Create makes delivers at once, for a service of
	// unknown size.
	defaultAtOnce = 100

	// mostAtOnce is Cloud Tasks' own limit, from its page of quotas.
	mostAtOnce = 5000
)

// Create makes the queue for a service, unless there is one of its name, and reports whether it
// has: with as many deliveries at once as an even part of [ServiceLimits.ForTasks], or 100, a
// max-backoff of a minute, and attempts without end. It leaves a queue that exists as it is, see
// [Queue.CheckSettings]. The caller needs the permission cloudtasks.queues.create.
func (q *Queue) Create(ctx context.Context, s ServiceLimits) (created bool, err error) {
	atOnce := defaultAtOnce
	if n := s.ForTasks(); n > 0 {
		atOnce = max(1, min(n/max(1, s.Queues), mostAtOnce))
	}
	_, err = q.client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: queueName.FindStringSubmatch(q.name)[1],
		Queue: &cloudtaskspb.Queue{
			Name:        q.name,
			RateLimits:  &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(atOnce)},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(sensibleBackoff)},
		}})
	switch status.Code(err) {
	case codes.OK:
		return true, nil
	case codes.AlreadyExists:
		return false, nil
	}
	return false, fmt.Errorf("tasks: create %s: %w", q.name, err)
}

// CheckSettings returns what the queue's settings contradict: its own deadline, the service's
// limits, or that no task may wait for long or be given up. It is nil if they contradict nothing
// that is known. Each of the joined errors says what to do. The caller needs the permission
// cloudtasks.queues.get.
func (q *Queue) CheckSettings(ctx context.Context, s ServiceLimits) error {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return fmt.Errorf("tasks: get %s: %w", q.name, err)
	}
	return contradictions(queue, q.opts.DispatchDeadline, s)
}

// contradictions returns what contradicts each other in the settings of a queue, of its tasks and
// of their service.
func contradictions(queue *cloudtaskspb.Queue, deadline time.Duration, s ServiceLimits) error {
	var all []error
	say := func(format string, args ...any) {
		all = append(all, fmt.Errorf("tasks: "+queue.Name+": "+format, args...))
	}
	if queue.State == cloudtaskspb.Queue_PAUSED || queue.State == cloudtaskspb.Queue_DISABLED {
		say("the queue is %v, and delivers nothing: resume it", queue.State)
	}
	if n, most := int(queue.GetRateLimits().GetMaxConcurrentDispatches()), s.ForTasks(); most > 0 && n > most {
		say("it delivers up to %d tasks at once, and the service takes %d requests (%d instances of %d each), a tenth "+
			"of them for operators. Cloud Run answers the rest with 429, also a pause, and Cloud Tasks then throttles "+
			"the queue: set max-concurrent-dispatches to at most %d, or raise the service's limits",
			n, s.atOnce(), s.MaxInstances, s.Concurrency, most)
	}
	retries := queue.GetRetryConfig()
	if d := retries.GetMaxBackoff().AsDuration(); d > longestBackoff {
		say("a task that failed several times waits up to %v for its next attempt: set max-backoff to %v", d,
			sensibleBackoff)
	}
	if n := retries.GetMaxAttempts(); n > 0 {
		say("it drops a task after %d attempts, and the task's range waits for the next sweep: "+
			"set max-attempts to unlimited, which is -1 in the API", n)
	}
	if d := retries.GetMaxRetryDuration().AsDuration(); d > 0 && retries.GetMaxAttempts() > 0 {
		say("it drops a task that is older than %v: set max-retry-duration to 0", d)
	}
	if s.Timeout > 0 && s.Timeout < deadline {
		say("a delivery may take %v (Options.DispatchDeadline), and the service cuts requests off after %v: raise the "+
			"service's timeout, or lower DispatchDeadline", deadline, s.Timeout)
	}
	return errors.Join(all...)
}
