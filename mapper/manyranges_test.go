package mapper_test

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// manyRanges returns a job that has so many ranges, a tenth of which are open, and what counts its
// operations. Its tasks are not run.
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
	bridge.Seed(engine, 1) // its incarnation decides which records are the sample
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

// TestStatusOfManyRanges asks how a job stands that has very many ranges: at most ten calls answer
// that, as for any other job.
func TestStatusOfManyRanges(t *testing.T) {
	testflag.Sequential(t)
	n := testflag.Size(t, 5000, 20_000, 200_000)
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

// BenchmarkStatusOfManyRanges measures the status of a job that has 200,000 ranges, and of one that
// has 200.
func BenchmarkStatusOfManyRanges(b *testing.B) {
	for name, n := range map[string]int{"200": 200, "200,000": 200_000} {
		b.Run(name, func(b *testing.B) {
			job, _ := manyRanges(b, n)
			// the embedded Datastore builds an index when it is first used
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
