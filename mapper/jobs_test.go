package mapper_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// list returns the IDs that Jobs lists on all pages, and how many pages there are.
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

// TestJobs lists the jobs of two services, on all three Datastores.
func TestJobs(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { testJobs(t, nil) })
	})
	t.Run("google", func(t *testing.T) { testJobs(t, googletest.Client(t, emulator.Classic)) })
	t.Run("firestore", func(t *testing.T) { testJobs(t, googletest.Client(t, emulator.Firestore)) })
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
	_ = a.Abort(ctx) // or it has ended
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
		t.Fatalf("%+v, %v", jobs, err)
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

// TestManyJobs checks what a listing costs among many old jobs: as many reads as it has jobs,
// however rare they are.
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
			time.Sleep(time.Millisecond)
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
