package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A machine runs an instance. It is a process, and in tests a fake.
type machine interface {
	http.Handler                     // serves requests
	Ready(ctx context.Context) error // waits until the startup probe succeeds
	Pause()                          // takes away the process's CPU
	Continue()                       // gives the CPU back
	Terminate()                      // tells the process to end, and kills it if it has not ended 10 s later
	Kill()                           // ends the process at once
	Ended() <-chan struct{}
	Err() error // returns why the process has ended, or nil
}

// An instance is a running copy of a revision of the service.
type instance struct {
	machine
	number   int
	revision *revision
	stage    stage
	killed   bool
	why      string // why the instance was told to end; empty: it was not told to
	underWay int
	ready    time.Time // when the instance became ready
	idle     time.Time // when the instance's last request ended
}

// A revision is one version of the service.
type revision struct {
	name      string
	launch    func() (machine, error)
	instances []*instance
	waiting   []chan *instance
}

// standings returns what scale.go needs to know about each instance of the revision.
func (v *revision) standings(now time.Time) []standing {
	all := make([]standing, len(v.instances))
	for i, in := range v.instances {
		all[i] = standing{stage: in.stage, underWay: in.underWay}
		if in.underWay == 0 {
			all[i].idle = now.Sub(in.idle)
		}
	}
	return all
}

// A router simulates Cloud Run in front of a service: it starts and ends instances, and gives each
// request to one.
type router struct {
	limits
	always  bool          // whether instances have a CPU even without requests
	wait    time.Duration // minimum time for which a request waits for an instance before it is refused
	timeout time.Duration // longest time of a request
	// the delay before an instance's process starts, which simulates the platform's part of a cold
	// start
	cold time.Duration
	say  func(string, ...any)

	mu        sync.Mutex
	revisions []*revision
	percent   int // the percentage of the requests that the newest revision gets
	requests  int
	wake      *time.Timer
	closed    bool
	counts    counts
	problems  []error
	failed    chan struct{}   // closed at the first error that must not happen
	life      context.Context // ends when the router is closed
	end       context.CancelFunc
	all       sync.WaitGroup
}

// counts are the router's counters.
type counts struct {
	Requests int `json:"requests"`
	Waited   int `json:"waited"`    // number of requests that waited for an instance
	Refused  int `json:"refused"`   // requests answered with 429, because no instance was free in time
	TimedOut int `json:"timed_out"` // requests answered with 504, because they took too long
	Cut      int `json:"cut"`       // requests answered with 503, because the instance ended before it answered
	Started  int `json:"started"`   // number of instances that were started
	AtOnce   int `json:"at_once"`   // maximum number of concurrent instances
	Idle     int `json:"idle"`      // number of instances that ended after they were idle

	longestWait time.Duration
	ready       int           // number of instances that became ready
	starts      time.Duration // the total time from the starts of these instances until they became ready
	life        time.Duration // the total time for which these instances then existed
	paused      time.Duration // the part of life in which instances had no CPU
}

// deploy adds a revision. The first one gets all requests. A later one gets none before a call of
// shift.
func (r *router) deploy(name string, launch func() (machine, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revisions = append(r.revisions, &revision{name: name, launch: launch})
	r.percent, r.requests = 0, 0
	if len(r.revisions) == 1 {
		r.percent = 100
	}
	r.settle()
}

// shift gives a percentage of the requests to the newest revision, and the rest to the revision
// before it.
func (r *router) shift(percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.percent, r.requests = percent, 0
	r.say("%d%% of the requests go to %s", percent, r.revisions[len(r.revisions)-1].name)
	r.settle()
}

// limitsOf returns the limits of a revision's instances. A revision that gets no requests has no
// minimum.
func (r *router) limitsOf(v *revision) limits {
	l, last := r.limits, len(r.revisions)-1
	if gets := v == r.revisions[last] && r.percent > 0 || last > 0 && v == r.revisions[last-1] &&
		r.percent < 100; !gets {
		l.min = 0
	}
	return l
}

// settle assigns waiting requests to instances, and starts and ends instances, until
// there is nothing more to do. The caller must have locked the router.
func (r *router) settle() {
	if r.closed {
		return
	}
	now, next := time.Now(), time.Duration(0)
	for _, v := range r.revisions {
		l := r.limitsOf(v)
		for len(v.waiting) > 0 {
			i := l.choose(v.standings(now))
			if i < 0 {
				break
			}
			r.take(v.instances[i], now)
			v.waiting[0] <- v.instances[i]
			v.waiting = v.waiting[1:]
		}
		for range l.missing(v.standings(now), len(v.waiting)) {
			r.start(v)
		}
		for _, i := range l.spare(v.standings(now)) {
			r.counts.Idle++
			r.terminate(v.instances[i], fmt.Sprintf("it was idle for %v", r.keep))
		}
		for _, s := range v.standings(now) {
			if s.stage == serving && s.underWay == 0 && len(v.instances) > l.min &&
				(next == 0 || l.keep-s.idle < next) {
				next = max(l.keep-s.idle, time.Millisecond)
			}
		}
	}
	r.wake.Stop()
	if next > 0 {
		r.wake.Reset(next)
	}
}

// take assigns a request to an instance.
func (r *router) take(in *instance, now time.Time) {
	if in.underWay++; in.underWay == 1 && !r.always {
		r.counts.paused += now.Sub(in.idle)
		in.Continue()
	}
}

// release records that a request of an instance has ended. An instance without requests loses its
// CPU.
func (r *router) release(in *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in.underWay--; in.underWay == 0 {
		r.rest(in)
	}
	r.settle()
}

// rest records that an instance has no requests now, and takes its CPU. An instance keeps the CPU
// if it was told to end, or if instances always have one.
func (r *router) rest(in *instance) {
	in.idle = time.Now()
	if in.stage == serving && !r.always {
		in.Pause()
	}
}

// start starts an instance of a revision.
func (r *router) start(v *revision) {
	r.counts.Started++
	in := &instance{number: r.counts.Started, revision: v}
	v.instances = append(v.instances, in)
	there := 0
	for _, v := range r.revisions {
		for _, s := range v.standings(time.Time{}) {
			if s.stage != ending {
				there++
			}
		}
	}
	r.counts.AtOnce = max(r.counts.AtOnce, there)
	r.all.Go(func() { r.live(in) })
}

// live manages an instance from its start to its end.
func (r *router) live(in *instance) {
	begun := time.Now()
	time.Sleep(r.cold)
	var err error
	if in.machine, err = in.revision.launch(); err == nil {
		err = in.Ready(r.life)
	}
	r.mu.Lock()
	if err != nil || r.closed {
		r.drop(in)
		if err != nil && !r.closed {
			r.problem(fmt.Errorf("instance %d of %s did not start: %w", in.number, in.revision.name, err))
		}
		r.mu.Unlock()
		if in.machine != nil {
			in.Kill()
			<-in.Ended()
		}
		return
	}
	in.stage, in.ready = serving, time.Now()
	took := in.ready.Sub(begun)
	r.counts.starts += took
	r.counts.ready++
	r.say("instance %d of %s is ready, after %v", in.number, in.revision.name, took.Round(10*time.Millisecond))
	r.rest(in)
	r.settle()
	r.mu.Unlock()

	<-in.Ended()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.life += time.Since(in.ready)
	switch err := in.Err(); {
	case in.killed || r.closed:
	case err != nil:
		r.problem(fmt.Errorf("instance %d of %s: %w", in.number, in.revision.name, err))
	case in.stage != ending:
		r.problem(fmt.Errorf("instance %d of %s has ended, and nobody had told it to", in.number, in.revision.name))
	default:
		r.say("instance %d of %s has shut down: %s", in.number, in.revision.name, in.why)
	}
	r.drop(in)
	r.settle()
}

// drop removes an instance from its revision.
func (r *router) drop(in *instance) {
	v := in.revision
	v.instances = slices.DeleteFunc(v.instances, func(other *instance) bool { return other == in })
}

// terminate tells an instance to end. From then on it gets no requests, and keeps its CPU until it
// has ended.
func (r *router) terminate(in *instance, why string) {
	if in.underWay == 0 && !r.always {
		r.counts.paused += time.Since(in.idle)
		in.Continue()
	}
	in.stage, in.why = ending, why
	if in.underWay > 0 {
		r.say("instance %d of %s gets SIGTERM during %d requests: %s", in.number, in.revision.name, in.underWay,
			why)
	}
	in.Terminate()
}

// disturb ends the instance that has the most requests. If kill is set, it kills it; otherwise it
// sends SIGTERM. It returns false if there is no instance.
func (r *router) disturb(kill bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*instance
	var standings []standing
	for _, v := range r.revisions {
		all = append(all, v.instances...)
		standings = append(standings, v.standings(time.Now())...)
	}
	i := busiest(standings)
	if i < 0 {
		return false
	}
	if in := all[i]; kill {
		in.stage, in.killed = ending, true
		r.say("instance %d of %s is killed during %d requests", in.number, in.revision.name, in.underWay)
		in.Kill()
	} else {
		r.terminate(in, "its machine is needed")
	}
	r.settle()
	return true
}

// retire sends SIGTERM to all instances of older revisions.
func (r *router) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.revisions[:len(r.revisions)-1] {
		for _, in := range v.instances {
			if in.stage == serving {
				r.terminate(in, "another revision has its place")
			}
		}
	}
	r.settle()
}

var errFull = errors.New("no instance is free")

// place returns an instance that accepts one more request. It waits for one if necessary.
func (r *router) place(ctx context.Context) (*instance, error) {
	r.mu.Lock()
	last := len(r.revisions) - 1
	v := r.revisions[last]
	if !toNewest(r.requests, r.percent) {
		v = r.revisions[max(last-1, 0)]
	}
	r.requests++
	r.counts.Requests++
	place := make(chan *instance, 1)
	v.waiting = append(v.waiting, place)
	r.settle()
	within := patience(r.wait, r.counts.ready, r.counts.starts)
	r.mu.Unlock()
	select {
	case in := <-place:
		return in, nil
	default:
	}
	begun := time.Now()
	timer := time.NewTimer(within)
	defer timer.Stop()
	var err error
	select {
	case in := <-place:
		r.waited(begun)
		return in, nil
	case <-timer.C:
		err = errFull
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.waited(begun)
	r.mu.Lock()
	v.waiting = slices.DeleteFunc(v.waiting, func(other chan *instance) bool { return other == place })
	r.mu.Unlock()
	select {
	case in := <-place: // an instance became free at the last moment
		return in, nil
	default:
		return nil, err
	}
}

// waited counts a request that has waited for an instance since the given time.
func (r *router) waited(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Waited++
	r.counts.longestWait = max(r.counts.longestWait, time.Since(since))
}

// ServeHTTP passes a request to an instance. After the timeout the sender gets 504, and the
// instance loses the connection but may continue.
func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	in, err := r.place(req.Context())
	if err != nil {
		if errors.Is(err, errFull) {
			r.count(&r.counts.Refused)
		}
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	defer r.release(in)
	ctx, cancel := context.WithTimeoutCause(req.Context(), r.timeout, errTimeout)
	defer cancel()
	in.ServeHTTP(w, req.WithContext(ctx))
}

var errTimeout = errors.New("the request has taken longer than the service's time-out")

// lost answers a request that its instance did not answer.
func (r *router) lost(w http.ResponseWriter, req *http.Request) {
	switch cause := context.Cause(req.Context()); {
	case errors.Is(cause, errTimeout):
		r.count(&r.counts.TimedOut)
		http.Error(w, cause.Error(), http.StatusGatewayTimeout)
	case cause == nil:
		r.count(&r.counts.Cut)
		http.Error(w, "the instance ended before it answered", http.StatusServiceUnavailable)
	}
}

func (r *router) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

// problem records an error that must not happen. The caller must have locked the router.
func (r *router) problem(err error) {
	if len(r.problems) == 0 {
		close(r.failed)
	}
	r.problems = append(r.problems, err)
}

// there returns the number of instances of all revisions, including those that are ending.
func (r *router) there() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.revisions {
		n += len(v.instances)
	}
	return n
}

// seen returns the router's counters, and an error with all recorded problems.
func (r *router) seen() (counts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, now := r.counts, time.Now()
	for _, v := range r.revisions {
		for i, s := range v.standings(now) {
			if s.stage != starting {
				c.life += now.Sub(v.instances[i].ready)
			}
			if s.stage == serving && !r.always {
				c.paused += s.idle
			}
		}
	}
	return c, errors.Join(r.problems...)
}

// newRouter returns a router without a revision.
func newRouter(l limits) *router {
	r := &router{limits: l, failed: make(chan struct{}), say: func(string, ...any) {}}
	r.life, r.end = context.WithCancel(context.Background())
	r.wake = time.AfterFunc(time.Hour, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settle()
	})
	return r
}

// close kills all instances.
func (r *router) close() {
	r.mu.Lock()
	r.closed = true
	r.end()
	r.wake.Stop()
	for _, v := range r.revisions {
		for _, in := range v.instances {
			if in.stage != starting { // instances that are starting are killed when they have started
				in.Kill()
			}
		}
	}
	r.mu.Unlock()
	r.all.Wait()
}
