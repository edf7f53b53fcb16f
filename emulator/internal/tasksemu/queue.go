package tasksemu

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/tidwall/btree"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
)

// tombstoneAge is how long the name of a removed task can't be used again.
const tombstoneAge = 24 * time.Hour

// A queue is a queue with its tasks, and has a dispatcher that delivers them.
type queue struct {
	server *Server
	era    *era
	wake   chan struct{} // receives a value when a task was added, or when the next delivery may start
	closed chan struct{} // closed when the queue is deleted

	mu         sync.Mutex
	config     *pb.Queue // the settings; a change replaces the message, and never modifies it
	limiter    *rate.Limiter
	throttle   throttle
	tasks      btree.Map[string, *task]
	waiting    taskHeap
	arrivals   uint64
	running    int                  // number of deliveries under way, without forced ones (RunTask)
	tombstones map[string]time.Time // names of removed tasks, with the times until which no new task can have them
	graves     []string             // the names in tombstones, those that expire first at the start
}

func newQueue(s *Server, e *era, config *pb.Queue) *queue {
	return &queue{
		server: s,
		era:    e,
		limiter: rate.NewLimiter(rate.Limit(config.RateLimits.MaxDispatchesPerSecond),
			int(config.RateLimits.MaxBurstSize)),
		wake:       make(chan struct{}, 1),
		closed:     make(chan struct{}),
		config:     config,
		tasks:      *btree.NewMap[string, *task](0),
		tombstones: make(map[string]time.Time),
	}
}

// proto returns the queue in the protocol's form.
func (q *queue) proto() *pb.Queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.config
}

// configure replaces the queue's settings by what f returns for them.
func (q *queue) configure(f func(*pb.Queue) (*pb.Queue, error)) (*pb.Queue, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	config, err := f(proto.CloneOf(q.config))
	if err != nil {
		return nil, err
	}
	q.config = config
	q.setRate(time.Now())
	q.signal()
	return config, nil
}

// setRate sets the rate at which the dispatcher takes tasks: the settings' rate, reduced by the
// throttle. The caller has locked the queue.
func (q *queue) setRate(now time.Time) {
	limits := q.config.RateLimits
	share := q.throttle.share()
	if limit := rate.Limit(limits.MaxDispatchesPerSecond * share); limit != q.limiter.Limit() {
		q.limiter.SetLimitAt(now, limit)
	}
	if burst := max(1, int(float64(limits.MaxBurstSize)*share)); burst != q.limiter.Burst() {
		q.limiter.SetBurstAt(now, burst)
	}
}

// add puts a new task into the queue. It returns an error if a task has or recently had this name.
func (q *queue) add(t *task, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(now)
	if q.find(t.name, now) != nil {
		return errTaskExists
	}
	if _, taken := q.tombstones[t.name]; taken {
		return errTaskExisted
	}
	q.tasks.Set(t.name, t)
	q.wait(t)
	return nil
}

// find returns the task with a name, or nil if it does not exist. The caller has locked the queue.
func (q *queue) find(name string, now time.Time) *task {
	t, _ := q.tasks.Get(name)
	if t != nil && t.expired(now) {
		q.remove(t, now)
		return nil
	}
	return t
}

// missing returns the error for a name that no task has. The caller has locked the queue.
func (q *queue) missing(name string) error {
	q.forget(time.Now())
	if _, existed := q.tombstones[name]; existed {
		return errTaskGone
	}
	return errNotFound
}

// wait adds a task to the waiting tasks. The caller has locked the queue.
func (q *queue) wait(t *task) {
	t.at = t.due
	q.push(t)
	q.signal()
}

func (q *queue) push(t *task) {
	q.arrivals++
	t.number = q.arrivals
	heap.Push(&q.waiting, t)
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// remove removes a task from the queue. For a day, no task can have its name. The caller has locked
// the queue.
func (q *queue) remove(t *task, now time.Time) {
	q.tasks.Delete(t.name)
	if t.place >= 0 {
		heap.Remove(&q.waiting, t.place)
	}
	q.tombstones[t.name] = now.Add(tombstoneAge)
	q.graves = append(q.graves, t.name)
}

// forget drops the tombstones that have expired. The caller has locked the queue.
func (q *queue) forget(now time.Time) {
	n := 0
	for n < len(q.graves) && q.tombstones[q.graves[n]].Before(now) {
		delete(q.tombstones, q.graves[n])
		n++
	}
	q.graves = q.graves[n:]
}

// purge removes all tasks. Deliveries under way continue, but their tasks are not retried. The
// caller has locked the queue.
func (q *queue) purge(now time.Time) {
	for _, t := range q.waiting {
		t.place = -1
	}
	q.waiting = nil
	for _, t := range q.tasks.Values() {
		q.remove(t, now)
	}
}

// run dispatches tasks until the queue is deleted or the server ends.
func (q *queue) run(ctx context.Context) {
	for {
		d, delay := q.next(time.Now())
		if d != nil {
			q.era.working.Go(func() { q.deliver(ctx, d) })
			continue
		}
		var timer <-chan time.Time
		if delay > 0 {
			timer = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.closed:
			return
		case <-q.wake:
		case <-timer:
		}
	}
}

// next starts the next delivery if the queue's limits allow it now. Otherwise it returns how long
// to wait. 0 means to wait until the channel wake has a value.
func (q *queue) next(now time.Time) (*delivery, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if len(q.waiting) == 0 || q.config.State != pb.Queue_RUNNING ||
			q.running >= int(q.config.RateLimits.MaxConcurrentDispatches) {
			return nil, 0
		}
		if at := q.waiting[0].at; at.After(now) {
			return nil, at.Sub(now)
		}
		if t := q.waiting[0]; t.expired(now) {
			q.remove(t, now)
			continue
		}
		if delay := q.throttled(now); delay > 0 {
			return nil, delay
		}
		place := 0
		if f := q.server.opts.Faults; f != nil {
			place = f.Pick(len(q.waiting))
		}
		t := q.waiting.take(place, now)
		if f := q.server.opts.Faults; f != nil && !t.held {
			if delay := f.Hold(); delay > 0 {
				t.held = true
				t.at = now.Add(delay)
				q.push(t)
				continue
			}
		}
		q.limiter.AllowN(now, 1) // succeeds, because throttled has checked that there is a token
		q.running++
		return q.begin(t, now), 0
	}
}

// throttled returns how long the queue has to wait until its rate allows a delivery. The caller has
// locked the queue.
func (q *queue) throttled(now time.Time) time.Duration {
	q.throttle = q.throttle.at(now)
	q.setRate(now)
	if q.throttle.until.After(now) {
		return q.throttle.until.Sub(now)
	}
	tokens := q.limiter.TokensAt(now)
	if tokens >= 1 {
		return 0
	}
	// Rounded up, because the token exists only after the full time.
	delay := time.Duration(math.Ceil((1 - tokens) / float64(q.limiter.Limit()) * float64(time.Second)))
	if recovery := q.throttle.next(now); recovery > 0 {
		delay = min(delay, recovery)
	}
	return delay
}
