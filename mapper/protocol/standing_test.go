package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestJobStates reads the status of random jobs at many moments, as an operator does. It compares
// the numbers, and the bounds that the status gives for them, with the true numbers. It prints how
// often each bound held, and how wide it was:
//
//	go test ./mapper/protocol -run TestJobStates -v -args -seed 1 -seeds 500
func TestJobStates(t *testing.T) {
	var all lookFigures
	t.Cleanup(func() { all.report(t) })
	testflag.Simulate(t, 4, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { watchJob(t, seed, &all) })
	})
}

// A watched is a random job, with the statuses that were read and the true numbers.
type watched struct {
	*world
	rng    *rand.Rand
	faults *faults.Faults
	n      int
	job    *mapper.Job
	all    *lookFigures

	looks []look

	mu    sync.Mutex
	tries map[string]int
	cured bool
}

// A look is one read of a job's status.
type look struct {
	at     time.Time
	status *mapper.Status
	calm   bool   // whether nobody changed the job from then until its end
	truth  counts // the true numbers, if sure is set
	sure   bool   // whether the true numbers did not change during the read
}

// chance draws a number between least and most, log-uniformly: each order of magnitude is equally
// likely.
func chance(rng *rand.Rand, least, most float64) float64 {
	return least * math.Pow(most/least, rng.Float64())
}

// watchJob runs a random job, and a retry of its failures, and reads their status at many moments.
func watchJob(t *testing.T, seed uint64, all *lookFigures) {
	rng := rand.New(rand.NewPCG(seed, 77))
	w := &watched{rng: rng, all: all, n: int(chance(rng, 60, 5000)), tries: make(map[string]int)}
	latency := time.Duration(chance(rng, 2, 30)) * time.Millisecond
	trouble := []faults.Rule{{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: latency}}}
	if rng.IntN(2) == 0 {
		trouble = append(trouble, faults.Rule{Kind: faults.LoseCall, Share: 0.01},
			faults.Rule{Kind: faults.LoseAnswer, Share: 0.01, Code: codes.DeadlineExceeded,
				Methods: []string{"Commit", "CreateTask"}},
			faults.Rule{Kind: faults.AbortCommit, Share: 0.02},
			faults.Rule{Kind: faults.DeliverTwice, Share: 0.02, Latency: faults.Uniform{Max: time.Minute}})
	}
	w.faults = faults.New(seed, trouble...)
	w.faults.Pause()
	workers := int(chance(rng, 1, 40))
	m := mapper.Update("watched", w.function(w.pace()))
	other := mapper.Update("other", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
		time.Sleep(time.Second)
		return nil
	})
	w.world = newWorld(t, setting{emulator: emulator.Options{Faults: w.faults}, queue: few(int32(workers))}, m, other)
	bridge.Seed(w.engine, seed)
	keys := keysOf(rng, w.n)
	w.putAccounts(keys)
	o := &mapper.StartOptions{ID: "watched", PageSize: int(chance(rng, 5, 400)), FailureLimit: mapper.Unlimited}
	if rng.IntN(6) == 0 {
		o.Rate.EntitiesPerSecond = max(float64(w.n)/chance(rng, 20, 600), float64(workers))
	}
	q := mapper.Query{Kind: "Account"}
	if rng.IntN(4) == 0 {
		q.Filters = []mapper.Filter{mapper.Where("Balance", ">=", int64(rng.IntN(w.n/2)))}
		w.n -= int(q.Filters[0].Value.(int64))
	}
	w.faults.Resume()
	if rng.IntN(6) == 0 { // the job has to wait for another job in its queue
		if _, err := other.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "other", PageSize: 20}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
	}
	var err error
	if w.job, err = m.Start(t.Context(), w.engine, q, mapper.NoParams{}, o); err != nil {
		t.Fatal(err)
	}
	pause := time.Duration(0)
	if rng.IntN(6) == 0 {
		pause = time.Duration(chance(rng, 1, 200)) * time.Second
	}
	s := w.watch(pause)
	w.check(s)
	if s.Failures > 0 && rng.IntN(2) == 0 {
		w.mu.Lock()
		w.cured = rng.IntN(2) == 0
		w.mu.Unlock()
		if err := w.job.Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		w.check(w.watch(0))
	}
	w.faults.Pause()
	if _, err := w.engine.Job("other").Wait(t.Context()); err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
		t.Error(err)
	}
	time.Sleep(time.Hour) // until late tasks have run
}

// pace draws how the function's time depends on the account. It returns a function that draws the
// time for an account.
func (w *watched) pace() func(rng *rand.Rand, balance int64) time.Duration {
	usual := chance(w.rng, 1e6, 5e8)
	slow, n := int64(w.rng.IntN(w.n)), int64(w.n/10)
	switch w.rng.IntN(4) {
	case 0: // some accounts take much longer than others
		return func(rng *rand.Rand, _ int64) time.Duration { return time.Duration(usual * rng.ExpFloat64()) }
	case 1: // a tenth of the accounts, next to each other, is slow
		return func(_ *rand.Rand, balance int64) time.Duration {
			if balance >= slow && balance < slow+n {
				return time.Duration(5 * usual)
			}
			return time.Duration(usual)
		}
	}
	return func(rng *rand.Rand, _ int64) time.Duration { return time.Duration(usual * (0.5 + rng.Float64())) }
}

// function returns the function of the job's mapper. It fails on a few accounts.
func (w *watched) function(
	pace func(*rand.Rand, int64) time.Duration,
) func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
	share := []float64{0, 0, chance(w.rng, 0.0005, 0.02)}[w.rng.IntN(3)]
	flaky, hopeless, seed := w.rng.IntN(2) == 0, w.rng.IntN(2) == 0, w.rng.Uint64()
	return func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		dice := rand.New(rand.NewPCG(seed, uint64(a.Value.Balance)))
		time.Sleep(pace(dice, a.Value.Balance))
		a.Value.Owner = "done"
		if dice.Float64() >= share {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		id := a.Key.Encode()
		w.tries[id]++
		switch {
		case w.cured, flaky && w.tries[id] > 1+dice.IntN(4):
			return nil
		case hopeless:
			return mapper.Permanent(errors.New("hopeless"))
		}
		return errors.New("it fails")
	}
}

// watch reads the job's status at roughly regular intervals until the job has ended. If pause is
// not 0, it also pauses the job once for this time.
func (w *watched) watch(pause time.Duration) *mapper.Status {
	every := 100 * time.Millisecond
	w.looks = nil
	for {
		w.faults.Pause()
		before := w.counts()
		s, err := w.job.Status(w.Context())
		after := w.counts()
		w.faults.Resume()
		if err != nil {
			w.Fatal(err)
		}
		w.looks = append(w.looks, look{time.Now(), s, true, before, before == after})
		if s.State.Ended() {
			return s
		}
		if pause > 0 && s.Progress.Fraction > 0.3 {
			w.paused(pause)
			pause = 0
		}
		if most := 40; len(w.looks) == most {
			for i := range most / 2 {
				w.looks[i] = w.looks[2*i]
			}
			w.looks, every = w.looks[:most/2], 2*every
		}
		time.Sleep(time.Duration(float64(every) * (0.5 + w.rng.Float64())))
	}
}

// paused pauses the job for a time, and resumes it.
func (w *watched) paused(pause time.Duration) {
	for i := range w.looks {
		w.looks[i].calm = false
	}
	w.faults.Pause()
	defer w.faults.Resume()
	if err := w.job.Pause(mapper.WithCaller(w.Context(), "ann@example.com")); err != nil {
		w.Fatal(err)
	}
	w.faults.Resume()
	for _, after := range []time.Duration{0, pause} {
		time.Sleep(after)
		w.faults.Pause()
		s, err := w.job.Status(w.Context())
		w.faults.Resume()
		if err != nil {
			w.Fatal(err)
		}
		if s.State == mapper.StatePaused && s.Phase != mapper.PhaseDraining && s.Phase != mapper.PhasePaused {
			w.Errorf("a paused job is %q: %s", s.Phase, s.Bottleneck)
		}
	}
	w.faults.Pause()
	if err := w.job.Resume(w.Context()); err != nil && !errors.Is(err, mapper.ErrWrongState) {
		w.Fatal(err)
	}
}

// counts reads the true numbers of the job from its records.
func (w *watched) counts() (c counts) {
	var all []struct {
		Job       string `datastore:"job"`
		State     string `datastore:"state"`
		Failed    string `datastore:"failed"`
		Processed int64  `datastore:"processed"`
	}
	_, err := w.client.GetAll(context.Background(), datastore.NewQuery(record.RangeKind), &all)
	if err := property.IgnoreUndeclared(err); err != nil {
		w.Fatal(err)
	}
	for _, r := range all {
		switch {
		case r.Job != "watched" || r.State != "done":
		case r.Failed != "":
			c.failures++
		default:
			c.processed += r.Processed
		}
	}
	return c
}

// check compares all statuses that were read with the true numbers.
func (w *watched) check(end *mapper.Status) {
	if total := end.Processed + end.Failures; total != int64(w.n) || end.Total != total || end.Remaining != 0 {
		w.Errorf("the end of a job of %d entities: %+v", w.n, end)
	}
	begun := w.looks[0].at
	if end.Created.After(begun.Add(-time.Minute)) {
		begun = end.Created
	}
	var last *mapper.Status
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.all.jobs++
	for _, l := range w.looks {
		s := l.status
		w.checkSums(l)
		if last != nil && s.Processed < last.Processed && !s.State.Ended() {
			w.Errorf("processed goes back from %d to %d of %d", last.Processed, s.Processed, w.n)
		}
		if last != nil && s.Processed < last.Processed {
			w.all.back++
		}
		last = s
		if s.State != mapper.StateRunning {
			continue
		}
		if !l.sure {
			continue
		}
		share := float64(l.at.Sub(begun)) / float64(end.Ended.Sub(begun))
		w.all.add(l, float64(w.n), end.Ended.Sub(l.at), share)
	}
}

// counts are the true numbers of a job at some moment.
type counts struct{ processed, failures int64 }

// checkSums checks that the numbers in a status fit together.
func (w *watched) checkSums(l look) {
	s, b := l.status, l.status.Bounds
	if s.Remaining < 0 {
		if s.Total != -1 || b.Total.Max != -1 {
			w.Errorf("a total of unknown parts: %+v", s)
		}
		return
	}
	if s.Processed+s.Failures+s.Remaining != s.Total {
		w.Errorf("%d + %d + %d is not %d", s.Processed, s.Failures, s.Remaining, s.Total)
	}
	for name, n := range map[string]struct {
		about  int64
		bounds mapper.Bounds
	}{"processed": {s.Processed, b.Processed}, "failures": {s.Failures, b.Failures},
		"remaining": {s.Remaining, b.Remaining}, "total": {s.Total, b.Total}} {
		if n.about < n.bounds.Min || n.bounds.Max != -1 && n.about > n.bounds.Max {
			w.Errorf("%s: %d is not within %+v", name, n.about, n.bounds)
		}
	}
	p := s.Progress
	if p.FractionMin > p.Fraction || p.Fraction > p.FractionMax || p.TimeLeftMax != -1 && (p.TimeLeftMin > p.TimeLeft ||
		p.TimeLeft > p.TimeLeftMax) {
		w.Errorf("%+v", p)
	}
}

// lookFigures are statistics about all reads of all jobs' statuses.
type lookFigures struct {
	mu              sync.Mutex
	jobs, back      int
	bounds          [4]boundFigures // for the numbers of processed, failed, remaining, and all entities
	fractions, time boundFigures
	// number of reads without an upper bound of the time left, and how many of them had a wrong
	// lower bound
	open, tooHigh int
	phases        map[mapper.Phase]int
	misses        []string
	widest        []wideLook // the reads with the widest bounds of the time left
}

// A wideLook is the description of a read, with the width of its bounds.
type wideLook struct {
	width float64
	says  string
}

// A boundFigures is statistics about one bound: how often it held, and how wide it was.
type boundFigures struct {
	looks, held int
	widths      []float64
}

func (f *boundFigures) add(held bool, width float64) {
	if f.looks++; held {
		f.held++
	}
	f.widths = append(f.widths, width)
}

// resolution is the precision with which times are compared.
const resolution = time.Second

// add adds a read of a running job of n entities to the statistics. The argument left is the true
// time left, and share is the share of the job's duration that is over.
func (f *lookFigures) add(l look, n float64, left time.Duration, share float64) {
	s := l.status
	if f.phases == nil {
		f.phases = make(map[mapper.Phase]int)
	}
	f.phases[s.Phase]++
	rest := int64(n) - l.truth.processed - l.truth.failures
	for i, b := range []struct {
		truth  int64
		bounds mapper.Bounds
	}{{l.truth.processed, s.Bounds.Processed}, {l.truth.failures, s.Bounds.Failures}, {rest, s.Bounds.Remaining},
		{int64(n), s.Bounds.Total}} {
		width := 1.0
		if b.bounds.Max >= 0 {
			width = float64(b.bounds.Max-b.bounds.Min) / 2 / n
		}
		f.bounds[i].add(b.truth >= b.bounds.Min && (b.bounds.Max < 0 || b.truth <= b.bounds.Max), width)
	}
	p, done := s.Progress, 1-float64(rest)/n
	f.fractions.add(done >= p.FractionMin-1e-9 && done <= p.FractionMax+1e-9, p.FractionMax-p.FractionMin)
	if share < 0.1 || !l.calm {
		return
	}
	if p.TimeLeftMax < 0 {
		if f.open++; p.TimeLeftMin > left+resolution/2 {
			f.tooHigh++
		}
		return
	}
	held := left+resolution/2 >= p.TimeLeftMin && left-resolution/2 <= p.TimeLeftMax
	width := float64(p.TimeLeftMax+resolution) / float64(p.TimeLeftMin+resolution)
	f.time.add(held, width)
	says := fmt.Sprintf("%.0f%% over, left %v, said %v to %v: %d of %v, %s, %s", 100*share, left,
		p.TimeLeftMin, p.TimeLeftMax, l.truth.processed, n, s.Phase, s.Bottleneck)
	if !held {
		f.misses = append(f.misses, says)
	}
	f.widest = append(f.widest, wideLook{width, fmt.Sprintf("%s; %d failed, %d to %d remain", says, l.truth.failures,
		s.Bounds.Remaining.Min, s.Bounds.Remaining.Max)})
}

// at returns the width that the given share of all widths does not exceed.
func (f *boundFigures) at(share float64) float64 {
	slices.Sort(f.widths)
	return f.widths[min(len(f.widths)-1, int(share*float64(len(f.widths))))]
}

// within returns the share of reads whose bound was at most as wide as the argument.
func (f *boundFigures) within(width float64) float64 {
	n := 0
	for _, w := range f.widths {
		if w <= width {
			n++
		}
	}
	return float64(n) / float64(max(1, len(f.widths)))
}

// holds returns the share of reads for which the bound held.
func (f *boundFigures) holds() float64 { return float64(f.held) / float64(max(1, f.looks)) }

// String returns a text about how often the bound held, and how wide it was.
func (f *boundFigures) String() string {
	if f.looks == 0 {
		return "no look"
	}
	return fmt.Sprintf("held in %.1f%% of %d looks; width p50 %.3g, p90 %.3g, p99 %.3g", 100*f.holds(), f.looks,
		f.at(0.5), f.at(0.9), f.at(0.99))
}

// narrow is the width that the bounds of numbers may have in nine of ten reads, as a share of all
// entities.
const narrow = 0.05

// fewJobs is the number of jobs from which on the statistics are checked. With fewer jobs they are
// only printed.
const fewJobs = 100

// report prints the statistics, and checks them.
func (f *lookFigures) report(t *testing.T) {
	t.Logf("%d jobs; looks by phase: %v", f.jobs, f.phases)
	for i, name := range []string{"processed", "failures", "remaining", "total"} {
		b := &f.bounds[i]
		t.Logf("%-10s %v of the total, on each side; at most %v in %.1f%%", name+":", b, narrow, 100*b.within(narrow))
		if f.jobs >= fewJobs && (b.holds() < 0.99 || b.at(0.9) > narrow) {
			t.Errorf("the bounds of %s", name)
		}
	}
	t.Logf("fraction:  %v", &f.fractions)
	t.Logf("time left: %v, as high over low, after a tenth of the job; without an upper bound in %d more looks, of "+
		"which the lower one was wrong in %d", &f.time, f.open, f.tooHigh)
	if f.jobs >= fewJobs && (f.time.holds() < 0.9 || f.time.at(0.5) > 3) {
		t.Error("the bounds of the time left")
	}
	t.Logf("the exact number at the end was below an estimate before it in %d jobs", f.back)
	for _, miss := range f.misses[:min(len(f.misses), 40)] {
		t.Log(miss)
	}
	slices.SortFunc(f.widest, func(a, b wideLook) int { return cmp.Compare(b.width, a.width) })
	for _, look := range f.widest[:min(len(f.widest), 20)] {
		t.Logf("wide, %.3g: %s", look.width, look.says)
	}
}
