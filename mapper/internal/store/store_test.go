package store

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

func newStore(t *testing.T, options *emulator.Options) Store {
	t.Helper()
	client, err := emulator.ForTest(t, options).DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return New(client)
}

// run starts a job of the mapper "m" over the kind "K", and makes it running. Before, change may
// edit the job's record.
func run(t *testing.T, st Store, id string, change func(j *record.Job)) *record.Job {
	t.Helper()
	j, err := tryRun(t, st, id, change)
	if err != nil {
		t.Fatalf("start %s: %v", id, err)
	}
	return j
}

func tryRun(t *testing.T, st Store, id string, change func(j *record.Job)) (*record.Job, error) {
	t.Helper()
	j := &record.Job{ID: id, Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running, PageSize: 10,
		Created: time.Now().UTC()}
	if change != nil {
		change(j)
	}
	j.Incarnate(uint64(time.Now().UnixNano()))
	return j, st.Create(t.Context(), j, record.First{}, nil)
}

// becomes sets the state of a job in the database.
func becomes(t *testing.T, st Store, j *record.Job, state record.JobState) {
	t.Helper()
	if _, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
		j.State = state
		return true, nil
	}); err != nil {
		t.Fatalf("%s becomes %s: %v", j.ID, state, err)
	}
}

// at returns the position of the entity with an ID.
func at(n int) *keyspace.Position { return keyspace.At(datastore.IDKey("K", int64(n), nil)) }

// putRanges writes the records of n ranges of a job that together cover the query. Before, change
// may edit the i-th range, counted from 1.
func putRanges(t *testing.T, st Store, j *record.Job, n int, change func(i int, r *record.Range)) {
	t.Helper()
	root := j.RootRange()
	all := []*datastore.Mutation{}
	for i := n; i > 0; i-- {
		end := root.End
		root.End = at(i)
		child := root.Child(split.Piece{Start: root.End, End: end}, time.Now())
		if change != nil {
			change(i, child)
		}
		all = append(all, child.Insert())
	}
	root.Finish(time.Now())
	for some := range slices.Chunk(append(all, root.Update()), 500) {
		if _, err := st.client.Mutate(t.Context(), some...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCreate checks that a job and its root are created together or not at all.
func TestCreate(t *testing.T) {
	errNo := errors.New("no")
	for _, c := range []struct {
		name   string
		before func(t *testing.T, st Store, j *record.Job)
		when   func(*datastore.Transaction) error
		want   error // nil: the job is created; errAny: any error of the database
	}{
		{name: "it is new"},
		{name: "it is new, and may be", when: func(*datastore.Transaction) error { return nil }},
		{name: "it may not be", when: func(*datastore.Transaction) error { return errNo }, want: errNo},
		{name: "its query can't be read", before: func(_ *testing.T, _ Store, j *record.Job) {
			j.Query = []byte("{")
			j.Incarnate(7)
		}, want: query.ErrNewer},
		{name: "another job has the ID", before: func(t *testing.T, st Store, _ *record.Job) {
			run(t, st, "j", func(j *record.Job) { j.Mapper = "other" })
		}, want: errThere},
		{name: "its root was blocked", before: func(t *testing.T, st Store, j *record.Job) {
			for range 2 {
				if err := st.BlockStart(t.Context(), j.Ref(), time.Now()); err != nil {
					t.Fatal(err)
				}
			}
		}, want: errThere},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := &record.Job{ID: "j", Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running}
				j.Incarnate(7)
				if c.before != nil {
					c.before(t, st, j)
				}
				err := st.Create(t.Context(), j, record.First{}, c.when)
				if status.Code(err) == codes.AlreadyExists {
					err = errThere
				}
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				_, err = st.LoadJob(t.Context(), j.Ref())
				if (err == nil) != (c.want == nil) {
					t.Errorf("load the job: %v", err)
				}
				open, err := st.HasOpen(t.Context(), j.Ref())
				if err != nil || open != (c.want == nil) {
					t.Errorf("it has open ranges: %v, %v", open, err)
				}
			})
		})
	}
}

var errThere = errors.New("it is there")

// TestLoadJob loads jobs by valid and invalid IDs.
func TestLoadJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		for _, c := range []struct {
			name string
			st   Store
			ref  record.Ref
			want error
		}{
			{"by its ID", st, record.Ref{ID: "j"}, nil},
			{"by both", st, j.Ref(), nil},
			{"for somebody who waits", st.Asked(), j.Ref(), nil},
			{"another incarnation", st, record.Ref{ID: "j", Incarnation: "other"}, record.ErrNoSuchJob},
			{"another ID", st, record.Ref{ID: "k"}, record.ErrNoSuchJob},
			{"no ID", st, record.Ref{}, record.ErrNoSuchJob},
			{"what is no ID", st, record.Ref{ID: "a/b"}, record.ErrNoSuchJob},
			{"without a database", Store{}, j.Ref(), fault.ErrArguments},
		} {
			got, err := c.st.LoadJob(t.Context(), c.ref)
			if !errors.Is(err, c.want) || err == nil && got.Ref() != j.Ref() {
				t.Errorf("%s: %+v, %v", c.name, got, err)
			}
		}
		if r, err := st.LoadRange(t.Context(), j.Ref(), j.Root()); err != nil || r.Open != "j" {
			t.Errorf("the root is %+v, %v", r, err)
		}
	})
}

// TestUpdateJob changes the record of a job, which has 5 failures at first, in several ways.
func TestUpdateJob(t *testing.T) {
	errNo := errors.New("no")
	raise := func(j *record.Job) (bool, error) { j.Failures++; return true, nil }
	for _, c := range []struct {
		name   string
		ref    func(j *record.Job) record.Ref
		when   func(*datastore.Transaction) error
		change func(j *record.Job) (bool, error)
		want   int64
		err    error
	}{
		{name: "it is changed", change: raise, want: 6},
		{name: "by its ID", ref: func(*record.Job) record.Ref { return record.Ref{ID: "j"} }, change: raise, want: 6},
		{name: "there is nothing to change", want: 5,
			change: func(j *record.Job) (bool, error) { j.Trouble = "unsaved"; return false, nil }},
		{name: "it may not be", change: func(*record.Job) (bool, error) { return true, errNo }, want: 5, err: errNo},
		{name: "on a condition that holds", when: func(*datastore.Transaction) error { return nil }, change: raise,
			want: 6},
		{name: "on one that does not", when: func(*datastore.Transaction) error { return errNo }, change: raise,
			want: 5,
			err:  errNo},
		{name: "another incarnation", ref: func(*record.Job) record.Ref {
			return record.Ref{ID: "j", Incarnation: "x"}
		},
			change: raise, want: 5, err: record.ErrNoSuchJob},
		{name: "another job", ref: func(*record.Job) record.Ref { return record.Ref{ID: "k"} }, change: raise, want: 5,
			err: record.ErrNoSuchJob},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := run(t, st, "j", func(j *record.Job) { j.Failures = 5 })
				ref := j.Ref()
				if c.ref != nil {
					ref = c.ref(j)
				}
				got, err := When(st, c.when).UpdateJob(t.Context(), ref, c.change)
				if !errors.Is(err, c.err) || err == nil && got.Failures != c.want {
					t.Errorf("%+v, %v, want %v", got, err, c.err)
				}
				now, err := st.LoadJob(t.Context(), j.Ref())
				if err != nil || now.Failures != c.want || now.Trouble != "" {
					t.Errorf("the record has %d, %q, %v, want %d", now.Failures, now.Trouble, err, c.want)
				}
			})
		})
	}
}

// TestUpdatesTogether makes many changes of a job at the same time, and checks that none is lost.
func TestUpdatesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		var changed atomic.Int64
		for range 20 {
			go func() {
				_, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
					j.Failures++
					return true, nil
				})
				if err == nil {
					changed.Add(1)
				} else if !errors.Is(err, datastore.ErrConcurrentTransaction) {
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Hour)
		now, err := st.LoadJob(t.Context(), j.Ref())
		if err != nil || now.Failures != changed.Load() || now.Failures < 2 {
			t.Errorf("%d changes are recorded of %d, %v", now.Failures, changed.Load(), err)
		}
	})
}

// TestChangeOnce refuses commits, or loses their answers. A change that may have taken effect must
// not be repeated.
func TestChangeOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		// answers to the commits, in order; Internal: the commit takes effect, but its answer is
		// lost
		answers []codes.Code
		want    int64 // the number of times that the change must take effect
		err     bool
	}{
		{"it is done", nil, 1, false},
		{"others were first, twice", []codes.Code{codes.Aborted, codes.Aborted}, 1, false},
		{"the answer is lost", []codes.Code{codes.Internal}, 1, true},
		{"others were first, and then the answer is lost", []codes.Code{codes.Aborted, codes.Internal}, 1, true},
		{"others are first all the time", []codes.Code{codes.Aborted, codes.Aborted, codes.Aborted, codes.Aborted,
			codes.Aborted, codes.OK}, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answers []codes.Code
				st := newStore(t, &emulator.Options{Interceptor: func(
					ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
				) (any, error) {
					answer := codes.OK
					if path.Base(info.FullMethod) == "Commit" && len(answers) > 0 {
						answer, answers = answers[0], answers[1:]
					}
					if answer == codes.Aborted {
						return nil, status.Error(answer, "others were first")
					}
					resp, err := handler(ctx, req)
					if answer != codes.OK {
						err = status.Error(answer, "the answer is lost")
					}
					return resp, err
				}})
				j := run(t, st, "j", nil)
				answers = slices.Clone(c.answers)
				err := st.ChangeOnce(t.Context(), j.Ref(), func(j *record.Job) bool { j.Failures++; return true })
				if (err != nil) != c.err {
					t.Error(err)
				}
				now, err := st.LoadJob(t.Context(), j.Ref())
				if err != nil || now.Failures != c.want {
					t.Errorf("it took place %d times, want %d; %v", now.Failures, c.want, err)
				}
				answers = nil
				if err := st.ChangeOnce(t.Context(), j.Ref(), func(j *record.Job) bool {
					j.Failures = 99
					return false
				}); err != nil {
					t.Errorf("nothing is to be changed: %v", err)
				}
				if now, err := st.LoadJob(t.Context(), j.Ref()); err != nil || now.Failures != c.want {
					t.Errorf("nothing was to be changed, and it is %d, %v", now.Failures, err)
				}
			})
		})
	}
}

// TestUpdateRange checks UpdateRange for changes that write, that write nothing, and for a missing
// record.
func TestUpdateRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		root := record.RangeKey(j.Ref(), j.Root())
		for _, c := range []struct {
			name    string
			key     *datastore.Key
			changes bool
			want    int64 // Attempts in the stored record afterwards; -1: there is no record
		}{
			{"nothing is to be changed", root, false, 0},
			{"it is changed", root, true, 1},
			{"once more", root, true, 2},
			{"it is gone", record.RangeKey(j.Ref(), record.RangeID(j.Root(), 0)), true, -1},
		} {
			r, err := st.UpdateRange(t.Context(), c.key, func(r *record.Range) bool { r.Attempts++; return c.changes })
			if err != nil || (r == nil) != (c.want < 0) {
				t.Errorf("%s: %+v, %v", c.name, r, err)
			}
			now := new(record.Range)
			if err := st.client.Get(t.Context(), c.key, now); (err != nil) != (c.want < 0) || err == nil &&
				now.Attempts != c.want {
				t.Errorf("%s: %d attempts, %v, want %d", c.name, now.Attempts, err, c.want)
			}
		}
	})
}

// TestJobs lists jobs by queue, state and mapper. The latest start must come first.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		var all []*record.Job
		for _, j := range []struct {
			id, mapper string
			queue      record.Owner
			state      record.JobState
		}{
			{"a", "m", "q1", record.Running}, {"b", "m", "q2", record.Paused}, {"c", "n", "q1", record.Succeeded},
			{"d", "n", "q2", record.Running}, {"e", "m", "", record.Running},
		} {
			all = append(all, run(t, st, j.id, func(r *record.Job) {
				r.Mapper, r.Queue, r.State, r.Beside = j.mapper, j.queue, j.state, true
			}))
			time.Sleep(time.Second)
		}
		for _, c := range []struct {
			name    string
			queues  []record.Owner
			listing record.Listing
			before  string
			limit   int
			want    []string
		}{
			{"all", []record.Owner{""}, record.Listing{}, "", 10, []string{"e", "d", "c", "b", "a"}},
			{"the last two", []record.Owner{""}, record.Listing{}, "", 2, []string{"e", "d"}},
			{"those before these", []record.Owner{""}, record.Listing{}, all[3].Place(), 2, []string{"c", "b"}},
			{"of a queue", []record.Owner{"q1"}, record.Listing{}, "", 10, []string{"c", "a"}},
			{"of two queues", []record.Owner{"q1", "q2"}, record.Listing{}, "", 3, []string{"d", "c", "b"}},
			{"in a state", []record.Owner{""}, record.Listing{State: record.Running}, "", 10, []string{"e", "d", "a"}},
			{"of a mapper", []record.Owner{""}, record.Listing{Mapper: "n"}, "", 10, []string{"d", "c"}},
			{"of all three", []record.Owner{"q2"}, record.Listing{Mapper: "m", State: record.Paused}, "", 10,
				[]string{"b"}},
			{"none", []record.Owner{"q3"}, record.Listing{}, "", 10, nil},
			{"since a time", []record.Owner{""}, record.Listing{From: all[3].Created}, "", 10, []string{"e", "d"}},
			{"before a time", []record.Owner{""}, record.Listing{Before: all[3].Created}, all[4].Place(), 10,
				[]string{"c", "b", "a"}},
			{"of two queues in a time", []record.Owner{"q1", "q2"},
				record.Listing{From: all[1].Created, Before: all[3].Created}, "", 10, []string{"c", "b"}},
		} {
			jobs, err := st.Jobs(t.Context(), c.queues, c.listing, c.before, c.limit)
			if got := idsOf(jobs); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
			}
			if n, err := st.CountJobs(t.Context(), c.queues, c.listing); err != nil || n < int64(len(c.want)) ||
				c.before == "" && len(c.want) < c.limit && n != int64(len(c.want)) {
				t.Errorf("%s: %d jobs are counted, %v, want %d", c.name, n, err, len(c.want))
			}
		}
		active, err := st.Active(t.Context())
		if got := idsOf(active); err != nil || !slices.Equal(got, []string{"a", "d", "e"}) {
			t.Errorf("active are %q, %v", got, err)
		}
		if _, err := (Store{}).CountJobs(t.Context(), []record.Owner{""}, record.Listing{}); !errors.Is(err,
			fault.ErrArguments) {
			t.Errorf("counted without a database: %v", err)
		}
		if _, err := (Store{}).Jobs(t.Context(), nil, record.Listing{}, "", 1); !errors.Is(err, fault.ErrArguments) {
			t.Errorf("without a database: %v", err)
		}
	})
}

func idsOf(jobs []*record.Job) (all []string) {
	for _, j := range jobs {
		all = append(all, j.ID)
	}
	return all
}

// TestDue lists the jobs of a queue whose retention is over. The job whose retention ended first
// must come first.
func TestDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		now := time.Now()
		ended := func(id string, queue record.Owner, ago, retain time.Duration) {
			run(t, st, id, func(j *record.Job) {
				j.Queue, j.State, j.Ended, j.Retain = queue, record.Succeeded, now.Add(-ago).UTC(), retain
				j.Beside = true
			})
		}
		ended("late", "q", 5*time.Hour, 2*time.Hour)
		ended("later", "q", 3*time.Hour, 2*time.Hour)
		ended("early", "q", time.Hour, 2*time.Hour)
		ended("kept", "q", 5*time.Hour, 0)
		ended("other", "r", 5*time.Hour, 2*time.Hour)
		for limit, want := range map[int][]string{10: {"late", "later"}, 1: {"late"}} {
			jobs, err := st.Due(t.Context(), "q", now, limit)
			if got := idsOf(jobs); err != nil || !slices.Equal(got, want) {
				t.Errorf("%q are due, %v, want %q", got, err, want)
			}
		}
	})
}

// TestHealth checks the result of Check for a database that answers, and for one that does not.
// Check must call the database at most once a second.
func TestHealth(t *testing.T) {
	_ = testflag.Seeds // keeps the import, which declares the flags for all test binaries
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var down atomic.Bool
		st := newStore(t, &emulator.Options{Interceptor: func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			asked.Add(1)
			if down.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return handler(ctx, req)
		}})
		var h Health
		for _, c := range []struct {
			name    string
			down    bool
			waits   time.Duration // wait before the check
			ok      bool
			asked   int64 // number of calls of the database so far
			answers time.Duration
		}{
			{"at first", false, 0, true, 1, 0},
			{"just now", true, healthFor / 2, true, 1, 0},
			{"a second after the answer it is down", true, healthFor / 2, false, 2, healthTime},
			{"just now again", false, healthFor / 2, false, 2, 0},
			{"and up again", false, healthFor, true, 3, 0},
		} {
			time.Sleep(c.waits)
			down.Store(c.down)
			begun := time.Now()
			err := h.Check(t.Context(), st.client)
			if took := time.Since(begun); (err == nil) != c.ok || asked.Load() != c.asked || took != c.answers {
				t.Errorf("%s: after %v, asked %d times: %v", c.name, took, asked.Load(), err)
			}
		}
	})
}
