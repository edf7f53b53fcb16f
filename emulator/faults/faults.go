package faults

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator/internal/inject"
)

// A Kind says what goes wrong. LoseCall, LoseAnswer, SlowCall and AbortCommit happen to calls of
// Datastore and Cloud Tasks. All others happen to deliveries of tasks.
type Kind int

const (
	// LoseCall answers a call with an error, and the call has no effect. In production this happens
	// if the service is overloaded or restarts. After UNAVAILABLE, the Go clients repeat calls that
	// are safe to repeat.
	LoseCall Kind = iota + 1

	// LoseAnswer lets a call take effect, but answers it with an error. In production this happens
	// if the connection breaks before the answer arrives. The caller can't tell it from LoseCall: a
	// commit may have taken effect, or a task may exist.
	LoseAnswer

	// SlowCall delays a call by Rule.Latency: one half before the effect, the other half after it.
	// If the caller's deadline passes in the first half, the call has no effect. If it passes in
	// the second half, the effect stays.
	SlowCall

	// AbortCommit answers the commit of a transaction with ABORTED, and rolls the transaction back.
	// In production this happens if another transaction has changed or locked the same entities.
	// The Go client's RunInTransaction tries three times by default.
	AbortCommit

	// DeliverTwice delivers a task a second time, Rule.Latency after its delivery has ended. The
	// second delivery has the same headers. Its answer has no effect. In production this is rare,
	// but Cloud Tasks promises only at-least-once delivery.
	DeliverTwice

	// DeliverTogether delivers a task a second time, Rule.Latency after the start of its delivery.
	// So both deliveries may run at once. In production this also happens if a handler still runs
	// after its deadline, and Cloud Tasks retries the task.
	DeliverTogether

	// DeliverLate delays a due task by Rule.Latency, so that other tasks overtake it. In
	// production schedule_time is only the earliest time of a delivery.
	DeliverLate

	// DeliverShuffled delivers a random due task instead of the first one. In production Cloud
	// Tasks does not guarantee an order.
	DeliverShuffled

	// CrashReceiver cuts off a delivery after Rule.Latency, by default a random time of up to a
	// second. It cancels the context of the handler's request. The answer is lost, even if the
	// handler has already given it. In production this happens if the instance that handles the
	// request is killed. Here the handler continues, unless it watches its context.
	CrashReceiver

	// LoseReply is LoseAnswer for deliveries: the handler finishes, but its answer is lost, so the
	// task is delivered again. In production this happens if the connection breaks before the
	// answer arrives.
	LoseReply
)

var kindNames = map[Kind]string{
	LoseCall: "LoseCall", LoseAnswer: "LoseAnswer", SlowCall: "SlowCall", AbortCommit: "AbortCommit",
	DeliverTwice: "DeliverTwice", DeliverTogether: "DeliverTogether", DeliverLate: "DeliverLate",
	DeliverShuffled: "DeliverShuffled", CrashReceiver: "CrashReceiver", LoseReply: "LoseReply",
}

// String returns the name of the kind's constant.
func (k Kind) String() string {
	if name := kindNames[k]; name != "" {
		return name
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// methods has the short names of all methods of both services, such as Commit.
var methods = func() map[string]bool {
	names := make(map[string]bool)
	for _, service := range []grpc.ServiceDesc{datastorepb.Datastore_ServiceDesc, cloudtaskspb.CloudTasks_ServiceDesc,
		longrunningpb.Operations_ServiceDesc} {
		for _, m := range service.Methods {
			names[m.MethodName] = true
		}
	}
	return names
}()

// ofCalls reports whether this kind of fault happens to calls, and not to deliveries.
func (k Kind) ofCalls() bool { return k <= AbortCommit }

// A Rule says what goes wrong, how often, and when. The rules apply to each call or delivery one
// after the other, so several faults may happen to it. After a rule that prevents a call's effect,
// the remaining rules do not apply to this call. Each kind of fault happens to a delivery at most
// once. No delivery gets both CrashReceiver and LoseReply.
type Rule struct {
	Kind Kind

	// Methods are the short names of the calls that the rule applies to, such as "Commit" and
	// "CreateTask". Faults of deliveries have none. Defaults to all calls.
	Methods []string

	// Share is the probability of the fault, in (0, 1]. Defaults to 1.
	Share float64

	// After and Until limit the rule to a time window, counted from the start of the emulator. For
	// example, a service that is down for a while is LoseCall in a window. If Until is 0, the
	// window has no end. Defaults to always.
	After, Until time.Duration

	// Limit is the largest number of times that the fault happens. Defaults to no limit.
	Limit int

	// Code is the error code of LoseCall and LoseAnswer. Defaults to codes.Unavailable.
	Code codes.Code

	// Latency is the fault's duration, or when it happens: see the constants of [Kind]. Each fault
	// draws its own value. SlowCall and DeliverLate require a Latency. For CrashReceiver it
	// defaults to a random duration of up to a second, and for other kinds to 0.
	Latency Latency
}

func (r Rule) withDefaults() Rule {
	if r.Share == 0 {
		r.Share = 1
	}
	if r.Code == codes.OK {
		r.Code = codes.Unavailable
	}
	if r.Latency == nil {
		r.Latency = Constant(0)
		if r.Kind == CrashReceiver {
			r.Latency = Uniform{Max: time.Second}
		}
	}
	return r
}

func (r Rule) validate() error {
	if kindNames[r.Kind] == "" {
		return fmt.Errorf("Rule.Kind is not one of the constants: %v", r.Kind)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("rule of %v: "+format, append([]any{r.Kind}, args...)...)
	}
	switch {
	case !(r.Share >= 0 && r.Share <= 1):
		return refuse("Share has to be in (0, 1], it is %v", r.Share)
	case r.After < 0 || r.Until < 0 || r.Until != 0 && r.Until <= r.After:
		return refuse("Until has to be after After, they are %v and %v", r.Until, r.After)
	case r.Limit < 0:
		return refuse("Limit has to be at least 0, it is %d", r.Limit)
	case len(r.Methods) > 0 && !r.Kind.ofCalls():
		return refuse("Methods are for faults of calls")
	case slices.ContainsFunc(r.Methods, func(m string) bool { return !methods[m] }):
		return refuse("Methods are names of calls, as in \"Commit\", they are %q", r.Methods)
	case r.Kind == AbortCommit && slices.ContainsFunc(r.Methods, func(m string) bool { return m != "Commit" }):
		return refuse("Methods can be only \"Commit\", they are %q", r.Methods)
	case (r.Kind == SlowCall || r.Kind == DeliverLate) && r.Latency == nil:
		return refuse("Latency is not set")
	}
	if r.Latency != nil {
		if err := r.Latency.validate(); err != nil {
			return refuse("Latency: %w", err)
		}
	}
	return nil
}

// Faults make calls and deliveries of one emulator fail, by rules and by a seed. They are safe for
// concurrent use.
//
// Each rule has its own sequence of random numbers. It draws one number for each call or delivery
// to which it applies. So the same seed and the same order of calls give the same faults. In a
// testing/synctest bubble, this order is the same in every run, unless the program's own goroutines
// change it.
type Faults struct {
	seed uint64

	mu      sync.Mutex
	begun   time.Time // when the emulator started; zero before
	paused  bool
	rules   []*activeRule
	invalid error // the error of the first invalid rule
}

// An activeRule is a Rule with its random numbers and counts.
type activeRule struct {
	Rule
	rng      *rand.Rand
	happened int
}

// New returns faults for emulator.Options. They happen from the emulator's start; [Faults.Pause]
// stops them. If a rule is invalid, emulator.Start returns an error.
func New(seed uint64, rules ...Rule) *Faults {
	f := &Faults{seed: seed}
	f.invalid = f.add(rules)
	return f
}

// Add adds rules after the existing ones. If one is invalid, Add returns an error and adds none.
func (f *Faults) Add(rules ...Rule) error {
	if err := f.add(rules); err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	return nil
}

// add does the work of Add.
func (f *Faults) add(rules []Rule) error {
	for _, r := range rules {
		if err := r.validate(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rules {
		r = r.withDefaults()
		r.Methods = slices.Clone(r.Methods)
		f.rules = append(f.rules, &activeRule{Rule: r, rng: rand.New(rand.NewPCG(f.seed, uint64(len(f.rules))))})
	}
	return nil
}

// Pause stops new faults until [Faults.Resume]. It does not end faults that have already started.
func (f *Faults) Pause() { f.pause(true) }

// Resume makes faults happen again after [Faults.Pause].
func (f *Faults) Resume() { f.pause(false) }

func (f *Faults) pause(paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = paused
}

// Counts returns how many faults of each kind have happened. A test that relies on faults should
// check that there were some.
func (f *Faults) Counts() map[Kind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make(map[Kind]int)
	for _, r := range f.rules {
		counts[r.Kind] += r.happened
	}
	maps.DeleteFunc(counts, func(_ Kind, n int) bool { return n == 0 })
	return counts
}

// A source is what the emulator sees of its faults. Its methods are in deliveries.go, in calls.go
// and here.
type source struct{ *Faults }

func init() { inject.Of = func(f any) inject.Source { return source{f.(*Faults)} } }

// Attach connects the faults to the emulator that is about to start. It returns an error if a rule
// is invalid, or if another emulator has the faults.
func (s source) Attach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.invalid != nil:
		return s.invalid
	case !s.begun.IsZero():
		return errors.New("another emulator has them")
	}
	s.begun = time.Now()
	return nil
}

// Detach undoes Attach if the emulator's start fails.
func (s source) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Time{}
}

// strike decides whether the rule's fault happens now, and draws its latency. The age is the time
// since the start of the emulator.
func (r *activeRule) strike(age time.Duration) (bool, time.Duration) {
	if age < r.After || r.Until != 0 && age >= r.Until || r.Limit > 0 && r.happened >= r.Limit {
		return false, 0
	}
	if r.Share < 1 && r.rng.Float64() >= r.Share {
		return false, 0
	}
	r.happened++
	return true, r.Latency.Draw(r.rng)
}

// each draws a fault from each rule for which the function about returns true. For each fault that
// happens now, it calls the function do with the rule and the fault's latency.
func (f *Faults) each(about func(*activeRule) bool, do func(r *activeRule, d time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused {
		return
	}
	age := time.Since(f.begun)
	for _, r := range f.rules {
		if !about(r) {
			continue
		}
		if happens, d := r.strike(age); happens {
			do(r, d)
		}
	}
}
