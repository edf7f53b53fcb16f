package protocol_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/prebuilt"
)

// stageKinds are the kinds of entities of the jobs that writeStages leaves unfinished. Each kind
// has 40 entities in the default namespace. Several and Beside also have 40 in another namespace.
var stageKinds = []string{"Batched", "Several", "Beside", "Erased"}

// oldKey is the key that signs the certificates of erasures in testdata.
var oldKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

func (r *relic) erase() mapper.AnyMapper {
	return prebuilt.Erase(prebuilt.EraseOptions{Key: oldKey,
		Keep: func(_ context.Context, _ string, certificate []byte) error {
			r.kept.Store(&certificate)
			return nil
		}})
}

// relicCommits is an interceptor that refuses some commits of a relic's database.
type relicCommits struct {
	refuse atomic.Pointer[func(*datastorepb.CommitRequest) bool]
}

func (c *relicCommits) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	commit, ok := req.(*datastorepb.CommitRequest)
	if refuse := c.refuse.Load(); ok && refuse != nil && (*refuse)(commit) {
		return nil, status.Error(codes.Internal, "the database does not answer")
	}
	return handler(ctx, req)
}

// writes reports whether a commit writes an entity of the given kind whose name contains a text.
func writes(c *datastorepb.CommitRequest, kind, text string) bool {
	for _, key := range keysOfCommit(c) {
		if path := key.Path[0]; path.Kind == kind && strings.Contains(path.GetName(), text) {
			return true
		}
	}
	return false
}

// writeStages leaves these unfinished jobs in the database:
//
//   - an undo that is paused, and has restored a part of a page in a batch
//   - a job over several kinds and namespaces, paused in its middle
//   - an erasure that has deleted its entities, and was about to delete its records
func (r *relic) writeStages() {
	r.Helper()
	job, err := aged.Start(r.Context(), r.engine, mapper.Query{Kind: "Batched"}, credit{1000},
		&mapper.StartOptions{ID: "batched", PageSize: 10})
	r.must(err)
	_, err = job.Wait(r.Context())
	r.must(err)
	var batches atomic.Int64
	refuse := func(c *datastorepb.CommitRequest) bool {
		return writes(c, "Batched", "") && (!writes(c, record.BatchKind, "") || batches.Add(1) > 1)
	}
	r.commit.refuse.Store(&refuse)
	bridge.UndoMost(r.engine, 300)
	undo, err := job.Undo(r.Context(), &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1})
	r.must(err)
	for batches.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	r.must(undo.Pause(r.Context()))
	time.Sleep(time.Second)
	r.commit.refuse.Store(nil)

	several, err := aged.Start(r.Context(), r.engine,
		mapper.Query{Kinds: []string{"Several", "Beside"}, Namespaces: []string{"", "second"}}, credit{1000},
		&mapper.StartOptions{ID: "several", PageSize: 3, ExpectedWorkers: 1, Rate: mapper.Rate{EntitiesPerSecond: 20}})
	r.must(err)
	for s := new(mapper.Status); s.Processed < 50; {
		s, err = several.Status(r.Context())
		r.must(err)
	}
	r.must(several.Pause(r.Context()))

	var closed atomic.Bool
	refuse = func(c *datastorepb.CommitRequest) bool {
		if closed.Load() {
			return writes(c, record.RangeKind, ".erased.") || writes(c, record.JobKind, "erased")
		}
		for _, m := range c.Mutations {
			if e := m.GetUpdate(); e != nil && e.Key.Path[0].GetName() == "erased" &&
				len(e.Properties["closing"].GetBlobValue()) > 0 {
				closed.Store(true)
			}
		}
		return false
	}
	r.commit.refuse.Store(&refuse)
	r.putOldIn("acme", "Erased")
	_, err = r.engine.StartByName(r.Context(), "erase", mapper.Query{Namespace: "acme"}, []byte(`{"words": ["alice"]}`),
		&mapper.StartOptions{ID: "erased", PageSize: 10})
	r.must(err)
	for !closed.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Second)
}

// continueBatched continues an undo that has restored a part of a page, and checks the result.
func continueBatched(t *testing.T, r *relic) {
	t.Helper()
	if n := len(r.entities(record.BatchKind)); n == 0 {
		t.Error("there is no batch")
	}
	undo := r.engine.Job("undo-batched")
	r.must(undo.Resume(t.Context()))
	s, err := undo.Wait(t.Context())
	if err != nil || s.State != mapper.StateSucceeded || s.Counters["restored"] != 40 || s.Counters["left"] != 0 {
		t.Errorf("an undo that has restored a part of a page: %+v, %v", s, err)
	}
	r.isAsBefore("Batched")
}

// continueSeveral continues a job over several kinds and namespaces, and checks the result.
func continueSeveral(t *testing.T, r *relic) {
	t.Helper()
	job := r.engine.Job("several")
	s, err := job.Status(t.Context())
	if err != nil || s.State != mapper.StatePaused || s.Processed == 0 || s.Processed >= 160 ||
		len(s.Query.Kinds) != 2 || len(s.Query.Namespaces) != 2 {
		t.Errorf("a job over several kinds: %+v, %v", s, err)
	}
	r.must(job.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}))
	r.must(job.Resume(t.Context()))
	if s, err = job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 160 ||
		r.balances("Several", 1000) != 80 || r.balances("Beside", 1000) != 80 {
		t.Errorf("a job over several kinds: %+v, %v", s, err)
	}
	if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
		t.Errorf("a job over several kinds: %+v, %v", proof, err)
	}
}

// continueErased continues an erasure that has deleted its entities, and checks the result.
func continueErased(t *testing.T, r *relic) {
	t.Helper()
	job := r.engine.Job("erased")
	r.must(job.Resume(t.Context())) // no queue has the job's tasks
	for {
		s, err := job.Status(t.Context())
		r.must(err)
		if s.State == mapper.StateSucceeded {
			break
		}
		if s.State != mapper.StateRunning {
			t.Fatalf("an erasure: %+v", s)
		}
		r.runSweeps()
		time.Sleep(10 * time.Millisecond)
	}
	kept := r.kept.Load()
	if kept == nil {
		t.Fatal("the erasure has kept no certificate")
	}
	c, err := prebuilt.ReadCertificate(*kept, oldKey.Public().(ed25519.PublicKey))
	if err != nil || c.Deleted != 40 || c.Namespace != "acme" || len(c.Coverage.Problems) > 0 {
		t.Errorf("the certificate: %+v, %v", c, err)
	}
	if n := len(r.entities("Erased")); n != 40 || r.count(".erased.") > 0 {
		t.Errorf("%d entities of other namespaces, want 40; %d records of ranges", n, r.count(".erased."))
	}
}

// runSweeps runs the waiting sweeps now, and does not wait until they are due.
func (r *relic) runSweeps() {
	r.Helper()
	for task, err := range r.tasks.ListTasks(r.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName}).All() {
		r.must(err)
		if strings.HasSuffix(task.GetHttpRequest().GetUrl(), "/sweep") {
			// An error means that the task has run in the meantime.
			_, _ = r.tasks.RunTask(r.Context(), &cloudtaskspb.RunTaskRequest{Name: task.Name})
		}
	}
}
