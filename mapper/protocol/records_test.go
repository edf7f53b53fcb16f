package protocol_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A rangeRecord is the stored record of a range. This test decodes it itself, without the package
// under test.
type rangeRecord struct {
	Job      string             `datastore:"job"`
	State    string             `datastore:"state"`
	Open     *string            `datastore:"open"`
	Start    *keyspace.Position `datastore:"start"`
	End      *keyspace.Position `datastore:"end"`
	Alone    bool               `datastore:"alone"`
	Depth    int64              `datastore:"depth"`
	Refusals int64              `datastore:"refusals"`
	Solo     bool               `datastore:"solo"`
}

// records returns the records of all ranges, by the ID of their job.
func records(t testing.TB, client *datastore.Client) map[string][]rangeRecord {
	t.Helper()
	var all []rangeRecord
	_, err := client.GetAll(context.Background(), datastore.NewQuery(record.RangeKind), &all)
	if mismatch := new(datastore.ErrFieldMismatch); err != nil && !errors.As(err, &mismatch) {
		t.Fatal(err) // the records have properties that rangeRecord lacks
	}
	jobs := make(map[string][]rangeRecord)
	for _, r := range all {
		if r.Job == "" {
			continue // this record only prevents the late commit of a start
		}
		jobs[r.Job] = append(jobs[r.Job], r)
	}
	return jobs
}

// checkInvariants checks what must always hold for the records; every test calls it at its end. The
// done and the pending ranges of a job must together cover its key space without gaps and overlaps.
// Exactly the pending ranges must be open. A job that has succeeded must have none.
func checkInvariants(t testing.TB, client *datastore.Client) {
	t.Helper()
	for job, ranges := range records(t, client) {
		var j struct {
			State   string `datastore:"state"`
			Cleaned bool   `datastore:"cleaned"`
		}
		err := client.Get(context.Background(), datastore.NameKey(record.JobKind, job, nil), &j)
		if mismatch := new(datastore.ErrFieldMismatch); err != nil && !errors.As(err, &mismatch) {
			t.Errorf("job %s: %v", job, err)
		}
		if !j.Cleaned { // otherwise some of its ranges are deleted
			checkRecords(t, job, j.State, ranges)
		}
	}
}

// checkRecords checks the ranges of a job, according to the job's state.
func checkRecords(t testing.TB, job, state string, ranges []rangeRecord) {
	t.Helper()
	succeeded := state == string(mapper.StateSucceeded) || state == string(mapper.StateSucceededWithFailures)
	var tiles []rangeRecord
	for _, r := range ranges {
		if succeeded && r.State != "done" {
			t.Errorf("job %s: it has %s, and a range is %s", job, state, r.State)
		}
		if open := r.Open != nil && *r.Open == r.Job; open != (r.State == "pending") {
			t.Errorf("job %s: a range is %s, and open: %v", job, r.State, open)
		}
		if !r.Alone {
			tiles = append(tiles, r)
		}
	}
	checkTiles(t, job, tiles)
}

func checkTiles(t testing.TB, job string, tiles []rangeRecord) {
	t.Helper()
	slices.SortFunc(tiles, func(a, b rangeRecord) int {
		switch {
		case a.Start == nil || b.Start == nil:
			return boolToInt(b.Start == nil) - boolToInt(a.Start == nil)
		}
		return keyspace.Compare(a.Start, b.Start)
	})
	if len(tiles) == 0 {
		t.Errorf("job %s: it has no ranges", job)
		return
	}
	if tiles[0].Start != nil || tiles[len(tiles)-1].End != nil {
		t.Errorf("job %s: the ranges do not reach the ends of the key space", job)
	}
	for i := 1; i < len(tiles); i++ {
		if tiles[i-1].End == nil || tiles[i].Start == nil || keyspace.Compare(tiles[i-1].End, tiles[i].Start) != 0 {
			t.Errorf("job %s: the range [%v, %v) is followed by [%v, %v)", job, tiles[i-1].Start, tiles[i-1].End,
				tiles[i].Start, tiles[i].End)
		}
	}
}

// drafts reports whether a request stores a draft: the sums of a part of a job's records.
func drafts(req any) bool {
	commit, ok := req.(*datastorepb.CommitRequest)
	return ok && slices.ContainsFunc(commit.Mutations, func(m *datastorepb.Mutation) bool {
		path := m.GetUpsert().GetKey().GetPath()
		return len(path) == 1 && path[0].Kind == record.DraftKind
	})
}

// written returns the names of the records of jobs and ranges that a commit writes.
func written(req any) (names []string) {
	commit, ok := req.(*datastorepb.CommitRequest)
	if !ok {
		return nil
	}
	for _, m := range commit.Mutations {
		for _, e := range []*datastorepb.Entity{m.GetInsert(), m.GetUpdate(), m.GetUpsert()} {
			if path := e.GetKey().GetPath(); len(path) == 1 &&
				(path[0].Kind == record.RangeKind || path[0].Kind == record.JobKind) {
				names = append(names, path[0].Kind+" "+path[0].GetName())
			}
		}
	}
	return names
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestRecordsStayCold checks that each record is written by few tasks, so that tasks do not
// conflict. It also checks that the records of a finished job have no indexed property.
func TestRecordsStayCold(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writes := new(writeCounter)
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: writes.intercept}}, addCredit)
		w.putAccounts(names(5000))
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 50}))
		writes.wantMost(t, 4)
		// A query for a property finds only records in which the property is indexed.
		for _, property := range []string{"open", "failed", "expires", "job", "id", "state", "start", "end", "samples",
			"done", "counters", "created", "error", "not_before"} {
			n, err := w.client.Count(t.Context(), datastore.NewQuery(record.RangeKind).Order(property))
			if err != nil || n > 0 {
				t.Errorf("%d records of the job are in the index of %s; %v", n, property, err)
			}
		}
	})
}

// TestRecordsStayColdAmongMany does the same as TestRecordsStayCold, for a job with hundreds of
// workers, faults and failures.
func TestRecordsStayColdAmongMany(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	workers := testflag.Size(t, 0, 300, 1000)
	n := 60 * workers
	synctest.Test(t, func(t *testing.T) {
		writes := new(writeCounter)
		injected := faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: 50 * time.Millisecond,
				Max: 500 * time.Millisecond}},
			faults.Rule{Kind: faults.LoseAnswer, Share: 0.01},
			faults.Rule{Kind: faults.AbortCommit, Share: 0.05},
			faults.Rule{Kind: faults.DeliverTwice, Share: 0.05, Latency: faults.Uniform{Max: time.Second}},
			faults.Rule{Kind: faults.CrashReceiver, Share: 0.02},
		)
		injected.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: writes.intercept, Faults: injected},
			queue: few(int32(workers))}, failing77)
		w.putAccounts(names(n))
		injected.Resume()
		s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 20, ExpectedWorkers: workers, FailureLimit: -1})
		injected.Pause()
		if s.State != mapper.StateSucceededWithFailures || s.Failures != int64(n/100) ||
			w.most.Load() < int64(workers*9/10) {
			t.Errorf("status %+v, %d at once", s, w.most.Load())
		}
		if err := w.engine.Job("j").Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if s, err := w.engine.Job("j").Wait(t.Context()); err != nil || s.Failures != int64(n/100) {
			t.Errorf("status %+v, %v", s, err)
		}
		t.Logf("%d tasks, %d at once, in %v; most writes of a record: %d", s.Tasks, w.most.Load(),
			s.Ended.Sub(s.Created), writes.wantMost(t, 20))
	})
}

// A writeCounter counts how many commits write each record.
type writeCounter struct {
	mu     sync.Mutex
	writes map[string]int
}

func (c *writeCounter) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, name := range written(req) {
			if c.writes == nil {
				c.writes = make(map[string]int)
			}
			c.writes[name]++
		}
	}
	return resp, err
}

// wantMost checks that no record was written more often than limit. It returns the highest number.
func (c *writeCounter) wantMost(t *testing.T, limit int) (most int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.writes)) {
		if most = max(most, c.writes[name]); c.writes[name] > limit {
			t.Errorf("%s was written %d times", name, c.writes[name])
		}
	}
	return most
}
