package bqload_test

import (
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigquery"
	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob/memblob"
	"google.golang.org/api/option"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/export/bqload"
)

type row struct {
	ID    int64     `json:"id" csv:"id"`
	Name  *string   `json:"name,omitempty" csv:"name"`
	At    time.Time `json:"at" csv:"at"`
	Tags  []string  `json:"tags" csv:"-"`
	Place place     `json:"place" csv:"-"`
	Raw   []byte    `json:"-" csv:"raw"`
}

type place struct {
	Lat  float64 `json:"lat"`
	Open bool    `json:"open"`
}

// A bigQuery is a fake of BigQuery's server. Like BigQuery, it accepts the ID of a job only once.
type bigQuery struct {
	mu       sync.Mutex
	jobs     map[string]map[string]any
	inserted int
	failing  int // number of the next jobs that fail
}

func (b *bigQuery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		if strings.HasSuffix(r.URL.Path, "/projects/my-project/datasets/company") {
			json.NewEncoder(w).Encode(map[string]any{"location": "europe-west1"})
			return
		}
		if at := r.URL.Query().Get("location"); at != "europe-west1" {
			w.WriteHeader(http.StatusNotFound) // like BigQuery, for jobs outside of the US and the EU
			return
		}
		job := b.jobs[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		if job == nil {
			w.WriteHeader(http.StatusNotFound)
		}
		json.NewEncoder(w).Encode(job)
		return
	}
	var job map[string]any
	if err := json.NewDecoder(r.Body).Decode(&job); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := job["jobReference"].(map[string]any)["jobId"].(string)
	if b.jobs[id] != nil {
		w.WriteHeader(http.StatusConflict)
		w.Write([]byte(`{"error":{"code":409,"message":"Already Exists: Job"}}`))
		return
	}
	b.inserted++
	status := map[string]any{"state": "DONE"}
	if b.failing > 0 {
		b.failing--
		status["errorResult"] = map[string]any{"reason": "invalid", "message": "bad file"}
	}
	job["status"] = status
	job["jobReference"].(map[string]any)["location"] = "europe-west1"
	b.jobs[id] = job
	json.NewEncoder(w).Encode(job)
}

func (b *bigQuery) load(id string) map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.jobs[id]["configuration"].(map[string]any)["load"].(map[string]any)
}

func newClient(t *testing.T) (*bigQuery, *bigquery.Client) {
	t.Helper()
	server := &bigQuery{jobs: make(map[string]map[string]any)}
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)
	client, err := bigquery.NewClient(t.Context(), "my-project", option.WithEndpoint(front.URL),
		option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, client
}

func manifest(format export.Format, c export.Compression) *export.Manifest {
	return &export.Manifest{Export: "teams", Run: "teams.0123", Format: format, Compression: c,
		Files: []export.ManifestFile{{Name: "run-0123/00001-of-00002.x"}, {Name: "run-0123/00002-of-00002.x"}}}
}

// TestLoad sends load jobs with Google's client to a fake server, which checks the requests.
func TestLoad(t *testing.T) {
	const both = `{"name":"id","type":"INTEGER"},{"name":"name","type":"STRING"},{"name":"at","type":"TIMESTAMP"}`
	const jsonSchema = `{"fields":[` + both + `,{"mode":"REPEATED","name":"tags","type":"STRING"},
		{"name":"place","type":"RECORD","fields":[{"name":"lat","type":"FLOAT"},{"name":"open","type":"BOOLEAN"}]}]}`
	const csvSchema = `{"fields":[` + both + `,{"name":"raw","type":"BYTES"}]}`
	for _, test := range []struct {
		m       *export.Manifest
		replace bool
		want    string
	}{
		{manifest(export.JSONLines, export.Gzip), false,
			`{"sourceFormat":"NEWLINE_DELIMITED_JSON","writeDisposition":"WRITE_APPEND","schema":` + jsonSchema + `}`},
		{manifest(export.CSV, export.Uncompressed), true,
			`{"sourceFormat":"CSV","skipLeadingRows":1,"allowQuotedNewlines":true,` +
				`"preserveAsciiControlCharacters":true,"writeDisposition":"WRITE_TRUNCATE",` +
				`"schema":` + csvSchema + `}`},
		{manifest(export.Avro, export.Gzip), true,
			`{"sourceFormat":"AVRO","useAvroLogicalTypes":true,"writeDisposition":"WRITE_TRUNCATE"}`},
		{manifest(export.Parquet, export.Zstd), false, `{"sourceFormat":"PARQUET","writeDisposition":"WRITE_APPEND"}`},
	} {
		t.Run(string(test.m.Format), func(t *testing.T) {
			server, client := newClient(t)
			o := bqload.Options{Bucket: "gs://my-exports/", Folder: "teams/today",
				Table: client.Dataset("company").Table("teams"), Replace: test.replace}
			var ids []string
			for range 2 {
				job, err := bqload.Load[row](t.Context(), client, test.m, o)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, job.ID())
			}
			if server.inserted != 1 || ids[0] != ids[1] || !strings.HasPrefix(ids[0], "scattermap-") {
				t.Errorf("%d jobs of the IDs %q, want one", server.inserted, ids)
			}
			got := server.load(ids[0])
			var want map[string]any
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			want["createDisposition"] = "CREATE_IF_NEEDED"
			want["destinationTable"] = map[string]any{"projectId": "my-project", "datasetId": "company",
				"tableId": "teams"}
			want["sourceUris"] = []any{"gs://my-exports/teams/today/run-0123/00001-of-00002.x",
				"gs://my-exports/teams/today/run-0123/00002-of-00002.x"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the job asks for something else (-want +got): %s", diff)
			}
		})
	}
}

// TestOldManifest loads an export of an older build, which has its files directly in the export's
// folder.
func TestOldManifest(t *testing.T) {
	text, err := os.ReadFile("../testdata/old/2026-11/bucket.json")
	var blobs map[string][]byte
	if err == nil {
		err = json.Unmarshal(text, &blobs)
	}
	if err != nil {
		t.Fatal(err)
	}
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	for name, text := range blobs {
		if err := bucket.WriteAll(t.Context(), name, text, nil); err != nil {
			t.Fatal(err)
		}
	}
	m, err := export.ReadManifest(t.Context(), bucket, "out/done")
	if err != nil {
		t.Fatal(err)
	}
	server, client := newClient(t)
	job, err := bqload.Load[row](t.Context(), client, m, bqload.Options{Bucket: "gs://b", Folder: "out/done",
		Table: client.Dataset("company").Table("orders")})
	if err != nil {
		t.Fatal(err)
	}
	uris := server.load(job.ID())["sourceUris"].([]any)
	for _, uri := range uris {
		if name := strings.TrimPrefix(uri.(string), "gs://b/"); blobs[name] == nil {
			t.Errorf("%s is loaded, and not there", name)
		}
	}
	if len(uris) != 3 {
		t.Errorf("%d files are loaded, want 3", len(uris))
	}
}

// TestAnotherLoad checks that Load starts another job if the options or the run of the manifest
// differ.
func TestAnotherLoad(t *testing.T) {
	server, client := newClient(t)
	o := bqload.Options{Bucket: "gs://my-exports", Folder: "teams", Table: client.Dataset("company").Table("teams")}
	m := manifest(export.JSONLines, export.Uncompressed)
	load := func() {
		t.Helper()
		if _, err := bqload.Load[row](t.Context(), client, m, o); err != nil {
			t.Fatal(err)
		}
	}
	load()
	o.Replace = true
	load()
	m.Run = "teams.0124"
	load()
	for range 2 { // the second time, the same schema again
		for _, of := range []bigquery.FieldType{bigquery.StringFieldType, bigquery.IntegerFieldType} {
			o.Schema = bigquery.Schema{{Name: "id", Type: of}}
			load()
		}
	}
	if server.inserted != 5 {
		t.Errorf("%d jobs, want 5", server.inserted)
	}
}

// TestRefused checks that Load returns an error for exports that BigQuery can't load.
func TestRefused(t *testing.T) {
	_, client := newClient(t)
	good := bqload.Options{Bucket: "gs://my-exports", Folder: "teams", Table: client.Dataset("company").Table("teams")}
	bad := good
	bad.Bucket = "file:///exports"
	for want, test := range map[string]struct {
		m *export.Manifest
		o bqload.Options
	}{
		`"json"`:      {manifest(export.JSON, export.Uncompressed), good},
		`"zstd"`:      {manifest(export.JSONLines, export.Zstd), good},
		`"file:///e`:  {manifest(export.JSONLines, export.Uncompressed), bad},
		"Options.Fol": {manifest(export.JSONLines, export.Uncompressed), bqload.Options{Bucket: "gs://b"}},
		"discarded":   {&export.Manifest{Export: "teams", Format: export.Avro, Discarded: true}, good},
	} {
		if _, err := bqload.Load[row](t.Context(), client, test.m, test.o); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %s", err, want)
		}
	}
	if _, err := bqload.Load[map[string]int](t.Context(), client, manifest(export.JSONLines, export.Uncompressed),
		good); err == nil {
		t.Error("a map has a schema")
	}
}

// TestFailedLoad calls Load again after a load job has failed. Even if Load is called several
// times, it must start only one new job.
func TestFailedLoad(t *testing.T) {
	server, client := newClient(t)
	server.failing = 2
	o := bqload.Options{Bucket: "gs://my-exports", Folder: "teams", Table: client.Dataset("company").Table("teams")}
	for i, want := range []struct {
		ok   bool
		jobs int
	}{{false, 1}, {false, 2}, {true, 3}, {true, 3}} {
		job, err := bqload.Load[row](t.Context(), client, manifest(export.JSONLines, export.Uncompressed), o)
		if err != nil {
			t.Fatal(err)
		}
		status, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ok := status.Err() == nil; ok != want.ok || server.inserted != want.jobs {
			t.Errorf("load %d: succeeded %t with %d jobs, want %+v", i+1, ok, server.inserted, want)
		}
	}
}

// TestSchema derives BigQuery schemas from Go types. Types whose JSON or CSV BigQuery could read in
// several ways must be refused by name.
func TestSchema(t *testing.T) {
	type blob []byte
	type circle struct{ Next *circle }
	type Base struct {
		ID int64 `json:"id"`
	}
	type good struct {
		Base
		Blob  blob            `json:"blob"`
		Raw   json.RawMessage `json:"raw"`
		Addr  netip.Addr      `json:"addr"`
		Big   int64           `json:"big,string"`
		Three [3]int32        `json:"three"`
	}
	server, client := newClient(t)
	o := bqload.Options{Bucket: "gs://my-exports", Folder: "teams", Table: client.Dataset("company").Table("teams")}
	job, err := bqload.Load[good](t.Context(), client, manifest(export.JSONLines, export.Uncompressed), o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(server.load(job.ID())["schema"])
	want := `{"fields":[{"name":"id","type":"INTEGER"},{"name":"blob","type":"BYTES"},{"name":"raw","type":"JSON"},` +
		`{"name":"addr","type":"STRING"},{"name":"big","type":"INTEGER"},` +
		`{"mode":"REPEATED","name":"three","type":"INTEGER"}]}`
	if err != nil || string(got) != want {
		t.Errorf("the schema is %s, want %s; %v", got, want, err)
	}
	m := manifest(export.JSONLines, export.Uncompressed)
	for want, load := range map[string]func() (*bigquery.Job, error){
		"circle is inside itself": func() (*bigquery.Job, error) {
			return bqload.Load[circle](t.Context(), client, m, o)
		},
		"export.Entity is not known: set Options.Schema": func() (*bigquery.Job, error) {
			return bqload.Load[export.Entity](t.Context(), client, m, o)
		},
		"BigQuery has no type for interface {}": func() (*bigquery.Job, error) {
			return bqload.Load[struct{ A any }](t.Context(), client, m, o)
		},
		`the names "id" and "ID", which BigQuery takes for one`: func() (*bigquery.Job, error) {
			return bqload.Load[struct {
				A int `json:"id"`
				B int `json:"ID"`
			}](t.Context(), client, m, o)
		},
		"what big.Int is in JSON is not known": func() (*bigquery.Job, error) {
			return bqload.Load[struct{ A big.Int }](t.Context(), client, m, o)
		},
	} {
		if _, err := load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %s", err, want)
		}
	}
}
