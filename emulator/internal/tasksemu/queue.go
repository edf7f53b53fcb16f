package tasksemu

import (
	"container/heap"
	"context"
	"sync"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What a queue gets that is created without these settings, and their bounds,
// as the documentation of Cloud Tasks has them.
const (
	maxDispatchesPerSecond  = 500
	defaultConcurrent       = 1000
	maxConcurrentDispatches = 5000
	defaultMaxAttempts      = 100
	defaultMinBackoff       = 100 * time.Millisecond
	defaultMaxBackoff       = time.Hour
	defaultMaxDoublings     = 16
)

// tombstoneAge is how long the name of a task that is gone stays taken.
const tombstoneAge = 24 * time.Hour

// A queue delivers the tasks that were put into it.
type queue struct {
	server  *Server
	limiter *rate.Limiter
	wake    chan struct{} // a task or a place has appeared
	stop    context.CancelFunc

	mu         sync.Mutex
	config     *pb.Queue // never changed, only replaced
	tasks      map[string]*task
	waiting    taskHeap
	running    int
	tombstones map[string]time.Time // until when a name is taken
	graves     []string             // names in the order of their tombstones
}

// newQueue checks a queue's settings, and completes them.
func newQueue(s *Server, config *pb.Queue) (*queue, error) {
	config = proto.CloneOf(config)
	if config.RateLimits == nil {
		config.RateLimits = new(pb.RateLimits)
	}
	if config.RetryConfig == nil {
		config.RetryConfig = new(pb.RetryConfig)
	}
	limits, retries := config.RateLimits, config.RetryConfig
	setDefault(&limits.MaxDispatchesPerSecond, maxDispatchesPerSecond)
	setDefault(&limits.MaxConcurrentDispatches, defaultConcurrent)
	setDefault(&retries.MaxAttempts, defaultMaxAttempts)
	setDefault(&retries.MaxDoublings, defaultMaxDoublings)
	if retries.MinBackoff == nil {
		retries.MinBackoff = durationpb.New(defaultMinBackoff)
	}
	if retries.MaxBackoff == nil {
		retries.MaxBackoff = durationpb.New(defaultMaxBackoff)
	}
	switch {
	case limits.MaxDispatchesPerSecond < 0 || limits.MaxDispatchesPerSecond > maxDispatchesPerSecond && !s.opts.Unlimited:
		return nil, invalid("max_dispatches_per_second has to be in (0, %d], it is %v", maxDispatchesPerSecond, limits.MaxDispatchesPerSecond)
	case limits.MaxConcurrentDispatches < 0 || limits.MaxConcurrentDispatches > maxConcurrentDispatches:
		return nil, invalid("max_concurrent_dispatches has to be in [1, %d], it is %d", maxConcurrentDispatches, limits.MaxConcurrentDispatches)
	case retries.MaxAttempts < -1:
		return nil, invalid("max_attempts has to be at least -1, it is %d", retries.MaxAttempts)
	case retries.MinBackoff.AsDuration() < 0 || retries.MaxBackoff.AsDuration() < retries.MinBackoff.AsDuration():
		return nil, invalid("max_backoff has to be at least min_backoff, and min_backoff at least 0")
	}
	limits.MaxBurstSize = int32(max(1, limits.MaxDispatchesPerSecond))
	config.State = pb.Queue_RUNNING
	return &queue{
		server:     s,
		limiter:    rate.NewLimiter(rate.Limit(limits.MaxDispatchesPerSecond), int(limits.MaxBurstSize)),
		wake:       make(chan struct{}, 1),
		config:     config,
		tasks:      make(map[string]*task),
		tombstones: make(map[string]time.Time),
	}, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// add puts a task into the queue, unless its name is taken.
func (q *queue) add(t *task, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(now)
	_, taken := q.tombstones[t.name]
	if q.tasks[t.name] != nil || taken {
		return status.Errorf(codes.AlreadyExists, "Requested entity already exists: %s", t.name)
	}
	q.tasks[t.name] = t
	q.wait(t)
	return nil
}

// wait puts a task among the waiting ones. The queue is locked.
func (q *queue) wait(t *task) {
	heap.Push(&q.waiting, t)
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// remove takes a task out for good, and leaves its name behind. The queue is
// locked.
func (q *queue) remove(t *task, now time.Time) {
	delete(q.tasks, t.name)
	if t.place >= 0 {
		heap.Remove(&q.waiting, t.place)
	}
	q.tombstones[t.name] = now.Add(tombstoneAge)
	q.graves = append(q.graves, t.name)
}

// forget releases the names whose time is over. The queue is locked.
func (q *queue) forget(now time.Time) {
	n := 0
	for n < len(q.graves) && q.tombstones[q.graves[n]].Before(now) {
		delete(q.tombstones, q.graves[n])
		n++
	}
	q.graves = q.graves[n:]
}

// run dispatches tasks until ctx ends.
func (q *queue) run(ctx context.Context) {
	for {
		t, delay := q.next(time.Now())
		if t != nil {
			q.server.working.Go(func() { q.deliver(ctx, t) })
			continue
		}
		var timer <-chan time.Time
		if delay > 0 {
			timer = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-timer:
		}
	}
}

// next takes the next task if one can be delivered now. If not, it returns how
// long to wait for one: 0 means until the queue is woken.
func (q *queue) next(now time.Time) (*task, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.running >= int(q.config.RateLimits.MaxConcurrentDispatches) {
		return nil, 0
	}
	if due := q.waiting[0].due; due.After(now) {
		return nil, due.Sub(now)
	}
	reservation := q.limiter.ReserveN(now, 1)
	if delay := reservation.DelayFrom(now); delay > 0 {
		reservation.CancelAt(now)
		return nil, delay
	}
	t := heap.Pop(&q.waiting).(*task)
	q.running++
	t.dispatches++
	return t, 0
}

// taskHeap orders tasks by the time when they are due.
type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *taskHeap) Push(x any) {
	t := x.(*task)
	t.place = len(*h)
	*h = append(*h, t)
}

func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	t.place = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
