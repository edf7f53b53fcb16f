package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/tasks"
)

// TestStatus follows a job with more records than its status reads, which is a sample of them.
func TestStatus(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(100 * time.Millisecond)
			a.Value.Balance++
			a.Count("seen", 1)
			return nil
		})
		w := newWorld(t,
			setting{queue: &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 100}}},
			slow)
		var closed atomic.Bool
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if closed.Load() {
				http.NotFound(rw, r)
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		const n = 5000
		w.putAccounts(names(n))
		job, err := slow.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		estimated := false
		for {
			s, err := job.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.State.Ended() {
				break
			}
			if s.Estimated && !estimated {
				// Measure the operations of a status while nothing else runs.
				closed.Store(true)
				time.Sleep(10 * time.Second)
				before := w.emulator.Usage()
				if _, err := job.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				if used := w.emulator.Usage().Sub(before); used.Reads > 505 || used.Writes+used.SmallOps > 0 {
					t.Errorf("a status cost %+v", used)
				}
				closed.Store(false)
			}
			if s.Estimated {
				estimated = true
				if total := s.Processed + s.Remaining; total < n/2 || total > n*2 {
					t.Errorf("%d processed and %d remaining, of %d", s.Processed, s.Remaining, n)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !estimated {
			t.Error("no status was an estimate")
		}
		// A process without the job's mapper can follow the job, too.
		another, err := mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(another.Job(job.ID))
		if s.Estimated || s.Processed != n || s.Counters["seen"] != n || s.Mapper != "slow" ||
			s.Query.Kind != "Account" ||
			s.Created.IsZero() || !s.Ended.After(s.Created) {
			t.Errorf("status %+v", s)
		}
		if _, err := w.engine.Job("none").Status(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
		if _, err := w.engine.Job("none").Wait(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
	})
}

// observe replaces the engine of a world by one that logs to log, and calls a hook after each
// change of a job's state.
func (w *world) observe(log *logged, hook func(context.Context, mapper.StateChange), mappers ...mapper.AnyMapper) {
	w.Helper()
	engine, err := mapper.NewEngine(w.client, w.queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(log, nil)), OnStateChange: hook})
	if err != nil {
		w.Fatal(err)
	}
	bridge.Seed(engine, 1)
	w.engine, w.handler = engine, engine.Handler()
}

// lines returns the lines of a log about changes of a job's state, with their message and some
// attributes.
func (l *logged) lines() (all []string) {
	line := regexp.MustCompile(`level=(\w+) msg="(job [^"]*)" job=(\S+) mapper=\S+(.*)`)
	for _, m := range line.FindAllStringSubmatch(l.String(), -1) {
		all = append(all, m[1]+" "+m[2]+" "+m[3]+m[4])
	}
	return all
}

// TestStateChanges checks the log and the hook OnStateChange for all changes of a job's state. They
// must show each change once, with its cause, the caller, and the work done so far.
func TestStateChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Int64 // one in this number of accounts fails
		m := mapper.Update("some-fail", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(10 * time.Millisecond)
			if n := broken.Load(); n > 0 && a.Value.Balance%n == 0 {
				return mapper.Permanent(errors.New("failure of " + a.Value.Owner))
			}
			return nil
		})
		var log logged
		var mu sync.Mutex
		var changes []mapper.StateChange
		w := newWorld(t, setting{queue: few(2)})
		w.observe(&log, func(ctx context.Context, c mapper.StateChange) {
			if ctx.Err() != nil {
				t.Error(ctx.Err())
			}
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, c)
		}, m)
		w.putAccounts(names(1000))
		ctx := mapper.WithCaller(t.Context(), "alice@example.com")
		broken.Store(100)
		job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		do := func(after time.Duration, f func(*mapper.Job, context.Context) error) {
			t.Helper()
			time.Sleep(after)
			for range 2 { // the second call has no effect
				if err := f(job, ctx); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", PageSize: 20}); err != nil {
			t.Error(err)
		}
		do(time.Second, (*mapper.Job).Pause)
		do(time.Minute, (*mapper.Job).Resume)
		if s, err := job.Wait(t.Context()); err != nil || s.Failures != 10 {
			t.Errorf("status %+v, %v", s, err)
		}
		broken.Store(0)
		do(time.Minute, func(j *mapper.Job, ctx context.Context) error { return j.Retry(ctx, nil) })
		if s, err := job.Wait(t.Context()); err != nil || s.Failures != 0 {
			t.Errorf("status %+v, %v", s, err)
		}
		broken.Store(50)
		job, err = m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "two", PageSize: 20, FailureLimit: 5, ExpectedWorkers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StatePaused {
			t.Errorf("status %+v, %v", s, err)
		}
		do(time.Minute, (*mapper.Job).Abort)
		broken.Store(1)
		job, err = m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "three", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateFailed {
			t.Errorf("status %+v, %v", s, err)
		}
		time.Sleep(time.Hour)

		const by = " by=alice@example.com"
		want := []string{
			"INFO job running one cause=started" + by,
			"INFO job paused one from=running cause=paused" + by + " processed=N failures=N estimated=false",
			"INFO job running one from=paused cause=resumed" + by + " processed=N failures=N estimated=false",
			"WARN job succeeded with failures one from=running processed=990 failures=10 estimated=false after=T",
			`INFO job running one from="succeeded with failures" cause="its failures are retried"` + by +
				" processed=990 failures=10 estimated=false",
			"INFO job succeeded one from=running processed=1000 failures=0 estimated=false after=T",
			"INFO job running two cause=started" + by,
			`WARN job paused two from=running cause="paused by its failure limit" ` +
				`why="more than 5 entities have failed" processed=N failures=N estimated=false`,
			"INFO job aborted two from=paused cause=aborted" + by + " processed=N failures=N estimated=false after=T",
			"INFO job running three cause=started",
			`ERROR job failed three from=running cause="the function failed on 20 of 20 entities of a page" ` +
				`processed=0 failures=0 estimated=false after=T`,
		}
		got, noted := log.lines(), 0
		got = slices.DeleteFunc(got, func(line string) bool {
			found := strings.HasPrefix(line, "INFO job changed one from=running cause=") && strings.HasSuffix(line, by)
			if found { // the job was already in that state
				noted++
			}
			return found
		})
		if noted != 2 {
			t.Errorf("%d lines say what is done to a job that goes on as it did, want 2", noted)
		}
		wantHistory(t, w.engine.Job("one"), "started running", "paused paused", "resumed running", "resumed running",
			"succeeded with failures succeeded with failures", "its failures are retried running",
			"its failures are retried running", "succeeded succeeded")
		wantHistory(t, w.engine.Job("two"), "started running", "paused by its failure limit paused",
			"aborted aborted")
		for i := range got {
			if i < len(want) && strings.Contains(want[i], "=N") {
				got[i] = regexp.MustCompile(`(processed)=\d+`).ReplaceAllString(got[i], "$1=N")
				if strings.Contains(want[i], "failures=N") {
					got[i] = regexp.MustCompile(`(failures)=\d+`).ReplaceAllString(got[i], "$1=N")
				}
			}
			got[i] = regexp.MustCompile(`after=\S+`).ReplaceAllString(got[i], "after=T")
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if strings.Contains(log.String(), "owner") || strings.Contains(log.String(), "user-") {
			t.Errorf("the log:\n%.2000s", log.String())
		}
		mu.Lock()
		defer mu.Unlock()
		if len(changes) != len(want) {
			t.Fatalf("%d changes, want %d: %+v", len(changes), len(want), changes)
		}
		for i, c := range changes {
			if text := fmt.Sprintf("job %s %s", c.To, c.ID); !strings.Contains(want[i], text) ||
				strings.Contains(want[i], by) != (c.By == "alice@example.com") || c.Mapper != "some-fail" ||
				c.Queue != queueName || c.Time.IsZero() {
				t.Errorf("%+v, want %s", c, want[i])
			}
		}
		if c := changes[3]; c.From != mapper.StateRunning || c.Processed != 990 || c.Failures != 10 || c.Estimated {
			t.Errorf("%+v", c)
		}
		if c := changes[10]; c.Cause != "the function failed on 20 of 20 entities of a page" {
			t.Errorf("%+v", c)
		}
	})
}

// TestHookHarmsNothing checks that jobs continue if a hook panics and another one hangs.
func TestHookHarmsNothing(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, hook := range map[string]func(){"panic": func() { panic("secret") }, "hang": func() {
		time.Sleep(time.Hour)
	}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logged
				w := newWorld(t, setting{})
				w.observe(&log, func(context.Context, mapper.StateChange) { hook() }, addCredit)
				w.putAccounts(names(100))
				begun := time.Now()
				w.wait(w.start(10, nil))
				if took := time.Since(begun); took > 30*time.Second {
					t.Errorf("the job took %v", took)
				}
				time.Sleep(2 * time.Hour) // until hooks that were abandoned have returned
				w.wantBalances(names(100), 10)
				if n := log.count("EngineOptions.OnStateChange has"); n != 2 ||
					strings.Contains(log.String(), "secret") {
					t.Errorf("the log:\n%s", log.String())
				}
			})
		})
	}
}

// TestLostAnswersOfChanges loses the answers to all commits that change a job's state. Each change
// must still be reported.
func TestLostAnswersOfChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		injected := faults.New(1, faults.Rule{Kind: faults.LoseAnswer, Share: 1,
			Code: codes.DeadlineExceeded, Methods: []string{"Commit"}})
		injected.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: injected}, log: &log}, steadyCredit)
		w.putAccounts(names(500))
		injected.Resume()
		job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		for _, do := range []func(*mapper.Job, context.Context) error{(*mapper.Job).Pause, (*mapper.Job).Resume} {
			if err := do(job, t.Context()); err != nil {
				t.Error(err)
			}
		}
		w.wait(job)
		var said []string
		for _, l := range log.lines() {
			said = append(said, strings.Fields(l)[2])
		}
		if want := []string{"running", "paused", "running", "succeeded"}; !slices.Equal(said, want) {
			t.Errorf("the log says %q, want %q", said, want)
		}
	})
}

// TestFewLines lets 400 entities fail, each five times. The log must have only a few lines about
// that. They must say how many entities have failed, and how many lines were left out.
func TestFewLines(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out tests of numbers")
	}
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		m := mapper.Update("some-fail", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%30 == 0 {
				return errors.New("failure of " + a.Value.Owner)
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(10), log: &log}, m)
		w.putAccounts(names(12_000))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 300})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.Failures != 400 {
			t.Fatalf("status %+v, %v", s, err)
		}
		took := s.Ended.Sub(s.Created)
		lines := strings.Count(log.String(), "\n")
		if most := 12 * (int(took.Minutes()) + 2); lines > most || log.count(`msg="entities failed"`) < 10 {
			t.Errorf("%d lines in %v, at most %d wanted:\n%.3000s", lines, took, most, log.String())
		}
		causes, err := job.FailureCauses(t.Context())
		if err != nil || len(causes) != 1 {
			t.Fatalf("the causes are %+v, %v", causes, err)
		}
		if !regexp.MustCompile(
			`msg="entities failed" job=\S+ mapper=\S+ range=\S+ tried_again=10 recorded=0 kinds="10 error \(cause ` +
				causes[0].Digest + `\)"`).MatchString(log.String()) {
			t.Errorf("no line is about a page:\n%.3000s", log.String())
		}
		if !strings.Contains(log.String(), "left_out=") {
			t.Errorf("nothing says what was left out:\n%.3000s", log.String())
		}
	})
}

// TestStatusSaysWhy lets all entities fail for a while. The status must have the error while pages
// are retried, and not after that.
func TestStatusSaysWhy(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outage := time.Now().Add(30 * time.Second)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if time.Sleep(time.Second); time.Now().Before(outage) {
				return errors.New("the API is down")
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(10)}, m)
		w.putAccounts(names(4000))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20, PageTime: 25 * time.Second, ExpectedWorkers: 5})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Second)
		s, err := job.Status(t.Context())
		if err != nil || s.State != mapper.StateRunning || !strings.Contains(s.Error, "pages are tried again") ||
			!strings.Contains(s.Error, "20 of 20 entities") || !strings.Contains(s.Error, "the API is down") {
			t.Errorf("while pages are tried again: %+v, %v", s, err)
		}
		// a page with this error may have to wait for a worker
		for err == nil && s.State == mapper.StateRunning && s.Error != "" {
			time.Sleep(10 * time.Second)
			s, err = job.Status(t.Context())
		}
		if err != nil || s.State != mapper.StateRunning {
			t.Errorf("once they are done: %+v, %v", s, err)
		}
		w.wait(job)
	})
}

// TestStatusSettings checks that the status of a job has the job's parameters and settings.
func TestStatusSettings(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := mapper.Update("held", func(context.Context, *mapper.Entity[account], credit) error {
			time.Sleep(20 * time.Second) // so that the job still runs when its rate is set
			return nil
		})
		w := newWorld(t, setting{queue: few(7)}, held)
		w.putAccounts(names(1))
		o := &mapper.StartOptions{ID: "one", PageSize: 77, FailureShare: 0.5,
			Rate: mapper.Rate{EntitiesPerSecond: 1000}}
		job, err := held.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := job.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: 2000}); err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		want := *o
		want.ExpectedWorkers, want.PageTime, want.EntityTimeout, want.FailureLimit, want.Rate.EntitiesPerSecond = 7,
			3*time.Second,
			30*time.Second, 1000, 2000
		want.Retries = mapper.RetryPolicy{MaxAttempts: mapper.DefaultUpdateAttempts, MinBackoff: time.Second,
			MaxBackoff: 1024 * time.Second}
		want.Concurrency, want.Retain = 1, mapper.RetainAlways
		if s.Settings != want || string(s.Params) != `{"Amount":10}` {
			t.Errorf("%+v, %s; want %+v", s.Settings, s.Params, want)
		}
		encoded, err := json.Marshal(s)
		part := `"params":{"Amount":10},"settings":{"id":"one","page_size":77,"page_time_ns":3000000000,` +
			`"expected_workers":7,"rate":{"entities":2000},"entity_timeout_ns":30000000000,"concurrency":1,` +
			`"retries":{"attempts":5,"first_ns":1000000000,"max_ns":1024000000000},` +
			`"failure_limit":1000,"failure_share":0.5,"retain_ns":-1}`
		if err != nil || !strings.Contains(string(encoded), part) {
			t.Errorf("%s, %v; want %s in it", encoded, err, part)
		}
	})
}

// wantHistory checks the entries in a job's history, and that each of these actions took effect.
func wantHistory(t *testing.T, job *mapper.Job, want ...string) {
	t.Helper()
	acts, err := job.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, a := range acts {
		got = append(got, a.Action+" "+string(a.State))
		if a.Time.IsZero() || i > 0 && a.Time.Before(acts[i-1].Time) {
			t.Errorf("act %d was at %v", i, a.Time)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the history of %s is %q, want %q", job.ID, got, want)
	}
}

// TestHistory lets operators control a job. The history must have each action once, with the caller
// and the reason, and the end of the job. It must not have an action without effect.
func TestHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w := newWorld(t, setting{log: &log, queue: few(1)}, slowCredit)
		w.putAccounts(names(300))
		ann := mapper.WithReason(mapper.WithCaller(t.Context(), "ann@example.com"), "the spring credit")
		job, err := slowCredit.Start(ann, w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one", PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := slowCredit.Start(ann, w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one"}); err != nil {
			t.Fatal(err)
		}
		bob := mapper.WithCaller(t.Context(), "bob@example.com\xff"+strings.Repeat("x", 1000))
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(job.SetRate(mapper.WithReason(bob, "too fast"), mapper.Rate{EntitiesPerSecond: 40, WritesPerSecond: 100}))
		must(job.Pause(bob))
		must(job.Pause(ann))
		must(job.Resume(t.Context()))
		if s := w.wait(job); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		must(job.CleanUp(ann, nil))
		time.Sleep(time.Minute)
		acts, err := job.History(t.Context())
		must(err)
		for i := range acts {
			acts[i].Time = time.Time{}
			acts[i].By, _, _ = strings.Cut(acts[i].By, "xxx")
		}
		want := []mapper.HistoryEntry{
			{Action: "started", By: "ann@example.com", Reason: "the spring credit", State: mapper.StateRunning},
			{Action: "its rate is set to 40 entities a second, 100 writes a second", By: "bob@example.com",
				Reason: "too fast", State: mapper.StateRunning},
			{Action: "paused", By: "bob@example.com", State: mapper.StatePaused},
			{Action: "resumed", State: mapper.StateRunning},
			{Action: "succeeded", State: mapper.StateSucceeded},
			{Action: "cleaned up", By: "ann@example.com", Reason: "the spring credit", State: mapper.StateSucceeded},
		}
		if !slices.Equal(acts, want) {
			t.Errorf("the history is %+v,\nwant %+v", acts, want)
		}
		for _, text := range []string{`why="the spring credit"`, `why="too fast"`,
			"its rate is set to 40 entities a second"} {
			if log.count(text) == 0 {
				t.Errorf("the log does not say %s:\n%s", text, log.String())
			}
		}
	})
}

// TestProgress watches the progress of jobs over several kinds of entities. It must never be above
// 100%. The estimate and the true progress must lie between the bounds. The estimate may fall below
// an earlier lower bound only because of inserted entities, and by a small margin of chance.
func TestProgress(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	n := testflag.Size(t, 2000, 3000, 6000)
	slow := mapper.Visit("slow", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
		time.Sleep(3 * time.Millisecond)
		return nil
	})
	rng := testflag.Rand(t)
	for name, kind := range map[string]struct {
		key    func(i int) *datastore.Key
		filter []mapper.Filter
		grows  bool
		share  float64 // share of entities that match the filter
		page   int
	}{
		"uuid": {func(int) *datastore.Key {
			return datastore.NameKey("Leaf", fmt.Sprintf("%016x", rng.Uint64()), nil)
		}, nil, false, 1, 20},
		"ids": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) }, nil, false, 1, 20},
		"skewed": {func(i int) *datastore.Key { return datastore.NameKey("Leaf", skewed(rng, i), nil) }, nil, false,
			1, 20},
		"filtered": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) },
			[]mapper.Filter{mapper.Where("N", "=", 1)}, false, 0.4, 20},
		"sampled": {func(i int) *datastore.Key { return datastore.NameKey("Leaf", skewed(rng, i), nil) }, nil, false,
			1, 4},
		"growing": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) }, nil, true, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			mappertest.Run(t, []mapper.AnyMapper{slow}, &mappertest.Options{Workers: 8},
				func(t *testing.T, w *mappertest.Env) {
					put := func(from, to int) {
						for ; from < to; from += 500 {
							var keys []*datastore.Key
							var all []leaf
							for i := from; i < min(from+500, to); i++ {
								value := int64(2)
								if float64(i%1000) < 1000*kind.share {
									value = 1
								}
								keys, all = append(keys, kind.key(i)), append(all, leaf{N: value})
							}
							if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
								t.Fatal(err)
							}
						}
					}
					put(0, n)
					job, err := slow.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf", Filters: kind.filter},
						mapper.NoParams{}, &mapper.StartOptions{PageSize: kind.page, AllowEmpty: true})
					if err != nil {
						t.Fatal(err)
					}
					watchProgress(t, job, float64(n)*kind.share, func(look int) (more float64) {
						if !kind.grows || look >= 5 {
							return 0
						}
						put(n+300*look, n+300*(look+1))
						return 300
					})
				})
		})
	}
}

// skewed returns the name for the key of the i-th entity. Most names are close to each other.
func skewed(rng *rand.Rand, i int) string {
	if i%10 == 0 {
		return fmt.Sprintf("%016x", rng.Uint64())
	}
	return fmt.Sprintf("8%08d", i)
}

// hair is by how much an estimate from a sample may fall below an earlier lower bound. In 15,000
// reads, one was lower, by 0.0005.
const hair = 0.05

// watchProgress reads the progress of a job until the job has ended, and checks it. The function
// meanwhile is called at each read, and returns how many entities it has inserted.
func watchProgress(t *testing.T, job *mapper.Job, total float64, meanwhile func(look int) (more float64)) {
	t.Helper()
	floor, widest, grown, looks := 0.0, 0.0, 0.0, 0
	for {
		s, err := job.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := s.Progress
		if !(0 <= p.FractionMin && p.FractionMin <= p.Fraction && p.Fraction <= p.FractionMax && p.FractionMax <= 1) {
			t.Fatalf("look %d: %+v: the bounds are not in order", looks, p)
		}
		if p.Fraction < floor-hair {
			t.Fatalf("look %d: %+v, and an earlier bound was %v", looks, p, floor)
		}
		if done := float64(s.Processed) / total; !s.Estimated && grown == 0 &&
			(done < p.FractionMin-1e-9 || done > p.FractionMax+1e-9) {
			t.Fatalf("look %d: %+v, and %v is done", looks, p, done)
		}
		floor = max(floor, p.FractionMin*total/(total+grown)) // the job may not have found the inserted entities yet
		if s.State.Ended() {
			if p.FractionMin != 1 || p.EntitiesPerSecond != 0 || p.EntitiesPerSecondOverall <= 0 || s.Dollars <= 0 {
				t.Errorf("in the end: %+v, $%v", p, s.Dollars)
			}
			break
		}
		if looks > 5 && p.FractionMin > 0 {
			if widest = max(widest, p.FractionMax-p.FractionMin); p.EntitiesPerSecond <= 0 ||
				p.TimeLeft < p.TimeLeftMin || p.TimeLeftMax >= 0 &&
				p.TimeLeftMax < p.TimeLeft {
				t.Errorf("look %d: %+v", looks, p)
			}
		}
		more := meanwhile(looks)
		floor *= (total + grown) / (total + grown + more)
		grown += more
		looks++
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%d looks, the widest interval is %.2f", looks, widest)
	if looks < 8 && !testing.Short() {
		t.Errorf("%d looks", looks)
	}
}

// list returns the IDs of the jobs that a list has, and the number of its pages.
func list(t *testing.T, e *mapper.Engine, o *mapper.JobsOptions) (ids []string, pages int) {
	t.Helper()
	for cursor := ""; ; {
		jobs, next, err := e.JobsPage(t.Context(), o, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		pages++
		if cursor = next; cursor == "" {
			return ids, pages
		}
	}
}

// TestJobs lists the jobs of two services, on the embedded Datastore and on both of Google's
// emulators.
func TestJobs(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { testJobs(t, nil) })
	})
	t.Run("google", func(t *testing.T) { testJobs(t, googletest.Client(t, google.Classic)) })
	t.Run("firestore", func(t *testing.T) { testJobs(t, googletest.Client(t, google.Firestore)) })
}

func testJobs(t *testing.T, client *datastore.Client) {
	w := newWorld(t, setting{client: client}, addCredit, steadyCredit)
	other := w.second(addCredit)
	ctx := t.Context()
	w.putAccounts(names(2))
	start := func(e *mapper.Engine, m *mapper.Mapper[credit], id string) *mapper.Job {
		job, err := m.Start(ctx, e, mapper.Query{Kind: "Account"}, credit{1}, &mapper.StartOptions{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	w.wait(start(w.engine, addCredit, "z"))
	w.wait(start(w.engine, steadyCredit, "y"))
	w.wait(start(other.engine, addCredit, "x"))
	a := start(w.engine, addCredit, "a")
	_ = a.Abort(ctx) // returns an error if the job has ended
	w.wait(start(w.engine, addCredit, "m"))
	s, err := a.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	of := func(state mapper.State, ids string) []string {
		all := strings.Fields(ids)
		if s.State != state {
			all = slices.DeleteFunc(all, func(id string) bool { return id == "a" })
		}
		return all
	}
	for _, test := range []struct {
		engine *mapper.Engine
		o      *mapper.JobsOptions
		want   []string
	}{
		{w.engine, nil, strings.Fields("m a y z")},
		{other.engine, nil, strings.Fields("x")},
		{other.engine, &mapper.JobsOptions{AllQueues: true}, strings.Fields("m a x y z")},
		{w.engine, &mapper.JobsOptions{Mapper: "steady-credit"}, strings.Fields("y")},
		{w.engine, &mapper.JobsOptions{Mapper: "none"}, nil},
		{w.engine, &mapper.JobsOptions{State: mapper.StateSucceeded}, of(mapper.StateSucceeded, "m a y z")},
		{w.engine, &mapper.JobsOptions{State: mapper.StateAborted}, of(mapper.StateAborted, "a")},
		{w.engine, &mapper.JobsOptions{State: mapper.StateRunning}, nil},
		{w.engine, &mapper.JobsOptions{State: mapper.StateSucceeded, Mapper: "add-credit"},
			of(mapper.StateSucceeded, "m a z")},
		{w.engine, &mapper.JobsOptions{State: mapper.StateSucceeded, Mapper: "add-credit", AllQueues: true},
			of(mapper.StateSucceeded, "m a x z")},
	} {
		if got, _ := list(t, test.engine, test.o); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.o, got, test.want)
		}
	}
	jobs, _, err := w.engine.JobsPage(ctx, &mapper.JobsOptions{Mapper: "steady-credit"}, "")
	if err != nil || len(jobs) != 1 {
		t.Fatalf("the list is %+v, %v", jobs, err)
	}
	if j := jobs[0]; j.Mapper != "steady-credit" || j.Queue != queueName || j.State != mapper.StateSucceeded ||
		!j.Counted ||
		j.Processed != 2 || j.Failures != 0 || !j.Ended.After(j.Created) {
		t.Errorf("%+v", j)
	}
	for _, bad := range []string{"x", "0000000000000000.", strings.Repeat("0", 16) + ".a b", "~"} {
		if _, _, err := w.engine.JobsPage(ctx, nil, bad); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("the cursor %q: %v", bad, err)
		}
	}
	if _, _, err := w.engine.JobsPage(ctx, &mapper.JobsOptions{State: "done"}, ""); !errors.Is(err,
		mapper.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "succeeded") {
		t.Errorf("a state that there is not: %v", err)
	}
	if _, _, err := (*mapper.Engine)(nil).JobsPage(ctx, nil, ""); !errors.Is(err, mapper.ErrInvalidArgument) {
		t.Errorf("no engine: %v", err)
	}
}

// TestManyJobs checks the cost of a list of jobs in a database with many old jobs. It must be one
// read for each listed job, even if such jobs are rare.
func TestManyJobs(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes:\n")}}, addCredit, slowCredit)
		w.putAccounts(names(1))
		const n, pause = 320, 100
		for i := range n {
			o := &mapper.StartOptions{ID: fmt.Sprint("job-", i), ExpectedWorkers: 1}
			if i%pause > 0 {
				w.start(1, o)
			} else {
				if _, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1},
					o); err != nil {
					t.Fatal(err)
				}
				if err := w.engine.Job(fmt.Sprint("job-", i)).Abort(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Millisecond) // the queue dispatches 500 tasks a second
		}
		time.Sleep(time.Hour)
		before := w.emulator.Usage()
		got, pages := list(t, w.engine, &mapper.JobsOptions{State: mapper.StateAborted})
		if used := w.emulator.Usage().Sub(before); !slices.Equal(got,
			[]string{"job-300", "job-200", "job-100", "job-0"}) || pages != 1 || used.Reads > 4 {
			t.Errorf("%q on %d pages cost %+v", got, pages, used)
		}
		before = w.emulator.Usage()
		all, pages := list(t, w.engine, nil)
		if used := w.emulator.Usage().Sub(before); len(all) != n || all[0] != "job-319" || all[n-1] != "job-0" ||
			pages != n/50+1 || used.Reads > n+1 {
			t.Errorf("%d jobs on %d pages cost %+v", len(all), pages, used)
		}
	})
}

// manyRanges creates a job with n ranges, a tenth of them open, whose tasks do not run. It also
// returns a function that returns the number of operations so far.
func manyRanges(t testing.TB, n int) (*mapper.Job, func() int64) {
	t.Helper()
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	e := emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(refuse)})
	client, err := e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queueName}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, queueName, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// the incarnation, a random number in the names of the job's records, decides which records are
	// in the sample
	bridge.Seed(engine, 1)
	job, err := addCredit.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, credit{1},
		&mapper.StartOptions{ID: "many", AllowEmpty: true})
	if err != nil {
		t.Fatal(err)
	}
	stored := &record.Job{ID: "many"}
	if err := client.Get(t.Context(), record.JobKey("many"), stored); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		var all []*record.Range
		for i := first; i < min(n, first+500); i++ {
			r := &record.Range{Job: stored.ID, Incarnation: stored.Incarnation,
				ID: record.RangeID(stored.Root(), int64(i)), Depth: 1, PageSize: 500, Estimate: 500, Created: now}
			if r.State = record.Pending; i%10 == 0 {
				r.Open = stored.ID
			} else {
				r.Entities, r.Processed, r.Written = 500, 500, 500
				r.Finish(now)
			}
			keys, all = append(keys, r.Key()), append(all, r)
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
	return job, func() (calls int64) {
		for _, n := range e.Usage().RPCs {
			calls += n
		}
		return calls
	}
}

// TestStatusOfManyRanges reads the status of a job with very many ranges. It must take at most ten
// calls, as for any other job.
func TestStatusOfManyRanges(t *testing.T) {
	testflag.Sequential(t)
	n := testflag.Size(t, 5000, 5000, 200_000)
	job, calls := manyRanges(t, n)
	before, begun := calls(), time.Now()
	s, err := job.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d ranges: %d calls, %v", n, calls()-before, time.Since(begun))
	if made := calls() - before; made > 10 {
		t.Errorf("%d calls", made)
	}
	p, all := s.Progress, int64(n)*450
	if !s.Estimated || s.Processed < all*8/10 || s.Processed > all*12/10 || p.FractionMin > 0.9 ||
		p.FractionMax < 0.9 ||
		p.Fraction < p.FractionMin || p.Fraction > p.FractionMax {
		t.Errorf("%+v, of %d entities", s, all)
	}
}

// BenchmarkStatusOfManyRanges measures how long a status takes, for a job with 200,000 ranges and
// for one with 200.
func BenchmarkStatusOfManyRanges(b *testing.B) {
	for name, n := range map[string]int{"200": 200, "200,000": 200_000} {
		b.Run(name, func(b *testing.B) {
			job, _ := manyRanges(b, n)
			// The emulator builds its index at the first query.
			if _, err := job.Status(b.Context()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := job.Status(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
