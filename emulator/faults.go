package emulator

import (
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
)

// A FaultKind is what goes wrong. The first four happen to calls of the Datastore
// and Cloud Tasks, the others to deliveries of tasks.
type FaultKind int

const (
	// LoseCall answers a call with an error, and the call has no effect. In
	// production: the service is overloaded or restarts. The Go clients repeat
	// what is safe to repeat, on UNAVAILABLE.
	LoseCall FaultKind = iota + 1

	// LoseAnswer lets a call take effect, and answers it with an error all the
	// same. In production: the connection breaks before the answer is there.
	// Whoever made the call can't tell it from LoseCall: a commit may have taken
	// place, a task may have been created.
	LoseAnswer

	// SlowCall delays a call by Fault.Latency: one half of it before the effect,
	// one half after. If the caller's deadline passes in the first half the call
	// has no effect, if it does so in the second the effect stays.
	SlowCall

	// AbortCommit answers a Commit of a transaction with ABORTED, and ends the
	// transaction without effect. In production: another transaction has changed
	// or locked the same entities. RunInTransaction of the Go client tries three
	// times.
	AbortCommit

	// DeliverTwice delivers a task once more after its delivery was answered or
	// has failed, Fault.Latency later. In production: rarely, when Cloud Tasks loses what it
	// knew; delivery is at least once. The second has the same headers as the
	// first, and its answer decides nothing.
	DeliverTwice

	// DeliverTogether delivers a task once more, Fault.Latency after its delivery
	// began, so that both may run at once. In production: as DeliverTwice; and a
	// retry after a passed deadline meets the handler that still runs.
	DeliverTogether

	// DeliverLate holds back a task that is due, by Fault.Latency. Others pass
	// it. In production: schedule_time is the earliest time and not a promise.
	DeliverLate

	// DeliverShuffled delivers any of the tasks that are due in place of the
	// first. In production: the order is best effort.
	DeliverShuffled

	// CrashReceiver cuts a delivery off Fault.Latency after it began, by default
	// after up to a second: the context of the handler's request is cancelled,
	// and the answer is lost even if it was given before. In production: the
	// instance that handles the request is killed. A handler inside this process
	// is not: if it does not look at its context it goes on.
	CrashReceiver

	// LoseReply lets a handler finish, and drops its answer, so that the task is
	// delivered again. In production: the connection breaks at the end.
	LoseReply
)

var faultNames = map[FaultKind]string{
	LoseCall: "LoseCall", LoseAnswer: "LoseAnswer", SlowCall: "SlowCall", AbortCommit: "AbortCommit",
	DeliverTwice: "DeliverTwice", DeliverTogether: "DeliverTogether", DeliverLate: "DeliverLate",
	DeliverShuffled: "DeliverShuffled", CrashReceiver: "CrashReceiver", LoseReply: "LoseReply",
}

// String returns the constant's name.
func (k FaultKind) String() string {
	if name := faultNames[k]; name != "" {
		return name
	}
	return fmt.Sprintf("FaultKind(%d)", int(k))
}

// methods are the short names of all calls.
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

// ofCalls reports whether a kind happens to calls, and not to deliveries.
func (k FaultKind) ofCalls() bool { return k <= AbortCommit }

// A Fault is a rule: what goes wrong, how often and when. Each call or delivery
// is looked at by the rules in their order, until one of them decides what becomes
// of it.
type Fault struct {
	Kind FaultKind

	// Methods are the calls that the rule is about, by their short names:
	// "Commit", "CreateTask". Only for kinds of calls. Defaults to all.
	Methods []string

	// Share is how often it happens, in (0, 1]. Defaults to 1, always.
	Share float64

	// After and Until are a window of time, counted from the start of the
	// emulator. LoseCall in a window is a service that is unavailable for a
	// while. Until 0 means no end. Defaults to always.
	After, Until time.Duration

	// Limit is how many times it happens at most. Defaults to no limit.
	Limit int

	// Code is the error of LoseCall and LoseAnswer. Defaults to
	// codes.Unavailable.
	Code codes.Code

	// Latency is a duration that the kinds that have one draw anew each time.
	// SlowCall and DeliverLate need it. Defaults to 0, or as the kind says.
	Latency Latency
}

func (f Fault) withDefaults() Fault {
	if f.Share == 0 {
		f.Share = 1
	}
	if f.Code == codes.OK {
		f.Code = codes.Unavailable
	}
	if f.Latency == nil {
		f.Latency = Constant(0)
		if f.Kind == CrashReceiver {
			f.Latency = Uniform{Max: time.Second}
		}
	}
	return f
}

func (f Fault) validate() error {
	if faultNames[f.Kind] == "" {
		return fmt.Errorf("emulator: Fault.Kind is not one of the constants: %v", f.Kind)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("emulator: fault %v: "+format, append([]any{f.Kind}, args...)...)
	}
	switch {
	case !(f.Share >= 0 && f.Share <= 1):
		return refuse("Share has to be in (0, 1], it is %v", f.Share)
	case f.After < 0 || f.Until < 0 || f.Until != 0 && f.Until <= f.After:
		return refuse("Until has to be after After, they are %v and %v", f.Until, f.After)
	case f.Limit < 0:
		return refuse("Limit has to be at least 0, it is %d", f.Limit)
	case len(f.Methods) > 0 && !f.Kind.ofCalls():
		return refuse("Methods are for faults of calls")
	case slices.ContainsFunc(f.Methods, func(m string) bool { return !methods[m] }):
		return refuse("Methods are names of calls, as in \"Commit\", they are %q", f.Methods)
	case f.Kind == AbortCommit && slices.ContainsFunc(f.Methods, func(m string) bool { return m != "Commit" }):
		return refuse("Methods can be only \"Commit\", they are %q", f.Methods)
	case (f.Kind == SlowCall || f.Kind == DeliverLate) && f.Latency == nil:
		return refuse("Latency is not set")
	}
	if f.Latency != nil {
		if err := f.Latency.validate(); err != nil {
			return refuse("Latency: %w", err)
		}
	}
	return nil
}

// Faults make calls and deliveries of one [Emulator] go wrong, by rules and by a
// seed. Every rule draws from a sequence of its own, once for each call or
// delivery that it is about: for the same seed and the same order of these, the
// same go wrong. Inside a testing/synctest bubble that order is the same in every
// run as far as the program's goroutines leave it.
type Faults struct {
	seed uint64

	mu      sync.Mutex
	begun   time.Time // zero before the emulator starts
	paused  bool
	rules   []*rule
	invalid error                   // of the first rule that is
	aborted map[transactionKey]bool // not rolled back yet
}

// A rule is a Fault at work.
type rule struct {
	Fault
	rng      *rand.Rand
	happened int
}

// NewFaults returns faults for [Options].Faults, which are on. [Start] returns an
// error if one of the rules is not valid.
func NewFaults(seed uint64, rules ...Fault) *Faults {
	f := &Faults{seed: seed, aborted: make(map[transactionKey]bool)}
	f.invalid = f.Add(rules...)
	return f
}

// Add adds rules, which come after those that are there.
func (f *Faults) Add(rules ...Fault) error {
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
		f.rules = append(f.rules, &rule{Fault: r, rng: rand.New(rand.NewPCG(f.seed, uint64(len(f.rules))))})
	}
	return nil
}

// Pause lets everything go well until [Faults.Resume]. What has begun to go wrong
// ends so: a call that waits goes on to wait.
func (f *Faults) Pause() { f.pause(true) }

// Resume ends a [Faults.Pause].
func (f *Faults) Resume() { f.pause(false) }

func (f *Faults) pause(paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = paused
}

// Counts returns how many times each kind has happened. A test that relies on
// faults should check that there were any.
func (f *Faults) Counts() map[FaultKind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make(map[FaultKind]int)
	for _, r := range f.rules {
		counts[r.Kind] += r.happened
	}
	maps.DeleteFunc(counts, func(_ FaultKind, n int) bool { return n == 0 })
	return counts
}

// attach ties the faults to the emulator that starts now.
func (f *Faults) attach() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.invalid != nil:
		return f.invalid
	case !f.begun.IsZero():
		return fmt.Errorf("emulator: Options.Faults are those of another emulator")
	}
	f.begun = time.Now()
	return nil
}

// detach undoes attach, for an emulator that did not start after all.
func (f *Faults) detach() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = time.Time{}
}

// strike reports whether the rule's fault happens now, and how long it takes.
func (r *rule) strike(age time.Duration) (bool, time.Duration) {
	if age < r.After || r.Until != 0 && age >= r.Until || r.Limit > 0 && r.happened >= r.Limit {
		return false, 0
	}
	if r.Share < 1 && r.rng.Float64() >= r.Share {
		return false, 0
	}
	r.happened++
	return true, r.Latency.Draw(r.rng)
}

// each calls do for every fault of some kinds that happens now.
func (f *Faults) each(about func(*rule) bool, do func(r *rule, d time.Duration)) {
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
