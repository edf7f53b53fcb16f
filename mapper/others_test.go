package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A player belongs to a team, whose name it gets.
type player struct {
	Team string
	Name string `datastore:",noindex"`
}

type team struct {
	Name   string `datastore:",noindex"`
	Points int64
}

func teamKey(name string) *datastore.Key { return datastore.NameKey("Team", name, nil) }

// TestJoin copies the names of teams to their members, while others rename teams and members move:
// in the end each player has the name that its team had when it was written, and so a second job
// finds nothing to do where nobody interferes.
func TestJoin(t *testing.T) {
	t.Parallel()
	named := func(ctx context.Context, e *mapper.Entity[player], _ mapper.NoParams) error {
		var of team
		if err := e.Get(ctx, teamKey(e.Value.Team), &of); err != nil {
			return err
		}
		e.Value.Name = of.Name
		return nil
	}
	reads := func(e *mapper.Entity[player], _ mapper.NoParams) []*datastore.Key {
		return []*datastore.Key{teamKey(e.Value.Team)}
	}
	for name, m := range map[string]*mapper.Mapper[mapper.NoParams]{
		"one by one": mapper.Update("join", named), "ahead": mapper.UpdateReading("join", reads, named),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testJoin(t, m) })
		})
	}
}

func testJoin(t *testing.T, m *mapper.Mapper[mapper.NoParams]) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	slow := emulator.NewFaults(1,
		emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: 5 * time.Millisecond}})
	w, ctx := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Faults: slow}}, m), t.Context()
	const n, teams = 400, 10
	keys := make([]*datastore.Key, n)
	all := make([]player, n)
	for i := range keys {
		keys[i], all[i] = datastore.IDKey("Member", int64(i+1), nil), player{Team: fmt.Sprint(i % teams)}
	}
	_, err := w.client.PutMulti(ctx, keys, all)
	w.must(err)
	for i := range teams {
		_, err := w.client.Put(ctx, teamKey(fmt.Sprint(i)), &team{Name: "before"})
		w.must(err)
	}
	job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Member"}, mapper.NoParams{},
		&mapper.StartOptions{PageSize: 50, ExpectedWorkers: 4})
	w.must(err)
	// Who renames a team renames its members that have been named, in one transaction: so all
	// agree, or are not named yet.
	for turn, i := range rng.Perm(teams) { // each once: another time would mend what is wrong
		of := fmt.Sprint(i)
		name := fmt.Sprint("name ", turn)
		_, err := w.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var found []player
			keys, err := w.client.GetAll(ctx, datastore.NewQuery("Member").FilterField("Team", "=", of).Transaction(tx),
				&found)
			if err != nil {
				return err
			}
			for i := range found {
				if found[i].Name != "" {
					if found[i].Name = name; true {
						if _, err := tx.Put(keys[i], &found[i]); err != nil {
							return err
						}
					}
				}
			}
			_, err = tx.Put(teamKey(of), &team{Name: name})
			return err
		}, datastore.MaxAttempts(50))
		w.must(err)
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
	if s := w.wait(job); s.Processed != n || s.Failures != 0 {
		t.Errorf("%d processed, %d failures", s.Processed, s.Failures)
	} else {
		t.Logf("%d times again", s.Conflicts)
	}
	found := make([]player, n)
	w.must(w.client.GetMulti(ctx, keys, found))
	for i, got := range found {
		var of team
		w.must(w.client.Get(ctx, teamKey(got.Team), &of))
		if got.Name != of.Name {
			t.Errorf("%v has the name %q, and its team %q", keys[i], got.Name, of.Name)
		}
	}
}

// TestMerge merges duplicates: each adds its points to the team that it is a duplicate of, and is
// deleted, while others add points. No point is lost.
func TestMerge(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	type entry struct {
		Of     string
		Points int64
	}
	merge := mapper.Update("merge", func(ctx context.Context, e *mapper.Entity[entry], _ mapper.NoParams) error {
		var of team
		if err := e.Get(ctx, teamKey(e.Value.Of), &of); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		of.Points += e.Value.Points
		e.Put(teamKey(e.Value.Of), &of)
		e.Delete(e.Key)
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		slow := emulator.NewFaults(1,
			emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: 3 * time.Millisecond}})
		w, ctx := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Faults: slow}}, merge), t.Context()
		const n, teams = 300, 7
		want := int64(0)
		for i := range n {
			_, err := w.client.Put(ctx, datastore.IDKey("Entry", int64(i+1), nil),
				&entry{fmt.Sprint(i % teams), int64(i)})
			w.must(err)
			want += int64(i)
		}
		job, err := merge.Start(ctx, w.engine, mapper.Query{Kind: "Entry"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 40, ExpectedWorkers: 4})
		w.must(err)
		for range 30 {
			key := teamKey(fmt.Sprint(rng.IntN(teams)))
			_, err := w.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				var of team
				if err := tx.Get(key, &of); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
					return err
				}
				of.Points += 1_000_000
				_, err := tx.Put(key, &of)
				return err
			}, datastore.MaxAttempts(100))
			w.must(err)
			want += 1_000_000
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		}
		if s := w.wait(job); s.Processed != n || s.Failures != 0 {
			t.Errorf("%d processed, %d failures", s.Processed, s.Failures)
		} else {
			t.Logf("%d times again", s.Conflicts)
		}
		got := int64(0)
		var all []team
		_, err = w.client.GetAll(ctx, datastore.NewQuery("Team"), &all)
		w.must(err)
		for _, of := range all {
			got += of.Points
		}
		if got != want {
			t.Errorf("%d points, want %d", got, want)
		}
	})
}

// TestRekey moves entities to keys of another form, where two would get one key, of one page or of
// several, and some keys are taken: the first one moves, and the others are failures that name
// both.
func TestRekey(t *testing.T) {
	t.Parallel()
	to := func(name string) *datastore.Key { return datastore.NameKey("Patron", strings.ToLower(name), nil) }
	move := mapper.Update("rekey", func(_ context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
		e.Insert(to(e.Key.Name), &e.Value)
		e.Delete(e.Key)
		return nil
	})
	for _, size := range []int{3, 100} {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, move), t.Context()
			put := func(key *datastore.Key, points int64) {
				_, err := w.client.Put(ctx, key, &team{Points: points})
				w.must(err)
			}
			names := []string{"ANN", "Ann", "ann", "Bob", "cyd", "CYD", "dan"}
			for i, name := range names {
				put(datastore.NameKey("Guest", name, nil), int64(i))
			}
			put(to("dan"), 100)
			job, err := move.Start(ctx, w.engine, mapper.Query{Kind: "Guest"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: size, ExpectedWorkers: 1, FailureLimit: -1})
			w.must(err)
			s, err := job.Wait(ctx)
			w.must(err)
			failures, _, err := job.FailuresPage(ctx, "")
			w.must(err)
			if s.Processed != 3 || len(failures) != 4 {
				t.Errorf("pages of %d: %d processed, %d failures", size, s.Processed, len(failures))
			}
			for _, f := range failures {
				if !strings.Contains(f.Error, f.Key.String()) || !strings.Contains(f.Error, to(f.Key.Name).String()) {
					t.Errorf("the failure of %v does not name both: %s", f.Key, f.Error)
				}
			}
			for name, points := range map[string]int64{"ann": 0, "bob": 3, "cyd": 5, "dan": 100} {
				var got team
				if err := w.client.Get(ctx, to(name), &got); err != nil || got.Points != points {
					t.Errorf("%s has %d, %v, want %d", name, got.Points, err, points)
				}
			}
			for _, name := range []string{"Ann", "ann", "cyd", "dan"} {
				if err := w.client.Get(ctx, datastore.NameKey("Guest", name, nil), new(team)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestReadsInOrder has each entity take what the one before it has, of one page or of several: as
// if they had run one after the other.
func TestReadsInOrder(t *testing.T) {
	t.Parallel()
	key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
	sum := mapper.Update("sum", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
		if e.Key.ID == 1 {
			return nil
		}
		var before team
		if err := e.Get(ctx, key(e.Key.ID-1), &before); err != nil {
			return err
		}
		e.Value.Points += before.Points
		return nil
	})
	for _, size := range []int{1, 7, 100} {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, sum), t.Context()
			const n = 60
			for i := range int64(n) {
				_, err := w.client.Put(ctx, key(i+1), &team{Points: 1})
				w.must(err)
			}
			var once sync.Once
			job, err := sum.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, &mapper.StartOptions{
				PageSize: size, ExpectedWorkers: 1, Splitting: mapper.Splitting{First: 1, FanOut: 1},
			})
			w.must(err)
			once.Do(func() { w.wait(job) })
			for i := range int64(n) {
				var got team
				w.must(w.client.Get(ctx, key(i+1), &got))
				if got.Points != i+1 {
					t.Fatalf("pages of %d: %v has %d, want %d", size, key(i+1), got.Points, i+1)
				}
			}
		})
	}
}

// TestGet checks what Get says of what is not there, of itself, of bad keys and of bad
// destinations.
func TestGet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(map[string]error)
		m := mapper.Update("get", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			var one team
			asked["missing"] = e.Get(ctx, teamKey("none"), &one)
			some := make([]*team, 2)
			asked["several"] = e.GetMulti(ctx, []*datastore.Key{teamKey("here"), teamKey("none")}, some)
			if some[0] == nil || some[0].Points != 3 || some[1] != nil && some[1].Points != 0 {
				t.Errorf("got %v", some)
			}
			asked["incomplete"] = e.Get(ctx, datastore.IncompleteKey("Team", nil), &one)
			asked["nil"] = e.Get(ctx, nil, &one)
			asked["no pointer"] = e.Get(ctx, teamKey("here"), one)
			asked["length"] = e.GetMulti(ctx, []*datastore.Key{teamKey("here")}, make([]team, 2))
			asked["none"] = e.GetMulti(ctx, nil, []team{})
			var list datastore.PropertyList
			asked["list"] = e.Get(ctx, teamKey("here"), &list)
			if len(list) != 2 {
				t.Errorf("the list is %v", list)
			}
			var wrong struct{ Points string }
			asked["type"] = e.Get(ctx, teamKey("here"), &wrong)
			return nil
		})
		w, ctx := newWorld(t, setting{}, m), t.Context()
		_, err := w.client.Put(ctx, teamKey("here"), &team{Points: 3})
		w.must(err)
		_, err = w.client.Put(ctx, datastore.NameKey("One", "x", nil), &team{})
		w.must(err)
		job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "One"}, mapper.NoParams{}, nil)
		w.must(err)
		w.wait(job)
		var each datastore.MultiError
		if !errors.Is(asked["missing"], datastore.ErrNoSuchEntity) || !errors.As(asked["several"], &each) ||
			each[0] != nil || !errors.Is(each[1], datastore.ErrNoSuchEntity) {
			t.Errorf("missing: %v, several: %v", asked["missing"], asked["several"])
		}
		for what, want := range map[string]string{"incomplete": "incomplete", "nil": "key", "no pointer": "pointer",
			"length": "slice of 1", "type": "Points"} {
			if err := asked[what]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if asked["none"] != nil || asked["list"] != nil {
			t.Errorf("none: %v, list: %v", asked["none"], asked["list"])
		}
	})
}
