package export_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"gocloud.dev/blob"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

var writeOld = flag.String("old", "", "have TestOldRecords write testdata/old/`NAME`, with the records of this "+
	"build, for all later ones to read")

// oldOrders is how many entities the stored exports have.
const oldOrders = 60

// newAged returns the export whose records are stored in testdata. A change of it makes them
// unreadable.
func newAged(bucket *blob.Bucket) *export.Export[mapper.NoParams] {
	return must(export.New("aged", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		return line(e.Value), nil
	}, &export.Options{Compression: export.Gzip, Files: 3}))
}

// oldKinds are the kinds of the stored records, and the kind of the entities.
var oldKinds = []string{"ScattermapJob", "ScattermapRange", "ScattermapSlot", "ScattermapPart", "ScattermapFile",
	"Order"}

// A relic is a database and a bucket with the state of old exports, and an engine for them.
type relic struct {
	*testing.T
	store  *testbucket.Bucket
	export *export.Export[mapper.NoParams]
	client *datastore.Client
	raw    datastorepb.DatastoreClient
	engine *mapper.Engine
}

func newRelic(t *testing.T) *relic {
	t.Helper()
	r := &relic{T: t, store: testbucket.New()}
	r.export = newAged(r.store.Open())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0",
		Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			handler.ServeHTTP(rw, req)
		}))})
	var err error
	r.client, err = e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	must(err)
	t.Cleanup(func() { r.client.Close() })
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	t.Cleanup(func() { conn.Close() })
	r.raw = datastorepb.NewDatastoreClient(conn)
	queues, err := e.TasksClient(t.Context())
	must(err)
	t.Cleanup(func() { queues.Close() })
	_, err = queues.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: "projects/test/locations/here",
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 2}}})
	must(err)
	queue, err := tasks.NewQueue(queues, queueName, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
	must(err)
	r.engine, err = mapper.NewEngine(r.client, queue, &mapper.EngineOptions{Mappers: r.export.Mappers(),
		Logger: slog.New(slog.DiscardHandler)})
	must(err)
	handler = r.engine.Handler()
	return r
}

func (r *relic) start(id string) *export.Run {
	r.Helper()
	run, err := r.export.Start(r.Context(), r.engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
		&export.StartOptions{
			StartOptions: mapper.StartOptions{ID: id, PageSize: 6}, Folder: "out/" + id})
	if err != nil {
		r.Fatal(err)
	}
	return run
}

// write writes the state of three exports to a folder: one is paused in the middle, one has joined
// two of three files, and one has succeeded.
func (r *relic) write(folder string) {
	r.Helper()
	must := func(err error) {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
	}
	for n := range int64(oldOrders) {
		o := order(lineOf(n))
		_, err := r.client.Put(r.Context(), datastore.NameKey("Order", fmt.Sprint(n*7919%10007), nil), &o)
		must(err)
	}
	_, err := r.start("done").Wait(r.Context())
	must(err)
	r.store.Hook = func(c *testbucket.Call) error {
		switch {
		case strings.Contains(c.Key, "out/joining") && strings.Contains(c.Key, "00002-of-00003"):
			return errLost
		case strings.Contains(c.Key, "out/paused") && c.Op == "write":
			time.Sleep(50 * time.Millisecond)
		}
		return c.Effect()
	}
	joining := r.start("joining").Jobs()
	for {
		s, err := joining[1].Status(r.Context())
		if err == nil && s.Processed == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	paused := r.start("paused").Jobs()[0]
	for {
		s, err := paused.Status(r.Context())
		must(err)
		if s.Processed > oldOrders/3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	must(paused.Pause(r.Context()))
	time.Sleep(time.Second)
	must(os.MkdirAll(folder, 0o755))
	for _, kind := range oldKinds {
		var text bytes.Buffer
		for _, e := range r.entities(kind) {
			line, err := protojson.Marshal(e)
			must(err)
			fmt.Fprintf(&text, "%s\n", line)
		}
		must(os.WriteFile(filepath.Join(folder, kind+".jsonl"), text.Bytes(), 0o644))
	}
	text, err := json.MarshalIndent(r.store.Now(), "", "\t")
	must(err)
	must(os.WriteFile(filepath.Join(folder, "bucket.json"), append(text, '\n'), 0o644))
}

// entities returns all entities of a kind.
func (r *relic) entities(kind string) (all []*datastorepb.Entity) {
	r.Helper()
	resp, err := r.raw.RunQuery(r.Context(), &datastorepb.RunQueryRequest{ProjectId: "test",
		QueryType: &datastorepb.RunQueryRequest_Query{
			Query: &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}}}})
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

// load loads the database and the bucket from a folder.
func (r *relic) load(folder string) {
	r.Helper()
	for _, kind := range oldKinds {
		text, err := os.ReadFile(filepath.Join(folder, kind+".jsonl"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			e := new(datastorepb.Entity)
			if err := protojson.Unmarshal(line, e); err != nil {
				r.Fatal(err)
			}
			if _, err := r.raw.Commit(r.Context(), &datastorepb.CommitRequest{ProjectId: "test",
				Mode:      datastorepb.CommitRequest_NON_TRANSACTIONAL,
				Mutations: []*datastorepb.Mutation{{Operation: &datastorepb.Mutation_Upsert{Upsert: e}}}}); err != nil {
				r.Fatal(err)
			}
		}
	}
	var blobs map[string][]byte
	text, err := os.ReadFile(filepath.Join(folder, "bucket.json"))
	if err == nil {
		err = json.Unmarshal(text, &blobs)
	}
	if err != nil {
		r.Fatal(err)
	}
	for name, text := range blobs {
		r.store.Put(name, text)
	}
}

// TestOldRecords continues the exports of older builds: one that was paused in the middle, and one
// that was joining its files. It also reads one that has succeeded. After a change of the stored
// form, -old NAME adds a folder and leaves the others.
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
			r.load(folder)
			bucket, manifests := r.store.Open(), make(map[string]*export.Manifest)
			var mu sync.Mutex
			lost := make(map[string]bool) // the first write of each manifest fails
			r.store.Hook = func(c *testbucket.Call) error {
				mu.Lock()
				first := strings.HasSuffix(c.Key, export.ManifestName) && c.Op == "write" && !lost[c.Key]
				lost[c.Key] = lost[c.Key] || first
				mu.Unlock()
				if first {
					return errors.New("the connection was lost")
				}
				return c.Effect()
			}
			for id, last := range map[string]int{"paused": 0, "joining": 1, "done": -1} {
				run, err := r.export.Find(t.Context(), r.engine, id)
				if err != nil {
					t.Fatal(err)
				}
				if last >= 0 {
					if err := run.Jobs()[last].Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if again := r.start(id); again.Folder != run.Folder {
					t.Errorf("the start of before once more is in %q", again.Folder)
				}
				m, err := run.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if manifests[id] = m; id != "done" && m.Coverage == nil {
					t.Errorf("%s: the manifest has no proof of the coverage", id)
				}
				if read, err := export.ReadManifest(t.Context(), bucket, run.Folder); err != nil || read.Run != m.Run {
					t.Errorf("the manifest of %s: %+v, %v", id, read, err)
				}
				seen := make(map[int64]bool)
				for _, f := range m.Files {
					for _, l := range readLinesIn(t, run.Folder, m, bucket, f.Name) {
						if seen[l.N] || l.Name != lineOf(l.N).Name {
							t.Errorf("%s: %+v is wrong, or there twice", id, l)
						}
						seen[l.N] = true
					}
				}
				if len(seen) != oldOrders || m.Records != oldOrders || len(m.Files) != 3 {
					t.Errorf("%s: %d records, and the manifest %+v", id, len(seen), m)
				}
			}
			for _, name := range r.store.Names() {
				if strings.Contains(name, "_parts/") || strings.HasSuffix(name, export.StartedName) {
					t.Errorf("%s is left", name)
				}
			}
			for _, kind := range []string{"ScattermapPart", "ScattermapFile"} {
				if n := len(r.entities(kind)); n > 0 {
					t.Errorf("%d entities of %s are left", n, kind)
				}
			}
		})
	}
}

// TestOldDiscard discards exports of older builds. It deletes nothing of other exports, and
// discards none with a manifest.
func TestOldDiscard(t *testing.T) {
	folders, err := filepath.Glob("testdata/old/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no old records: %v", err)
	}
	r := newRelic(t)
	r.load(folders[0])
	find := func(id string, abort int) *export.Run {
		t.Helper()
		run, err := r.export.Find(t.Context(), r.engine, id)
		if err == nil && abort >= 0 {
			err = run.Jobs()[abort].Abort(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	if err := find("done", -1).Discard(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
		t.Errorf("%v, want ErrState for one that has succeeded", err)
	}
	if _, err := r.export.Start(t.Context(), r.engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
		&export.StartOptions{Folder: "out/paused/below"}); !errors.Is(err, mapper.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), `"out/paused"`) {
		t.Errorf("%v, want an error that names the folder of the export which may delete what is there", err)
	}
	// Another run took the folder, as in an older build.
	s := r.store
	own := string(s.Get("out/joining/_STARTED"))
	s.Put("out/joining/_STARTED", []byte(`{"export":"x","run":"another"}`))
	s.Put("out/paused/run-0123456789abcdefghijklmnop/00001-of-00001.jsonl.gz", []byte("x"))
	before := s.Names()
	joining := find("joining", 1)
	if err := joining.Discard(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range before {
		if s.Get(name) == nil {
			t.Errorf("%s was deleted, and is another run's", name)
		}
	}
	s.Put("out/joining/_STARTED", []byte(own))
	for _, run := range []*export.Run{joining, find("paused", 0)} {
		if err := run.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range s.Names() {
		if strings.HasPrefix(name, "out/joining/") && !strings.HasSuffix(name, "/manifest.json") ||
			strings.Contains(name, "_parts/") || strings.HasSuffix(name, "_STARTED") {
			t.Errorf("%s is left", name)
		}
	}
	if s.Get("out/paused/run-0123456789abcdefghijklmnop/00001-of-00001.jsonl.gz") == nil {
		t.Error("what another run has in its own folder was deleted")
	}
	for _, kind := range []string{"ScattermapPart", "ScattermapFile"} {
		if n := len(r.entities(kind)); n > 0 {
			t.Errorf("%d entities of %s are left", n, kind)
		}
	}
	m, err := r.start("paused-2").Wait(t.Context())
	if err != nil || m.Records != oldOrders {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestOldForeignFile continues an export of an older build in whose folder another run has a file
// of the same name. It does not overwrite the file, and says what to do. A file that a lost attempt
// of its own has written is no hindrance.
func TestOldForeignFile(t *testing.T) {
	folders, err := filepath.Glob("testdata/old/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no old records: %v", err)
	}
	r := newRelic(t)
	r.load(folders[0])
	const name = "out/joining/00002-of-00003.jsonl.gz"
	foreign := []byte("of another run")
	r.store.Put(name, foreign)
	lost := false
	r.store.Hook = func(c *testbucket.Call) error {
		if err := c.Effect(); err != nil || lost || c.Op != "write" || c.Key != name {
			return err
		}
		lost = true
		return errLost
	}
	run, err := r.export.Find(t.Context(), r.engine, "joining")
	if err != nil {
		t.Fatal(err)
	}
	join := run.Jobs()[1]
	if err := join.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err = run.Wait(t.Context()); err == nil {
		t.Fatal("an export has succeeded whose file is another run's")
	}
	failures, _, err := join.FailuresPage(t.Context(), "")
	if err != nil || len(failures) != 1 || !strings.Contains(failures[0].Error, name) ||
		!strings.Contains(failures[0].Error, "delete it") {
		t.Errorf("the failures are %+v, %v, want one that names the file", failures, err)
	}
	if got := r.store.Get(name); !bytes.Equal(got, foreign) {
		t.Errorf("the file of another run is now %q", got)
	}
	r.store.Put(name, nil)
	if err := join.Retry(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	m, err := run.Wait(t.Context())
	if err != nil || m.Records != oldOrders || !lost {
		t.Errorf("%+v, %v, an answer was lost: %t", m, err, lost)
	}
}
