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

// ServiceLimits describe the service that runs the tasks of a queue. A field that is 0 is unknown.
// If Queues is 0, the service has one queue.
type ServiceLimits struct {
	MaxInstances int           // Cloud Run's --max-instances
	Concurrency  int           // requests that an instance takes at once: --concurrency
	Timeout      time.Duration // the time after which a request is cut off: --timeout
	Queues       int           // number of queues that deliver to the service
}

// atOnce returns how many requests the service takes at once, or 0 if that is unknown.
func (s ServiceLimits) atOnce() int { return s.MaxInstances * s.Concurrency }

// ForTasks returns how many tasks all queues of the service together should deliver at once, or 0
// if that is unknown. It keeps a tenth of the requests that the service takes at once, and at least
// one, for operators. They must be able to pause a job under load. The rest is for tasks. If the
// service takes only one request at once, ForTasks returns 1.
func (s ServiceLimits) ForTasks() int {
	n := s.atOnce()
	return max(min(n, 1), n-max(1, (n+operatorsShare-1)/operatorsShare))
}

// operatorsShare says which part of a service's concurrent requests is kept for operators: one in
// operatorsShare.
const operatorsShare = 10

const (
	// sensibleBackoff is the max-backoff of a queue that Create makes. A task whose process died
	// several times waits at most that long for its next attempt.
	sensibleBackoff = time.Minute

	// longestBackoff is the longest max-backoff that CheckSettings accepts. A queue's default is an
	// hour.
	longestBackoff = 5 * time.Minute

	// defaultAtOnce is the max-concurrent-dispatches of a queue that Create makes, if the size of
	// the service is unknown.
	defaultAtOnce = 100

	// mostAtOnce is the largest max-concurrent-dispatches that Cloud Tasks accepts, from its page
	// of quotas.
	mostAtOnce = 5000
)

// Create creates the queue with settings that suit the service. It returns false if the queue
// exists already, and changes nothing then; [Queue.CheckSettings] checks an existing queue.
//
// The queues of the service share [ServiceLimits.ForTasks] equally: a new queue delivers up to its
// share of tasks at once, at most 5,000. If the limits are unknown, it delivers up to 100 at once.
// Its max-backoff is one minute, and its max-attempts is unlimited. The caller needs the permission
// cloudtasks.queues.create.
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
	return false, q.failed("create", q.name, err)
}

// CheckSettings returns an error if the queue's settings do not suit the service or this package.
// It checks:
//
//   - The queue is not paused or disabled.
//   - It does not deliver more tasks at once than [ServiceLimits.ForTasks].
//   - The service does not cut off a request before [Options].DispatchDeadline.
//   - No failed task waits for more than five minutes for its next attempt, and none is given up.
//
// It joins all errors, and each says what to do. The caller needs the permission
// cloudtasks.queues.get.
func (q *Queue) CheckSettings(ctx context.Context, s ServiceLimits) error {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return q.failed("get", q.name, err)
	}
	return contradictions(queue, q.opts.DispatchDeadline, s)
}

// contradictions returns all problems that CheckSettings reports, joined into one error. The
// argument deadline is the deadline of the queue's tasks.
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
