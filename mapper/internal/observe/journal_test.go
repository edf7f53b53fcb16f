package observe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// newJournal returns an Observer, and a function that returns the lines logged since its last call,
// without their times.
func newJournal() (*Observer, func() string) {
	out := new(bytes.Buffer)
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "stack" {
			return slog.Attr{}
		}
		return a
	}}))
	return &Observer{Log: log, Flaws: Limited(log)}, func() string {
		defer out.Reset()
		return strings.TrimSuffix(out.String(), "\n")
	}
}

// TestChanged checks the log line for each change of a job's state.
func TestChanged(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	done := record.Totals{Processed: 7, Failures: 2}
	for _, c := range []struct {
		name   string
		job    record.Job
		from   record.JobState
		cause  string
		by     string
		totals bool // whether the job's record has totals
		want   string
	}{
		{
			name: "it starts", job: record.Job{State: record.Running}, by: "ann",
			want: `level=INFO msg="job running" job=j mapper=m by=ann why=reason`,
		},
		{
			name: "it starts with a rate", job: record.Job{State: record.Running, Rate: []byte(`{"entities":5}`)},
			want: `level=INFO msg="job running" job=j mapper=m why=reason rate="it keeps to its rate of 5 entities a ` +
				`second"`,
		},
		{
			name: "it succeeds", job: record.Job{State: record.Succeeded, Created: noon, Ended: noon.Add(time.Minute)},
			from: record.Running, totals: true,
			want: "level=INFO msg=\"job succeeded\" job=j mapper=m from=running why=reason processed=7 failures=2 " +
				"estimated=false after=1m0s",
		},
		{
			name: "it succeeds with failures", job: record.Job{State: record.SucceededWithFailures},
			from: record.Running, totals: true,
			want: "level=WARN msg=\"job succeeded with failures\" job=j mapper=m from=running why=reason processed=7 " +
				"failures=2 estimated=false",
		},
		{
			name: "it fails", job: record.Job{State: record.Failed}, from: record.Running, cause: "bad", totals: true,
			want: "level=ERROR msg=\"job failed\" job=j mapper=m from=running cause=bad why=reason processed=7 " +
				"failures=2 estimated=false",
		},
		{
			name: "somebody pauses it", job: record.Job{State: record.Paused}, from: record.Running, totals: true,
			want: "level=INFO msg=\"job paused\" job=j mapper=m from=running why=reason processed=7 failures=2 " +
				"estimated=false",
		},
		{
			name: "a limit pauses it", job: record.Job{State: record.Paused, Limited: true}, from: record.Running,
			totals: true,
			want: "level=WARN msg=\"job paused\" job=j mapper=m from=running why=reason processed=7 failures=2 " +
				"estimated=false",
		},
		{
			name: "it has totals that nobody can read", job: record.Job{State: record.Succeeded, Totals: []byte("x")},
			from: record.Running, want: `level=INFO msg="job succeeded" job=j mapper=m from=running why=reason`,
		},
	} {
		jn, lines := newJournal()
		var hooked []Change
		jn.Hook = func(_ context.Context, c Change) { hooked = append(hooked, c) }
		job := c.job
		job.ID, job.Mapper = "j", "m"
		if c.totals {
			if err := done.RecordIn(&job); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(WithWhy(WithBy(t.Context(), c.by), "reason"))
		cancel() // the end of the operator's request must not prevent the report
		jn.Changed(ctx, c.from, &job, c.cause)
		if got := lines(); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
		if len(hooked) != 1 || hooked[0].From != c.from || hooked[0].Cause != c.cause || hooked[0].By != c.by ||
			hooked[0].Job.State != c.job.State || c.totals && hooked[0].Totals.Processed != 7 {
			t.Errorf("%s: the hook has %+v", c.name, hooked)
		}
	}
}

// TestChangedCounts checks that the reported totals of a job are counted from the records of its
// ranges, if its own record has none.
func TestChangedCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		jn, lines := newJournal()
		jn.Store = store.New(client)
		job := &record.Job{ID: "j", Mapper: "m", State: record.Paused}
		job.Incarnate(1)
		root := job.RootRange()
		root.Processed = 5
		root.Finish(time.Now())
		if _, err := client.Mutate(t.Context(), root.Insert()); err != nil {
			t.Fatal(err)
		}
		jn.Changed(t.Context(), record.Running, job, "")
		if got := lines(); !strings.HasSuffix(got, "processed=5 failures=0 estimated=false") {
			t.Error(got)
		}
	})
}

// TestHook checks that Changed returns in time and logs a line, even if its hook panics or hangs.
func TestHook(t *testing.T) {
	for _, c := range []struct {
		name string
		hook func(context.Context)
		took time.Duration
		want string
	}{
		{"it returns", func(context.Context) { time.Sleep(time.Second) }, time.Second, ""},
		{"it panics", func(context.Context) { panic(errors.New("secret")) }, 0,
			`level=WARN msg="EngineOptions.OnStateChange has panicked" panic=*errors.errorString`},
		{"it does not return", func(context.Context) { time.Sleep(time.Hour) }, hookTime,
			`level=WARN msg="EngineOptions.OnStateChange has not returned; the job goes on without it" after=10s`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				jn, lines := newJournal()
				jn.Hook = func(ctx context.Context, _ Change) { c.hook(ctx) }
				begun := time.Now()
				jn.Changed(t.Context(), "", &record.Job{State: record.Running}, "")
				if took := time.Since(begun); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				_, got, _ := strings.Cut(lines(), "\n")
				if got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// TestLines checks the log lines that are not about changes of a state. A line about a job's queue
// must come at most once a minute.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jn, lines := newJournal()
		a, b := &record.Job{ID: "a", Mapper: "m", State: record.Running}, &record.Job{ID: "b", Mapper: "m"}
		for _, c := range []struct {
			name string
			say  func()
			want string
		}{
			{"a page", func() { jn.Failing(t.Context(), a, &record.Range{ID: "r"}, 2, 1, "timeout") },
				`level=WARN msg="entities failed" job=a mapper=m range=r tried_again=2 recorded=1 kinds=timeout`},
			{"an entity", func() { jn.Failing(t.Context(), a, &record.Range{ID: "r", Alone: true}, 1, 0, "timeout") },
				`level=WARN msg="an entity failed again" job=a mapper=m range=r tried_again=1 recorded=0 ` +
					`kinds=timeout`},
			{"a change", func() { jn.Noted(WithBy(t.Context(), "ann"), a, "another rate") },
				`level=INFO msg="job changed" job=a mapper=m from=running cause="another rate" by=ann`},
			{"the queue", func() { jn.Undelivered(t.Context(), a, "denied") },
				`level=WARN msg="tasks are not delivered" job=a mapper=m cause=denied`},
			{"the queue again", func() { jn.Undelivered(t.Context(), a, "denied") }, ""},
			{"the queue, of another job", func() { jn.Undelivered(t.Context(), b, "denied") },
				`level=WARN msg="tasks are not delivered" job=b mapper=m cause=denied`},
			{"the queue a minute later", func() { time.Sleep(window); jn.Undelivered(t.Context(), a, "denied") },
				`level=WARN msg="tasks are not delivered" job=a mapper=m cause=denied`},
		} {
			c.say()
			if got := lines(); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
	})
}

// TestByWhy checks that operators and reasons are cut to their limits, and remain valid UTF-8.
func TestByWhy(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	ctx := WithWhy(WithBy(t.Context(), long), "x"+long)
	if by, why := By(ctx), Why(ctx); by != long[:200] || why != "x"+long[:498] {
		t.Errorf("%d and %d bytes", len(by), len(why))
	}
	if By(t.Context()) != "" || Why(t.Context()) != "" {
		t.Error("nobody has asked")
	}
}

// TestAdvancing checks that schedules are advanced when a job stops running, and that the given
// hook is always called.
func TestAdvancing(t *testing.T) {
	for _, c := range []struct {
		state    record.JobState
		err      error
		advanced bool
	}{{record.Running, nil, false}, {record.Paused, nil, true}, {record.Succeeded, nil, true},
		{record.Failed, errors.New("down"), true}} {
		jn, lines := newJournal()
		hooked, advanced := false, false
		Advancing(func(context.Context, Change) { hooked = true }, func(context.Context) error {
			advanced = true
			return c.err
		}, jn.Log)(t.Context(), Change{Job: &record.Job{State: c.state}})
		if got := lines(); !hooked || advanced != c.advanced || strings.Contains(got, "error=down") != (c.err != nil) {
			t.Errorf("%s: hooked %v, advanced %v, %s", c.state, hooked, advanced, got)
		}
	}
	ran := false
	Advancing(nil, func(context.Context) error { ran = true; return nil }, slog.New(slog.DiscardHandler))(t.Context(),
		Change{Job: new(record.Job)})
	if !ran {
		t.Error("without a hook nothing is advanced")
	}
}
