package mapper_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

var writeOld = flag.String("old", "", "have TestOldRecords write testdata/old/`NAME`, with the records of this build, for all later ones to read")

// aged is the mapper of the records on file. Whoever changes it makes them unreadable.
var aged = mapper.Update("aged", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	if strings.HasSuffix(a.Key.Name, "77") && a.Value.Owner != "" && p.Amount == 5 {
		return mapper.Permanent(fmt.Errorf("%s is broken", a.Key.Name))
	}
	return nil
})

// A relic is a Datastore with the records of jobs, and an engine for them.
type relic struct {
	*testing.T
	client *datastore.Client
	raw    datastorepb.DatastoreClient
	engine *mapper.Engine
	gate   func(*http.Request) bool // whether a delivery is answered
}

func newRelic(t *testing.T) *relic {
	t.Helper()
	r := &relic{T: t, gate: func(*http.Request) bool { return true }}
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if !r.gate(req) {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(rw, req)
	}))})
	var err error
	if r.client, err = e.Datastore(t.Context(), "test", mapper.WithVersions()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r.raw = datastorepb.NewDatastoreClient(conn)
	taskClient, err := e.CloudTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{Name: queueName, RateLimits: few(2).RateLimits}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, queueName, target, &tasks.Options{Unverified: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.engine, err = mapper.New(r.client, queue, &mapper.Options{Mappers: mapper.Set(aged), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}); err != nil {
		t.Fatal(err)
	}
	handler = r.engine.Handler()
	return r
}

// kinds are the kinds of the records on file, and that of the entities.
var kinds = []string{mapper.JobKind, mapper.RangeKind, "ScattermapDraft", "ScattermapSchedule", "Account"}

// entities returns all entities of a kind.
func (r *relic) entities(kind string) (all []*datastorepb.Entity) {
	r.Helper()
	resp, err := r.raw.RunQuery(r.Context(), &datastorepb.RunQueryRequest{ProjectId: "test", QueryType: &datastorepb.RunQueryRequest_Query{Query: &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}}}})
	if err != nil {
		r.Fatal(err)
	}
	if n := len(resp.GetBatch().GetEntityResults()); n >= 300 {
		r.Fatalf("a batch has %d %s, and there may be more", n, kind)
	}
	for _, e := range resp.GetBatch().GetEntityResults() {
		all = append(all, e.Entity)
	}
	return all
}

// write writes what there is to a folder: a job that is paused in the middle, with failures; one that is being added up at its end; and a schedule whose
// run that is.
func (r *relic) write(folder string) {
	r.Helper()
	must := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	accounts := make([]account, 200)
	for i := range accounts {
		accounts[i].Owner = fmt.Sprint("owner ", i)
	}
	_, err := r.client.PutMulti(r.Context(), names(len(accounts)), accounts)
	must(err)
	mapper.SetPortion(r.engine, 1, time.Nanosecond) // a task keeps a draft, and leaves the rest to another one
	var ends atomic.Int64
	r.gate = func(req *http.Request) bool { return !strings.HasSuffix(req.URL.Path, "/finalize") || ends.Add(1) == 1 }
	s := mapper.NewSchedule("nightly", aged, mapper.QueueTick)
	_, err = s.Tick(r.Context(), r.engine, time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), mapper.Query{Kind: "Account"}, credit{3}, &mapper.StartOptions{PageSize: 10})
	must(err)
	for len(r.entities("ScattermapDraft")) == 0 {
		time.Sleep(time.Millisecond)
	}
	job, err := aged.Start(r.Context(), r.engine, mapper.Query{Kind: "Account"}, credit{5}, &mapper.StartOptions{ID: "paused", PageSize: 10, FailureLimit: -1, Beside: true})
	must(err)
	for {
		s, err := job.Status(r.Context())
		must(err)
		if s.Processed > 80 && s.Failures > 0 {
			break
		}
	}
	must(job.Pause(r.Context()))
	time.Sleep(time.Second)
	must(os.MkdirAll(folder, 0o755))
	for _, kind := range kinds {
		var text bytes.Buffer
		for _, e := range r.entities(kind) {
			line, err := protojson.Marshal(e)
			must(err)
			fmt.Fprintf(&text, "%s\n", line)
		}
		must(os.WriteFile(filepath.Join(folder, kind+".jsonl"), text.Bytes(), 0o644))
	}
}

// load writes the entities of a folder into the database.
func (r *relic) load(folder string) (found []string) {
	r.Helper()
	for _, kind := range kinds {
		text, err := os.ReadFile(filepath.Join(folder, kind+".jsonl"))
		if err != nil {
			r.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			e := new(datastorepb.Entity)
			if err := protojson.Unmarshal(line, e); err != nil {
				r.Fatal(err)
			}
			if _, err := r.raw.Commit(r.Context(), &datastorepb.CommitRequest{ProjectId: "test", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*datastorepb.Mutation{{Operation: &datastorepb.Mutation_Upsert{Upsert: e}}}}); err != nil {
				r.Fatal(err)
			}
			found = append(found, kind)
		}
	}
	return slices.Compact(found)
}

// TestOldRecords has this build go on with the records that older ones have left: a job that was paused in the middle, and has failures; one that was
// being added up; and a schedule. Whoever changes what is stored adds a folder, by -old NAME, and leaves the others.
func TestOldRecords(t *testing.T) {
	if *writeOld != "" {
		newRelic(t).write(filepath.Join("testdata", "old", *writeOld))
	}
	folders, err := filepath.Glob("testdata/old/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no old records: %v", err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			r := newRelic(t)
			if found := r.load(folder); !slices.Equal(found, kinds) {
				t.Fatalf("the folder has %q, want some of each of %q", found, kinds)
			}
			jobs, _, err := r.engine.Jobs(t.Context(), nil, "")
			if err != nil || len(jobs) != 2 || jobs[0].ID != "paused" || jobs[0].State != mapper.Paused || jobs[1].State != mapper.Running {
				t.Fatalf("jobs %+v, %v", jobs, err)
			}
			scheduled, paused := r.engine.Job(jobs[1].ID), r.engine.Job("paused")
			if acts, err := paused.History(t.Context()); err != nil || len(acts) != 2 || acts[1].What != "paused" {
				t.Errorf("history %+v, %v", acts, err)
			}
			if err := scheduled.Resume(t.Context()); err != nil { // its tasks are in no queue
				t.Fatal(err)
			}
			s, err := scheduled.Wait(t.Context())
			if err != nil || s.State != mapper.Succeeded || s.Processed != 200 || s.Counters["credited"] != 200 {
				t.Errorf("the job of the schedule: %+v, %v", s, err)
			}
			ticked, err := mapper.NewSchedule("nightly", aged, mapper.QueueTick).Tick(t.Context(), r.engine, time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), mapper.Query{Kind: "Account"}, credit{3}, &mapper.StartOptions{PageSize: 10})
			if err != nil || ticked.Job == nil || ticked.Job.ID != scheduled.ID {
				t.Errorf("the tick of before once more: %+v, %v", ticked, err)
			}
			if err := paused.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err = paused.Wait(t.Context()); err != nil || s.State != mapper.SucceededWithFailures || s.Processed != 198 || s.Failures != 2 {
				t.Errorf("the job that was paused: %+v, %v", s, err)
			}
			for _, job := range []*mapper.Job{scheduled, paused} {
				if proof, err := job.Verify(t.Context()); err != nil || len(proof.Problems) > 0 {
					t.Errorf("%s: %+v, %v", job.ID, proof, err)
				}
			}
			wrong := 0
			for _, key := range names(200) {
				var a account
				if err := r.client.Get(t.Context(), key, &a); err != nil {
					t.Fatal(err)
				}
				want := int64(8)
				if strings.HasSuffix(key.Name, "77") {
					want = 3 // a failure
				}
				if a.Balance != want {
					wrong++
				}
			}
			if wrong > 0 {
				t.Errorf("%d accounts are wrong", wrong)
			}
		})
	}
}
