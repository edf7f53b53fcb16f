package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

var writeOld = flag.String("old", "",
	"have TestOldRecords write testdata/old/`NAME`, with the records of this build, for all later ones to read")

// aged is the mapper of the jobs in testdata. If it changes, their records can't be continued any
// more.
var aged = mapper.Update("aged", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	if strings.HasSuffix(a.Key.Name, "77") && a.Value.Owner != "" && p.Amount == 5 {
		return mapper.Permanent(fmt.Errorf("%s is broken", a.Key.Name))
	}
	return nil
})

// A relic is a database with the records of jobs from older builds, and an engine that continues
// them.
type relic struct {
	*testing.T
	client *datastore.Client
	raw    datastorepb.DatastoreClient
	tasks  *cloudtasks.Client
	engine *mapper.Engine
	gate   func(*http.Request) bool // reports whether a delivery is passed on to the engine
	commit relicCommits
	kept   atomic.Pointer[[]byte] // the certificate that an erasure has stored
}

func newRelic(t *testing.T) *relic {
	t.Helper()
	r := &relic{T: t, gate: func(*http.Request) bool { return true }}
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", Interceptor: r.commit.intercept,
		Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			if !r.gate(req) {
				rw.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			handler.ServeHTTP(rw, req)
		}))})
	var err error
	if r.client, err = e.DatastoreClient(t.Context(), "test", mapper.ClientOption()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r.raw = datastorepb.NewDatastoreClient(conn)
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	r.tasks = taskClient
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queueName, RateLimits: few(2).RateLimits}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, queueName, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.engine, err = mapper.NewEngine(r.client, queue,
		&mapper.EngineOptions{Mappers: []mapper.AnyMapper{aged, r.erase()},
			Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	bridge.Tick(r.engine, "nightly", weekly.Name())
	handler = r.engine.Handler()
	return r
}

// kinds are the kinds of the records in testdata, and of the entities. Folders of older builds lack
// some.
var kinds = slices.Concat([]string{record.JobKind, record.RangeKind, "ScattermapDraft", "ScattermapSchedule",
	"ScattermapSlot", record.BatchKind, "Account"},
	oldKinds)

// oldKinds are the kinds of the entities of the jobs that oldJobs continues.
var oldKinds = slices.Concat(undoKinds, settingKinds, stageKinds)

// entities returns all entities of a kind, with their versions.
func (r *relic) entities(kind string) (all []*datastorepb.EntityResult) {
	r.Helper()
	for _, namespace := range []string{"", "acme", "second"} {
		resp, err := r.raw.RunQuery(r.Context(), &datastorepb.RunQueryRequest{ProjectId: "test",
			PartitionId: &datastorepb.PartitionId{ProjectId: "test", NamespaceId: namespace},
			QueryType: &datastorepb.RunQueryRequest_Query{
				Query: &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}}}})
		if err != nil {
			r.Fatal(err)
		}
		if n := len(resp.GetBatch().GetEntityResults()); n >= 300 {
			r.Fatalf("a batch has %d %s, and there may be more", n, kind)
		}
		all = append(all, resp.GetBatch().GetEntityResults()...)
	}
	return all
}

// keep writes entities to a file.
func (r *relic) keep(file string, all []*datastorepb.EntityResult) {
	r.Helper()
	var text bytes.Buffer
	for _, e := range all {
		e.Cursor = nil
		line, err := protojson.Marshal(e)
		if err != nil {
			r.Fatal(err)
		}
		fmt.Fprintf(&text, "%s\n", line)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		r.Fatal(err)
	}
}

// undoKinds are the kinds of the entities of the jobs that writeUndo starts. Each kind has 40
// entities.
var undoKinds = []string{"Done", "Half", "Clean", "Held"}

// settingKinds are the kinds of the entities of the jobs that writeSettings starts. Each kind has
// 40 entities.
var settingKinds = []string{"Shared", "Dear", "Rehearsed", "Kept", "Ticked"}

// putOld puts the entities that exist before the jobs.
func (r *relic) putOld() {
	r.Helper()
	for _, kind := range oldKinds {
		r.putOldIn("", kind)
	}
	r.putOldIn("second", "Several")
	r.putOldIn("second", "Beside")
}

// putOldIn puts 40 entities of a kind into a namespace.
func (r *relic) putOldIn(namespace, kind string) {
	r.Helper()
	keys, all := make([]*datastore.Key, 40), make([]account, 40)
	for i := range keys {
		keys[i], all[i] = datastore.NameKey(kind, fmt.Sprintf("%02d", i), nil),
			account{Owner: "before", Balance: int64(i)}
		keys[i].Namespace = namespace
	}
	_, err := r.client.PutMulti(r.Context(), keys, all)
	r.must(err)
}

// writeUndo leaves jobs that are done, which can be undone or cleaned up, and a job whose undo was
// paused in the middle.
func (r *relic) writeUndo() {
	r.Helper()
	must := r.must
	jobs := make(map[string]*mapper.Job)
	for _, kind := range undoKinds[:3] {
		job, err := aged.Start(r.Context(), r.engine, mapper.Query{Kind: kind}, credit{1000},
			&mapper.StartOptions{ID: strings.ToLower(kind), PageSize: 5})
		must(err)
		_, err = job.Wait(r.Context())
		must(err)
		jobs[kind] = job
	}
	undo, err := jobs["Half"].Undo(r.Context(), &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1,
		Rate: mapper.Rate{EntitiesPerSecond: 3}})
	must(err)
	for {
		s, err := undo.Status(r.Context())
		must(err)
		if s.Counters["restored"] > 0 {
			break
		}
	}
	must(undo.Pause(r.Context()))
	time.Sleep(time.Second)
}

// dayOf returns a day whose ticks are in testdata.
func dayOf(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }

// weekly is a schedule with a waiting tick.
var weekly = mapper.NewSchedule("weekly", aged, mapper.OverlapQueue)

// writeSettings leaves jobs with these settings in their records:
//
//   - one over a share of the keys, paused in the middle, whose rate was set for a time
//   - one that its budget has paused
//   - a rehearsal
//   - one with a retention
//   - a run of a schedule that is paused in the middle, and for whose end a tick waits
func (r *relic) writeSettings() {
	r.Helper()
	start := func(kind string, o mapper.StartOptions) *mapper.Job {
		r.Helper()
		q := mapper.Query{Kind: kind}
		if kind == "Shared" {
			q.Filters = []mapper.Filter{mapper.Share(0, 1, 2)}
		}
		o.ID = strings.ToLower(kind)
		job, err := aged.Start(r.Context(), r.engine, q, credit{1000}, &o)
		r.must(err)
		return job
	}
	until := func(job *mapper.Job, is func(*mapper.Status) bool) {
		r.Helper()
		for {
			s, err := job.Status(r.Context())
			r.must(err)
			if is(s) {
				return
			}
		}
	}
	slowly := mapper.StartOptions{PageSize: 1, ExpectedWorkers: 1, Rate: mapper.Rate{EntitiesPerSecond: 3}}
	middle := func(s *mapper.Status) bool { return s.Processed > 2 }
	shared := start("Shared", slowly)
	until(shared, middle)
	r.must(shared.SetRateFor(r.Context(), mapper.Rate{EntitiesPerSecond: 2}, 100*365*24*time.Hour))
	r.must(shared.Pause(r.Context()))
	until(start("Dear", mapper.StartOptions{PageSize: 5, ExpectedWorkers: 1, Budget: mapper.Budget{Operations: 1100}}),
		func(s *mapper.Status) bool {
			return s.State == mapper.StatePaused
		})
	until(start("Rehearsed", mapper.StartOptions{PageSize: 5, DryRun: true}), func(s *mapper.Status) bool {
		return s.State.Ended()
	})
	until(start("Kept", mapper.StartOptions{PageSize: 5, Retain: 100 * 365 * 24 * time.Hour}),
		func(s *mapper.Status) bool {
			return s.State.Ended()
		})
	tick := func(day int) *mapper.Job {
		r.Helper()
		ticked, err := weekly.Tick(r.Context(), r.engine, dayOf(day), mapper.Query{Kind: "Ticked"}, credit{1000},
			&slowly)
		r.must(err)
		return ticked.Job
	}
	run := tick(18)
	until(run, middle)
	tick(25)
	r.must(run.Pause(r.Context()))
	time.Sleep(time.Second)
}

// writeHeld starts the clean-up of a job, and leaves a job that has a slot, the record that lets
// only one job run over a kind.
func (r *relic) writeHeld() {
	r.Helper()
	r.gate = func(*http.Request) bool { return false }
	r.must(r.engine.Job("clean").CleanUp(r.Context(), nil))
	_, err := aged.Start(r.Context(), r.engine, mapper.Query{Kind: "Held"}, credit{1000},
		&mapper.StartOptions{ID: "held", PageSize: 5})
	r.must(err)
}

func (r *relic) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// write runs jobs, and writes their records to a folder of testdata:
//
//   - a job that is paused in its middle and has failures
//   - a job whose records are being added up
//   - a schedule whose run is the second one
func (r *relic) write(folder string) {
	r.Helper()
	must := r.must
	accounts := make([]account, 200)
	for i := range accounts {
		accounts[i].Owner = fmt.Sprint("owner ", i)
	}
	_, err := r.client.PutMulti(r.Context(), names(len(accounts)), accounts)
	must(err)
	r.putOld()
	var before []*datastorepb.EntityResult
	for _, kind := range oldKinds {
		before = append(before, r.entities(kind)...)
	}
	r.writeUndo()
	r.writeSettings()
	r.writeStages()
	// so that a task stores a draft of the sums, and leaves the rest to another task
	bridge.Portion(r.engine, 1, time.Nanosecond)
	var ends atomic.Int64
	r.gate = func(req *http.Request) bool { return !strings.HasSuffix(req.URL.Path, "/finalize") || ends.Add(1) == 1 }
	s := mapper.NewSchedule("nightly", aged, mapper.OverlapQueue)
	_, err = s.Tick(r.Context(), r.engine, time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), mapper.Query{Kind: "Account"},
		credit{3}, &mapper.StartOptions{PageSize: 10})
	must(err)
	for len(r.entities("ScattermapDraft")) == 0 {
		time.Sleep(time.Millisecond)
	}
	job, err := aged.Start(r.Context(), r.engine, mapper.Query{Kind: "Account"}, credit{5},
		&mapper.StartOptions{ID: "paused", PageSize: 10, FailureLimit: -1, AllowOverlap: true})
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
	r.writeHeld()
	must(os.MkdirAll(folder, 0o755))
	r.keep(filepath.Join(folder, "Before.jsonl"), before)
	for _, kind := range kinds {
		r.keep(filepath.Join(folder, kind+".jsonl"), r.entities(kind))
	}
}

// put writes entities in one commit.
func (r *relic) put(all ...*datastorepb.Entity) {
	r.Helper()
	c := &datastorepb.CommitRequest{
		ProjectId: "test", Mode: datastorepb.CommitRequest_TRANSACTIONAL,
		TransactionSelector: &datastorepb.CommitRequest_SingleUseTransaction{
			SingleUseTransaction: new(datastorepb.TransactionOptions)},
	}
	for _, e := range all {
		c.Mutations = append(c.Mutations, &datastorepb.Mutation{Operation: &datastorepb.Mutation_Upsert{Upsert: e}})
	}
	if _, err := r.raw.Commit(r.Context(), c); err != nil {
		r.Fatal(err)
	}
}

// parse reads the entities in a file. In the oldest folder the lines have no versions.
func (r *relic) parse(file string) (all []*datastorepb.EntityResult) {
	r.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		r.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		e := new(datastorepb.EntityResult)
		if protojson.Unmarshal(line, e) != nil {
			e = &datastorepb.EntityResult{Entity: new(datastorepb.Entity)}
			if err := protojson.Unmarshal(line, e.Entity); err != nil {
				r.Fatal(err)
			}
		}
		all = append(all, e)
	}
	return all
}

// load writes the entities of a folder into the database, first the ones from before the jobs. It
// writes entities that had the same version in one commit, so that they have the same version
// again.
func (r *relic) load(folder string) (found []string) {
	r.Helper()
	for _, e := range r.parse(filepath.Join(folder, "Before.jsonl")) {
		r.put(e.Entity)
	}
	commits := make(map[int64][]*datastorepb.Entity)
	for _, kind := range kinds {
		for _, e := range r.parse(filepath.Join(folder, kind+".jsonl")) {
			if e.Version == 0 {
				r.put(e.Entity)
			} else {
				commits[e.Version] = append(commits[e.Version], e.Entity)
			}
			found = append(found, kind)
		}
	}
	for _, version := range slices.Sorted(maps.Keys(commits)) {
		r.put(commits[version]...)
	}
	return slices.Compact(found)
}

// TestOldRecords continues, with this build, the jobs and schedules that older builds have left in
// testdata. The functions that write a folder (write, writeUndo, writeSettings, writeStages,
// writeHeld) say what it has. Folders of older builds have less. If you change the stored form, run
// the test with -old NAME to add a folder, and leave the others unchanged: see docs/upgrade.md.
func TestOldRecords(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
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
			found := r.load(folder)
			if !slices.Contains(found, record.JobKind) || !slices.Contains(found, record.RangeKind) {
				t.Fatalf("the folder has %q", found)
			}
			jobs, _, err := r.engine.JobsPage(t.Context(), nil, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range oldKinds {
				if do := oldJobs[kind]; do != nil && slices.Contains(found, kind) {
					do(t, r)
				}
			}
			i := slices.IndexFunc(jobs, func(j mapper.JobInfo) bool { return j.ID == "paused" })
			k := slices.IndexFunc(jobs, func(j mapper.JobInfo) bool { return strings.HasPrefix(j.ID, "nightly") })
			if i < 0 || k < 0 || jobs[i].State != mapper.StatePaused || jobs[k].State != mapper.StateRunning {
				t.Fatalf("jobs %+v", jobs)
			}
			scheduled, paused := r.engine.Job(jobs[k].ID), r.engine.Job("paused")
			if acts, err := paused.History(t.Context()); err != nil || len(acts) != 2 || acts[1].Action != "paused" {
				t.Errorf("history %+v, %v", acts, err)
			}
			if err := scheduled.Resume(t.Context()); err != nil { // no queue has the job's tasks
				t.Fatal(err)
			}
			s, err := scheduled.Wait(t.Context())
			if err != nil || s.State != mapper.StateSucceeded || s.Processed != 200 || s.Counters["credited"] != 200 {
				t.Errorf("the job of the schedule: %+v, %v", s, err)
			}
			ticked, err := mapper.NewSchedule("nightly", aged, mapper.OverlapQueue).Tick(t.Context(), r.engine,
				time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC), mapper.Query{Kind: "Account"}, credit{3},
				&mapper.StartOptions{PageSize: 10})
			if err != nil || ticked.Job == nil || ticked.Job.ID != scheduled.ID {
				t.Errorf("the tick of before once more: %+v, %v", ticked, err)
			}
			if err := paused.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err = paused.Wait(t.Context()); err != nil || s.State != mapper.StateSucceededWithFailures ||
				s.Processed != 198 || s.Failures != 2 {
				t.Errorf("the job that was paused: %+v, %v", s, err)
			}
			for _, job := range []*mapper.Job{scheduled, paused} {
				if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
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
					want = 3 // as a failure
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

// oldJobs has a function for each job that older builds have left, by the kind of the job's
// entities. It continues the job, and checks the result.
var oldJobs = map[string]func(*testing.T, *relic){
	"Batched": continueBatched,
	"Several": continueSeveral,
	"Erased":  continueErased,
	"Done": func(t *testing.T, r *relic) { // this job is not undone yet
		undo, err := r.engine.Job("done").Undo(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := undo.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceeded || s.Counters["restored"] != 40 || s.Counters["left"] != 0 {
			t.Errorf("the undo of a job that was done: %+v, %v", s, err)
		}
		r.isAsBefore("Done")
	},
	"Half": func(t *testing.T, r *relic) { // the undo of this job was paused in the middle
		undo := r.engine.Job("undo-half")
		if err := r.engine.Job("half").CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("a clean-up beside the undo: %v", err)
		}
		if err := undo.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := undo.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceeded || s.Counters["restored"] != 40 || s.Counters["left"] != 0 {
			t.Errorf("an undo that was paused: %+v, %v", s, err)
		}
		r.isAsBefore("Half")
	},
	"Clean": func(t *testing.T, r *relic) { // this job is being cleaned up
		job := r.engine.Job("clean")
		if _, err := job.Undo(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("the undo of a job that is being cleaned up: %v", err)
		}
		if err := job.CleanUp(t.Context(), nil); err != nil { // no queue has the clean-up's tasks
			t.Fatal(err)
		}
		for r.count(".clean.") > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	},
	"Held": func(t *testing.T, r *relic) { // this job runs, and has the slot of its kind
		q := mapper.Query{Kind: "Held"}
		if _, err := aged.Start(t.Context(), r.engine, q, credit{1}, &mapper.StartOptions{ID: "other"}); !errors.Is(err,
			mapper.ErrWrongState) {
			t.Errorf("a start beside a job that has the slot: %v", err)
		}
		held := r.engine.Job("held")
		if err := held.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := held.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 40 {
			t.Errorf("the job that has the slot: %+v, %v", s, err)
		}
		other, err := aged.Start(t.Context(), r.engine, q, credit{1}, &mapper.StartOptions{ID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := other.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 40 {
			t.Errorf("a job after it: %+v, %v", s, err)
		}
	},
	"Shared": func(t *testing.T, r *relic) { // this job was paused in the middle, and has a low rate for a time
		job := r.engine.Job("shared")
		s, err := job.Status(t.Context())
		if err != nil || s.State != mapper.StatePaused || s.Processed == 0 || s.Processed > 10 ||
			s.Settings.Rate.EntitiesPerSecond != 2 {
			t.Errorf("a job over a share: %+v, %v", s, err)
		}
		r.must(job.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}))
		r.must(job.Resume(t.Context()))
		if s, err = job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed == 0 ||
			s.Processed == 40 {
			t.Errorf("a job over a share: %+v, %v", s, err)
		}
		credited := r.balances("Shared", 1000)
		if int64(credited) != s.Processed {
			t.Errorf("%d entities are credited, and the job has processed %d", credited, s.Processed)
		}
		rest, err := aged.Start(t.Context(), r.engine,
			mapper.Query{Kind: "Shared", Filters: []mapper.Filter{mapper.Share(1, 2, 2)}}, credit{1000},
			&mapper.StartOptions{ID: "rest"})
		r.must(err)
		if s, err := rest.Wait(t.Context()); err != nil || s.Processed != int64(40-credited) ||
			r.balances("Shared", 1000) != 40 {
			t.Errorf("the job over the rest: %+v, %v", s, err)
		}
	},
	"Dear": func(t *testing.T, r *relic) { // this job was paused by its budget
		job := r.engine.Job("dear")
		s, err := job.Status(t.Context())
		if err != nil || s.State != mapper.StatePaused || !strings.Contains(s.Bottleneck, "budget") ||
			s.Settings.Budget.Operations != 1100 {
			t.Fatalf("a job that its budget has paused: %+v, %v", s, err)
		}
		for resumes := 0; s.State == mapper.StatePaused && resumes < 20; resumes++ {
			r.must(job.Resume(t.Context()))
			for s.State = mapper.StateRunning; s.State == mapper.StateRunning; {
				s, err = job.Status(t.Context())
				r.must(err)
			}
		}
		if s.State != mapper.StateSucceeded || s.Processed != 40 || r.balances("Dear", 1000) != 40 {
			t.Errorf("a job that its budget has paused: %+v", s)
		}
	},
	"Rehearsed": func(t *testing.T, r *relic) { // this rehearsal has ended
		job := r.engine.Job("rehearsed")
		examples, err := job.Examples(t.Context())
		if err != nil || len(examples) == 0 || len(examples[0].Properties) != 1 ||
			examples[0].Properties[0].Name != "Balance" {
			t.Errorf("a rehearsal: %+v, %v", examples, err)
		}
		if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 40 ||
			r.balances("Rehearsed", 0) != 40 {
			t.Errorf("a rehearsal: %+v, %v", s, err)
		}
	},
	"Kept": func(t *testing.T, r *relic) { // this job's records are deleted much later
		s, err := r.engine.Job("kept").Status(t.Context())
		if err != nil || s.CleanedUp || !s.CleanUpAt.Equal(s.Ended.Add(100*365*24*time.Hour)) {
			t.Errorf("a job with a retention: %+v, %v", s, err)
		}
	},
	"Ticked": func(t *testing.T, r *relic) { // this run was paused in the middle, and a tick waits for its end
		for i, day := range []int{18, 25} {
			run := r.engine.Job(weekly.JobID(dayOf(day)))
			if i == 0 {
				r.must(run.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}))
				r.must(run.Resume(t.Context()))
			} else {
				r.must(weekly.Advance(t.Context(), r.engine))
				r.must(run.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}))
			}
			if s, err := run.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 40 ||
				r.balances("Ticked", 1000*(i+1)) != 40 {
				t.Errorf("run %d of a schedule: %+v, %v", i+1, s, err)
			}
		}
	},
}

// balances returns how many entities of a kind have a balance that is higher than before the jobs
// by exactly more.
func (r *relic) balances(kind string, more int) (n int) {
	r.Helper()
	for _, e := range r.entities(kind) {
		if name := e.Entity.Key.Path[0].GetName(); fmt.Sprintf("%02d",
			e.Entity.Properties["Balance"].GetIntegerValue()-int64(more)) == name {
			n++
		}
	}
	return n
}

// isAsBefore checks that the entities of a kind are the same as before the jobs.
func (r *relic) isAsBefore(kind string) {
	r.Helper()
	wrong, all := 0, r.entities(kind)
	for _, e := range all {
		p := e.Entity.Properties
		if p["Owner"].GetStringValue() != "before" || p["Balance"].GetIntegerValue() >= 1000 {
			wrong++
		}
	}
	if wrong > 0 || len(all) != 40 {
		r.Errorf("%d of %d %s are not what they were", wrong, len(all), kind)
	}
}

// count returns the number of records of ranges whose names contain a text.
func (r *relic) count(text string) (n int) {
	r.Helper()
	for _, e := range r.entities(record.RangeKind) {
		if strings.Contains(e.Entity.Key.Path[0].GetName(), text) {
			n++
		}
	}
	return n
}

// rewrite changes the record of a job, to what a newer build would have stored.
func (w *world) rewrite(id string, change func(datastore.PropertyList) datastore.PropertyList) {
	w.Helper()
	key, list := datastore.NameKey(record.JobKind, id, nil), datastore.PropertyList{}
	if err := w.client.Get(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
	list = change(list)
	if _, err := w.client.Put(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
}

// replaceInQuery returns a change that replaces a text in the stored query of a job.
func replaceInQuery(was, is string) func(datastore.PropertyList) datastore.PropertyList {
	return func(list datastore.PropertyList) datastore.PropertyList {
		i := slices.IndexFunc(list, func(p datastore.Property) bool { return p.Name == "query" })
		list[i].Value = []byte(strings.Replace(string(list[i].Value.([]byte)), was, is, 1))
		return list
	}
}

// TestJobOfNewerBuild gives this build a job with a setting that it does not know, as after a
// rollback. It must process nothing and say so, and it must be able to abort the job. A build that
// knows the setting must continue the job.
func TestJobOfNewerBuild(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const field, filter = `{"sample":7,`, `{"filters":[{"property":"__key__","op":"sample","value":"7"}],`
	type change = func(datastore.PropertyList) datastore.PropertyList
	for name, c := range map[string]struct{ unknown, known change }{
		"a field":  {replaceInQuery("{", field), replaceInQuery(field, "{")},
		"a filter": {replaceInQuery("{", filter), replaceInQuery(filter, "{")},
		"a setting": {
			func(list datastore.PropertyList) datastore.PropertyList {
				return append(list, datastore.Property{Name: "needs", Value: []any{"sample"}, NoIndex: true})
			},
			func(list datastore.PropertyList) datastore.PropertyList {
				return slices.DeleteFunc(list, func(p datastore.Property) bool { return p.Name == "needs" })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(4)}, slowCredit)
				var deploying atomic.Bool // whether the service refuses all tasks
				engine := w.handler
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if deploying.Load() {
						rw.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					engine.ServeHTTP(rw, r)
				})
				keys := names(1000)
				w.putAccounts(keys)
				job := w.startSlow()
				time.Sleep(time.Second)
				if err := job.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				done := w.status(job).Processed
				w.rewrite(job.ID, c.unknown)
				refused := func(what string, err error) {
					t.Helper()
					if !errors.Is(err, mapper.ErrNewer) || !strings.Contains(err.Error(), "sample") ||
						operator.Code(err) != http.StatusConflict {
						t.Errorf("%s: %v, want ErrNewer, a conflict, that says what is not known", what, err)
					}
				}
				_, err := job.Status(t.Context())
				refused("status", err)
				refused("resume", job.Resume(t.Context()))
				if jobs, _, err := w.engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) != 1 {
					t.Errorf("the list of jobs: %+v, %v", jobs, err)
				}
				// A newer build resumes the job, and this build gets its tasks.
				w.rewrite(job.ID, c.known)
				deploying.Store(true)
				if err := job.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.rewrite(job.ID, c.unknown)
				deploying.Store(false)
				time.Sleep(5 * time.Minute)
				if now := w.credited(1000); now != done {
					t.Errorf("%d accounts were credited, and %d five minutes later", done, now)
				}
				if name == "a filter" {
					if err := job.Abort(t.Context()); err != nil {
						t.Errorf("abort: %v", err)
					}
					return
				}
				w.rewrite(job.ID, c.known)
				if s := w.wait(job); s.State != mapper.StateSucceeded || s.Processed != 1000 {
					t.Errorf("status %+v", s)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}
