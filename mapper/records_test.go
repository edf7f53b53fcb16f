package mapper_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// A record is a range as its record in the database has it, read without the
// package under test.
type record struct {
	Job      string         `datastore:"job"`
	State    string         `datastore:"state"`
	Open     *string        `datastore:"open"`
	Start    *datastore.Key `datastore:"start"`
	End      *datastore.Key `datastore:"end"`
	Alone    bool           `datastore:"alone"`
	Depth    int64          `datastore:"depth"`
	Refusals int64          `datastore:"refusals"`
}

// records returns all ranges of all jobs, by job.
func records(t testing.TB, client *datastore.Client) map[string][]record {
	t.Helper()
	var all []record
	_, err := client.GetAll(context.Background(), datastore.NewQuery(mapper.RangeKind), &all)
	if mismatch := new(datastore.ErrFieldMismatch); err != nil && !errors.As(err, &mismatch) {
		t.Fatal(err) // the records have more properties than this test looks at
	}
	jobs := make(map[string][]record)
	for _, r := range all {
		jobs[r.Job] = append(jobs[r.Job], r)
	}
	return jobs
}

// checkInvariants checks what has to hold of the records at any time: the done
// and the pending ranges of a job tile its key space, exactly the pending ones are
// open, and a job that has succeeded has none of them. It runs at the end of every
// test.
func checkInvariants(t testing.TB, client *datastore.Client) {
	t.Helper()
	for job, ranges := range records(t, client) {
		var j struct {
			State string `datastore:"state"`
		}
		err := client.Get(context.Background(), datastore.NameKey(mapper.JobKind, job, nil), &j)
		if mismatch := new(datastore.ErrFieldMismatch); err != nil && !errors.As(err, &mismatch) {
			t.Errorf("job %s: %v", job, err)
		}
		checkRecords(t, job, j.State, ranges)
	}
}

// checkRecords checks the ranges of one job in a state.
func checkRecords(t testing.TB, job, state string, ranges []record) {
	t.Helper()
	succeeded := state == string(mapper.Succeeded) || state == string(mapper.SucceededWithFailures)
	var tiles []record
	for _, r := range ranges {
		if succeeded && r.State != "done" {
			t.Errorf("job %s: it has %s, and a range is %s", job, state, r.State)
		}
		if open := r.Open != nil && *r.Open == job; open != (r.State == "pending") {
			t.Errorf("job %s: a range is %s, and open: %v", job, r.State, open)
		}
		if !r.Alone {
			tiles = append(tiles, r)
		}
	}
	checkTiles(t, job, tiles)
}

func checkTiles(t testing.TB, job string, tiles []record) {
	t.Helper()
	slices.SortFunc(tiles, func(a, b record) int {
		switch {
		case a.Start == nil || b.Start == nil:
			return boolToInt(b.Start == nil) - boolToInt(a.Start == nil)
		}
		return mapper.CompareKeys(a.Start, b.Start)
	})
	if tiles[0].Start != nil || tiles[len(tiles)-1].End != nil {
		t.Errorf("job %s: the ranges do not reach the ends of the key space", job)
	}
	for i := 1; i < len(tiles); i++ {
		if tiles[i-1].End == nil || !tiles[i-1].End.Equal(tiles[i].Start) {
			t.Errorf("job %s: the range [%v, %v) is followed by [%v, %v)", job, tiles[i-1].Start, tiles[i-1].End, tiles[i].Start, tiles[i].End)
		}
	}
}

// written returns the records of ours that a commit writes.
func written(req any) (names []string) {
	commit, ok := req.(*datastorepb.CommitRequest)
	if !ok {
		return nil
	}
	for _, m := range commit.Mutations {
		for _, e := range []*datastorepb.Entity{m.GetInsert(), m.GetUpdate(), m.GetUpsert()} {
			if path := e.GetKey().GetPath(); len(path) == 1 && (path[0].Kind == mapper.RangeKind || path[0].Kind == mapper.JobKind) {
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

// TestRecordsStayCold checks that no record is written by more than a few tasks,
// and that a finished job leaves nothing indexed.
func TestRecordsStayCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		writes := make(map[string]int)
		count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for _, name := range written(req) {
					writes[name]++
				}
			}
			return resp, err
		}
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: count}}, addCredit)
		w.putAccounts(names(5000))
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 50}))
		for _, name := range slices.Sorted(maps.Keys(writes)) {
			if writes[name] > 4 {
				t.Errorf("%s was written %d times", name, writes[name])
			}
		}
		// A query over a property finds what is in its index.
		for _, property := range []string{"open", "job", "id", "state", "start", "end", "samples", "done", "counters", "created"} {
			n, err := w.client.Count(t.Context(), datastore.NewQuery(mapper.RangeKind).Order(property))
			if err != nil || n > 0 {
				t.Errorf("%d records of the job are in the index of %s; %v", n, property, err)
			}
		}
	})
}
