package mapper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// observe has a world's engine call a hook for each change of a job's state.
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

// lines returns what a log says of changes of a job's state: the messages and some attributes.
func (l *logged) lines() (all []string) {
	line := regexp.MustCompile(`level=(\w+) msg="(job [^"]*)" job=(\S+) mapper=\S+(.*)`)
	for _, m := range line.FindAllStringSubmatch(l.String(), -1) {
		all = append(all, m[1]+" "+m[2]+" "+m[3]+m[4])
	}
	return all
}

// TestStateChanges checks what the log and the hook say of a job that is started, paused, resumed,
// retried, paused by its limit, aborted, and of one that fails: each change once, with its cause,
// who has asked, and what was done so far.
func TestStateChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Int64 // every so manieth account fails
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
			for range 2 { // the second one changes nothing
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
			t.Errorf("%+v, %v", s, err)
		}
		broken.Store(0)
		do(time.Minute, func(j *mapper.Job, ctx context.Context) error { return j.Retry(ctx, nil) })
		if s, err := job.Wait(t.Context()); err != nil || s.Failures != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		broken.Store(50)
		job, err = m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "two", PageSize: 20, FailureLimit: 5, ExpectedWorkers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StatePaused {
			t.Errorf("%+v, %v", s, err)
		}
		do(time.Minute, (*mapper.Job).Abort)
		broken.Store(1)
		job, err = m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "three", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateFailed {
			t.Errorf("%+v, %v", s, err)
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
			`WARN job paused two from=running cause="more than 5 entities have failed" processed=N failures=N ` +
				`estimated=false`,
			"INFO job aborted two from=paused cause=aborted" + by + " processed=N failures=N estimated=false after=T",
			"INFO job running three cause=started",
			`ERROR job failed three from=running cause="the function failed on 20 of 20 entities of a page" ` +
				`processed=0 failures=0 estimated=false after=T`,
		}
		got, noted := log.lines(), 0
		got = slices.DeleteFunc(got, func(line string) bool {
			found := strings.HasPrefix(line, "INFO job changed one from=running cause=") && strings.HasSuffix(line, by)
			if found { // it was in that state before
				noted++
			}
			return found
		})
		if noted != 2 {
			t.Errorf("%d lines say what is done to a job that goes on as it did, want 2", noted)
		}
		wantHistory(t, w.engine.Job("one"), "started running", "paused paused", "resumed running", "resumed running",
			"its failures are retried running", "its failures are retried running")
		wantHistory(t, w.engine.Job("two"), "started running", "more than 5 entities have failed paused",
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

// TestHookHarmsNothing has a hook panic, and another hang.
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
				time.Sleep(2 * time.Hour) // also for what was left behind
				w.wantBalances(names(100), 10)
				if n := log.count("EngineOptions.OnStateChange has"); n != 2 ||
					strings.Contains(log.String(), "secret") {
					t.Errorf("the log:\n%s", log.String())
				}
			})
		})
	}
}

// TestLostAnswers loses the answers of all commits that change a job's state: each change is seen
// all the same.
func TestLostAnswersOfChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		faults := emulator.NewFaults(1, emulator.Fault{Kind: emulator.LoseAnswer, Share: 1,
			Code: codes.DeadlineExceeded, Methods: []string{"Commit"}})
		faults.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: faults}, log: &log}, steadyCredit)
		w.putAccounts(names(500))
		faults.Resume()
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

// TestFewLines has 700 entities fail, each five times: the log has a few lines, which say how many
// entities they are about, and how many lines were left out.
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
		w.putAccounts(names(21_000))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 300})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.Failures != 700 {
			t.Fatalf("%+v, %v", s, err)
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
			`msg="entities failed" job=\S+ mapper=\S+ range=\S+ tried_again=10 recorded=0 kinds="10 error ` +
				causes[0].Digest + `"`).MatchString(log.String()) {
			t.Errorf("no line is about a page:\n%.3000s", log.String())
		}
		if !strings.Contains(log.String(), "left_out=") {
			t.Errorf("nothing says what was left out:\n%.3000s", log.String())
		}
	})
}

// TestStatusSaysWhy has all entities fail for a while: while their pages are tried again the status
// says why, and no longer than that.
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
		time.Sleep(5 * time.Minute)
		if s, err = job.Status(t.Context()); err != nil || s.State != mapper.StateRunning || s.Error != "" {
			t.Errorf("once they are done: %+v, %v", s, err)
		}
		w.wait(job)
	})
}

// TestStatusSettings checks that a status has the parameters and the settings of its job.
func TestStatusSettings(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(7)}, addCredit)
		w.putAccounts(names(1))
		o := &mapper.StartOptions{ID: "one", PageSize: 77, FailureShare: 0.5,
			Rate: mapper.Rate{EntitiesPerSecond: 1000}}
		job := w.start(10, o)
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
		if s.Settings != want || string(s.Params) != `{"Amount":10}` {
			t.Errorf("%+v, %s; want %+v", s.Settings, s.Params, want)
		}
		encoded, err := json.Marshal(s)
		part := `"params":{"Amount":10},"settings":{"id":"one","page_size":77,"page_time_ns":3000000000,` +
			`"expected_workers":7,"rate":{"entities":2000},"entity_timeout_ns":30000000000,` +
			`"retries":{"attempts":5,"first_ns":1000000000,"max_ns":1024000000000},` +
			`"failure_limit":1000,"failure_share":0.5}`
		if err != nil || !strings.Contains(string(encoded), part) {
			t.Errorf("%s, %v; want %s in it", encoded, err, part)
		}
	})
}

// wantHistory checks what a job's history says was done to it, and that it became of it.
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

// TestHistory has operators do things to a job, of which each has one act with who and why, and
// what changes nothing none.
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
			t.Errorf("%+v", s)
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
