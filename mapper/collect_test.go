package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type leaf struct{ N int64 }

// A sheet is what a page was written under.
type sheet struct {
	Name string
	N    int64
}

// A shelf is somewhere else, where pages are written.
type shelf struct {
	mu     sync.Mutex
	sheets map[string][]int64
	tried  map[int64]int
}

func (s *shelf) write(name string, all []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sheets[name]; ok {
		return fmt.Errorf("%s is there", name)
	}
	s.sheets[name] = all
	return nil
}

func (s *shelf) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sheets, name)
}

// tries returns how often something was tried, with this time.
func (s *shelf) tries(n int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried[n]++
	return s.tried[n]
}

const leaves = 3000

// collector returns a mapper that writes to a shelf: all leaves but those that are skipped, fail
// for good, or fail at first.
func collector(s *shelf) *mapper.Mapper[mapper.NoParams] {
	return mapper.VisitPages("collect", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64,
		error) {
		switch n := e.Value.N; {
		case n%100 == 7:
			return 0, mapper.Permanent(errors.New("seven"))
		case n%100 == 8:
			return 0, mapper.Skip
		case n%500 == 9 && s.tries(n) == 1:
			return 0, errors.New("later")
		}
		e.Count("leaves", 1)
		return e.Value.N, nil
	}, func(_ context.Context, p *mapper.Page[int64], _ mapper.NoParams) error {
		if err := s.write(p.UniqueName(), p.Records); err != nil {
			return mapper.Permanent(err)
		}
		p.OnRollback(func(context.Context) { s.remove(p.UniqueName()) })
		if s.tries(-1)%10 == 3 {
			return errors.New("the shelf is full, for now")
		}
		p.Put(datastore.NameKey("Sheet", p.RunID()+"/"+p.UniqueName(), nil),
			&sheet{p.UniqueName(), int64(len(p.Records))})
		p.Count("sheets", 1)
		return nil
	}).WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		if mapper.EngineFromContext(ctx) == nil {
			return mapper.Permanent(errors.New("no engine"))
		}
		d.Put(datastore.NameKey("Run", "it", nil), &sheet{Name: d.RunID()})
		return nil
	})
}

// TestCollect has a mapper write pages elsewhere, with and without faults: those that its commits
// name have each entity once, and without faults nothing else is left there.
func TestCollect(t *testing.T) {
	t.Parallel()
	first := testflag.Seed(t)
	for i := range uint64(7) {
		seed := uint64(0)
		if i > 0 {
			seed = first + i - 1
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := &shelf{sheets: make(map[string][]int64), tried: make(map[int64]int)}
			m := collector(s)
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Seed: seed},
				func(t *testing.T, w *mappertest.Env) {
					putLeaves(t, w.Client)
					w.ResumeFaults()
					job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
						&mapper.StartOptions{ID: "collect", PageSize: 100})
					if err != nil {
						w.PauseFaults()
						job, err = m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
							&mapper.StartOptions{ID: "collect", PageSize: 100})
					}
					if err != nil {
						t.Fatal(err)
					}
					status, err := job.Wait(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					w.PauseFaults()
					checkSheets(t, w.Client, s, status, seed == 0)
				})
		})
	}
}

func putLeaves(t *testing.T, client *datastore.Client) {
	t.Helper()
	for from := 0; from < leaves; from += 500 {
		var keys []*datastore.Key
		var all []leaf
		for n := from; n < from+500; n++ {
			keys, all = append(keys, datastore.IDKey("Leaf", int64(n)+1, nil)), append(all, leaf{int64(n)})
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// checkSheets checks that the sheets that a job has put name each leaf once, and, if there were no
// faults, that there are no others.
func checkSheets(t *testing.T, client *datastore.Client, s *shelf, status *mapper.Status, calm bool) {
	t.Helper()
	const failed, skipped = leaves / 100, leaves / 100
	if status.State != mapper.StateSucceededWithFailures || status.Failures != failed ||
		status.Processed != leaves-failed ||
		status.Counters["leaves"] != leaves-failed-skipped {
		t.Errorf("status %+v", status)
	}
	var all []sheet
	if _, err := client.GetAll(t.Context(), datastore.NewQuery("Sheet"), &all); err != nil {
		t.Fatal(err)
	}
	if n := status.Counters["sheets"]; n != int64(len(all)) {
		t.Errorf("%d sheets are counted, and there are %d", n, len(all))
	}
	seen := make(map[int64]int)
	for _, sh := range all {
		found := s.sheets[sh.Name]
		if int64(len(found)) != sh.N {
			t.Errorf("%s has %d leaves, want %d", sh.Name, len(found), sh.N)
		}
		for _, n := range found {
			seen[n]++
		}
	}
	for n := range int64(leaves) {
		want := 1
		if n%100 == 7 || n%100 == 8 {
			want = 0
		}
		if seen[n] != want {
			t.Errorf("leaf %d is there %d times, want %d", n, seen[n], want)
		}
	}
	if left := len(s.sheets) - len(all); left > 0 && calm {
		t.Errorf("%d of %d sheets are of no commit", left, len(s.sheets))
	}
	var run sheet
	if err := client.Get(t.Context(), datastore.NameKey("Run", "it", nil), &run); err != nil || len(all) > 0 &&
		run.Name == "" {
		t.Errorf("run %+v, %v", run, err)
	}
}

// TestCollectFails has the function over pages fail, in each way that a job has to end by.
func TestCollectFails(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	for name, page := range map[string]func(context.Context, *mapper.Page[int64], mapper.NoParams) error{
		"permanently": func(context.Context, *mapper.Page[int64], mapper.NoParams) error {
			return mapper.Permanent(errors.New("no disk"))
		},
		"each time": func(context.Context, *mapper.Page[int64], mapper.NoParams) error {
			return errors.New("no disk")
		},
		"by a panic": func(context.Context, *mapper.Page[int64], mapper.NoParams) error { panic("no disk") },
	} {
		t.Run(name, func(t *testing.T) {
			m := mapper.VisitPages("collect", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64,
				error) {
				return e.Value.N, nil
			}, page)
			mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
				putLeaves(t, w.Client)
				job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				status, err := job.Wait(t.Context())
				if err != nil || status.State != mapper.StateFailed || status.Processed != 0 {
					t.Errorf("%+v, %v", status, err)
				}
				if status != nil && !strings.Contains(status.Error, "no disk") {
					t.Errorf("the error is %q", status.Error)
				}
			})
		})
	}
}

// TestCollectOfTwins has each delivery come twice at about the same time, and no process die: of
// what two have written the one whose commit came too late takes away its own.
func TestCollectOfTwins(t *testing.T) {
	t.Parallel()
	s := &shelf{sheets: make(map[string][]int64), tried: make(map[int64]int)}
	m := collector(s)
	synctest.Test(t, func(t *testing.T) {
		twins := emulator.NewFaults(1, emulator.Fault{Kind: emulator.DeliverTogether, Share: 1,
			Latency: emulator.Uniform{Max: 10 * time.Millisecond}},
			emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: 10 * time.Millisecond}})
		w := newWorld(t, setting{emulator: emulator.Options{Faults: twins}, queue: few(8)}, m)
		putLeaves(t, w.client)
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "collect", PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		status, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // until the last twin is out
		checkSheets(t, w.client, s, status, true)
		if s.tried[-1] <= int(status.Counters["sheets"])*11/10 {
			t.Errorf("%d pages were written for %d that count: there were no twins", s.tried[-1],
				status.Counters["sheets"])
		}
	})
}
