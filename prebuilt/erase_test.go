package prebuilt_test

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// A drawer has a key pair and stores certificates for a test.
type drawer struct {
	mu      sync.Mutex
	public  ed25519.PublicKey
	private ed25519.PrivateKey
	kept    map[string][]byte
	keep    func(ctx context.Context, c *prebuilt.Certificate) error // called for each certificate; may be nil
}

func newDrawer(t *testing.T) *drawer {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &drawer{public: public, private: private, kept: make(map[string][]byte)}
}

func (d *drawer) erase() mapper.AnyMapper {
	return prebuilt.Erase(prebuilt.EraseOptions{Key: d.private, Keep: func(ctx context.Context, name string,
		text []byte) error {
		c, err := prebuilt.ReadCertificate(text, d.public)
		if err == nil && d.keep != nil {
			err = d.keep(ctx, c)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.kept[name] = text
		return err
	}})
}

func (d *drawer) certificate(t *testing.T, job string) *prebuilt.Certificate {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := prebuilt.ReadCertificate(d.kept[job+".certificate.json"], d.public)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ourKinds are the kinds of scattermap's records that occur in these tests.
var ourKinds = []string{"ScattermapDraft", "ScattermapFile", "ScattermapJob", "ScattermapPart", "ScattermapRange",
	"ScattermapSchedule",
	"ScattermapSlot", "ScattermapUndoBatch"}

// texts returns the values of properties as text, decompressed and decoded, one value a line.
func texts(properties []datastore.Property) string {
	var b strings.Builder
	var add func(v any)
	encoded := func(text string) {
		for _, word := range strings.FieldsFunc(text, func(r rune) bool {
			return strings.ContainsRune(`",:{}[] `, r)
		}) {
			for i := range len(word) {
				if i > 0 && word[i-1] != '-' && word[i-1] != '_' {
					continue
				}
				if key, err := datastore.DecodeKey(word[i:]); err == nil {
					add(key)
				}
			}
		}
	}
	add = func(v any) {
		switch v := v.(type) {
		case string:
			fmt.Fprintln(&b, v)
			encoded(v)
		case []byte:
			if len(v) > 0 && v[0] == 0 {
				if text, err := io.ReadAll(flate.NewReader(bytes.NewReader(v[1:]))); err == nil {
					v = text
				}
			}
			fmt.Fprintln(&b, string(v))
			encoded(string(v))
		case *datastore.Key:
			if v != nil {
				fmt.Fprintln(&b, v.Namespace, v.String())
			}
		case *datastore.Entity:
			if v != nil {
				add(v.Key)
				fmt.Fprint(&b, texts(v.Properties))
			}
		case []any:
			for _, each := range v {
				add(each)
			}
		default:
			fmt.Fprintln(&b, v)
		}
	}
	for _, p := range properties {
		fmt.Fprint(&b, p.Name, " ")
		add(p.Value)
	}
	return b.String()
}

// grep searches scattermap's records for a text. It returns the kind, the key and the property of
// each place. It ignores records for which but returns true.
func grep(ctx context.Context, client *datastore.Client, text string, but func(kind string, key *datastore.Key,
	all datastore.PropertyList) bool) (found []string, err error) {
	kinds, err := client.GetAll(ctx, datastore.NewQuery("__kind__").KeysOnly(), nil)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		if !strings.HasPrefix(kind.Name, "Scattermap") {
			continue
		}
		var all []datastore.PropertyList
		keys, err := client.GetAll(ctx, datastore.NewQuery(kind.Name), &all)
		if err != nil {
			return nil, err
		}
		for i, key := range keys {
			for _, p := range append(all[i], datastore.Property{Name: "its key", Value: key}) {
				if strings.Contains(texts([]datastore.Property{p}), text) && (but == nil || !but(kind.Name, key,
					all[i])) {
					found = append(found, kind.Name+" "+key.Name+" "+p.Name)
				}
			}
		}
	}
	return found, nil
}

// A tenancy is an environment of mappertest with methods that put entities of a tenant, and run
// jobs that store data of these entities in their records.
type tenancy struct {
	*testing.T
	*mappertest.Env
}

func (w tenancy) put(namespace, kind, name string, properties ...datastore.Property) {
	w.Helper()
	key := datastore.NameKey(kind, name, nil)
	key.Namespace = namespace
	list := datastore.PropertyList(properties)
	if _, err := w.Client.Put(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
}

func (w tenancy) start(name string, q mapper.Query, params, id string, rate mapper.Rate) *mapper.Job {
	w.Helper()
	ctx := mapper.WithReason(w.Context(), "as alice-0001@example.com of acme asks")
	job, err := w.Engine.StartByName(ctx, name, q, []byte(params),
		&mapper.StartOptions{ID: id, PageSize: 10, AllowOverlap: true, Rate: rate})
	if err != nil {
		w.Fatal(err)
	}
	return job
}

// paused starts a slow job, and pauses it before it can end.
func (w tenancy) paused(q mapper.Query, id string) *mapper.Job {
	w.Helper()
	job := w.start("touch", q, "{}", id, mapper.Rate{EntitiesPerSecond: 1})
	if err := job.Pause(w.Context()); err != nil {
		w.Fatal(err)
	}
	return job
}

func (w tenancy) run(name string, q mapper.Query, params, id string) *mapper.Status {
	w.Helper()
	s, err := w.start(name, q, params, id, mapper.Rate{}).Wait(w.Context())
	if err != nil || s.State == mapper.StateFailed || s.State == mapper.StateRunning {
		w.Fatalf("%+v, %v", s, err)
	}
	return s
}

// earlier runs jobs of all prebuilt mappers over a query. Their records then contain data of the
// query's entities.
func (w tenancy) earlier(q mapper.Query, prefix string) {
	w.Helper()
	w.run("set", q, `{"property": "seen", "value": true}`, prefix+"set")
	w.run("check", q, `{"condition": "n >= 5"}`, prefix+"check") // fails for some entities
	w.run("count", q, `{"by": "owner"}`, prefix+"count")
	w.run("copy", q, `{"namespace": "elsewhere"}`, prefix+"copy")
	job, err := w.Engine.StartByName(w.Context(), "delete", q, []byte("{}"),
		&mapper.StartOptions{ID: prefix + "rehearsal", DryRun: true})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := job.Wait(w.Context()); err != nil {
		w.Fatal(err)
	}
	undone := w.run("set", q, `{"property": "other", "value": "bob of acme"}`, prefix+"undone")
	w.put(q.Namespace, "Account", "alice-0003@example.com", datastore.Property{Name: "n", Value: int64(3)},
		datastore.Property{Name: "tenant", Value: "acme"})
	// The ID comes after the undone job's ID, so that its record is searched later.
	undo, err := w.Engine.Job(undone.ID).Undo(w.Context(), &mapper.UndoOptions{ID: "z-" + prefix + "undo"})
	if err != nil {
		w.Fatal(err)
	}
	if s, err := undo.Wait(w.Context()); err != nil || s.State != mapper.StateSucceeded {
		w.Fatalf("%+v, %v", s, err)
	}
	if err := w.paused(q, prefix+"aborted").Abort(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func alice(i int) string { return fmt.Sprintf("alice-%04d@example.com", i) }

// TestEraseForgets erases a namespace, after jobs of all kinds have stored keys of its entities in
// their records. After the erasure no record contains such a key.
func TestEraseForgets(t *testing.T) {
	d := newDrawer(t)
	nightly := mapper.NewSchedule("nightly", prebuilt.Touch, mapper.OverlapSkip)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		for i := range 60 {
			w.put("acme", "Account", alice(i), datastore.Property{Name: "n", Value: int64(i)},
				datastore.Property{Name: "owner", Value: alice(i)})
			w.put("other", "Account", fmt.Sprintf("carol-%04d", i), datastore.Property{Name: "n", Value: int64(i)})
		}
		for i := range 120 { // so that the namespace has more than a hundred kinds
			w.put("acme", fmt.Sprintf("Kind%d", i), alice(i))
		}
		w.put("acme", "__session", alice(7))
		q := mapper.Query{Namespace: "acme", Kind: "Account"}
		w.earlier(q, "")
		everywhere := w.run("count", mapper.Query{AllNamespaces: true, Kind: "Account"}, "{}", "everywhere")
		named := w.run("touch", mapper.Query{Namespace: "other", Kind: "Account"}, "{}", "touch-for-acme")
		kept := w.run("check", mapper.Query{Namespace: "other", Kind: "Account"}, `{"condition": "n >= 5"}`, "kept")
		if _, err := nightly.Tick(t.Context(), w.Engine, time.Now(), q, mapper.NoParams{}, nil); err != nil {
			t.Fatal(err)
		}

		// A job that has not ended prevents the erasure, before and after its start.
		paused := w.paused(q, "paused")
		_, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{Namespace: "acme"}, []byte("{}"), nil)
		if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(err.Error(), "paused (paused)") {
			t.Errorf("a job is paused: %v", err)
		}
		if err := paused.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		ours, err := grep(t.Context(), w.Client, alice(1), nil)
		if err != nil || len(ours) < 5 {
			t.Fatalf("jobs keep %q, %v", ours, err)
		}
		time.Sleep(time.Hour)
		job := w.start("erase", mapper.Query{Namespace: "acme"}, `{"words": ["carol-0059"]}`, "erasure", mapper.Rate{})
		for ctx, left := t.Context(), 20; left > 0; left-- { // start another job while the erasure runs
			if _, err := w.Engine.StartByName(ctx, "touch", q, []byte("{}"),
				&mapper.StartOptions{ID: "meanwhile", AllowOverlap: true, AllowEmpty: true}); err == nil {
				break
			}
		}
		s, err := job.Wait(t.Context())
		// the erasure has failed because the other job had not ended
		for i := 0; err == nil && s.State == mapper.StateFailed && i < 5; i++ {
			if !strings.Contains(s.Error, "meanwhile") {
				t.Fatalf("%+v", s)
			}
			time.Sleep(time.Hour)
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, err = job.Wait(t.Context())
		}
		if err != nil || s.State != mapper.StateSucceeded || s.Written != 181 {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, text := range []string{"alice", "acme", "bob"} {
			found, err := grep(t.Context(), w.Client, text, nil)
			if err != nil || len(found) > 0 {
				t.Errorf("%q is left in %q, %v", text, found, err)
			}
		}
		c := d.certificate(t, "erasure")
		if c.Namespace != "acme" || c.Deleted != 181 || len(c.Kinds) != 122 || c.Coverage.Ranges == 0 ||
			len(c.Outside) == 0 || !slices.Contains(c.Jobs, mapper.HashID(c.Salt, "check")) {
			t.Errorf("%+v", c)
		}
		for _, kind := range []string{"ScattermapJob", "ScattermapRange", "ScattermapSchedule"} {
			if c.Records[kind] == 0 {
				t.Errorf("the certificate does not say that %s were looked at: %v", kind, c.Records)
			}
		}
		// Records of other jobs stay unless they have data of the namespace.
		if _, err := w.Engine.Job(named.ID).Status(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("a job whose ID names it: %v", err)
		}
		if again := w.status(everywhere.ID); again.Processed != everywhere.Processed || !again.CleanedUp {
			t.Errorf("%+v", again)
		}
		if _, err := w.Engine.Job(kept.ID).Verify(t.Context(), nil); err != nil {
			t.Errorf("a job of another namespace: %v", err)
		}
		if failures, _, err := w.Engine.Job(kept.ID).FailuresPage(t.Context(), ""); err != nil || len(failures) != 5 {
			t.Errorf("%v, %v", failures, err)
		}
		if _, err := w.Engine.StartByName(t.Context(), "set", q, []byte(`{"property": "seen", "value": true}`),
			&mapper.StartOptions{ID: "set", AllowEmpty: true}); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "erased on") {
			t.Errorf("a start of a job that was erased: %v", err)
		}
		if _, err := w.Engine.Job("erasure").Undo(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("undo: %v", err)
		}
		kinds, err := w.Client.GetAll(t.Context(), datastore.NewQuery("__kind__").KeysOnly(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			if strings.HasPrefix(kind.Name, "Scattermap") && !slices.Contains(ourKinds, kind.Name) {
				t.Errorf("%s is a kind of ours that no test of erasures knows: does its content name jobs by "+
					"properties that lifecycle.refOf reads?", kind.Name)
			}
		}
	})
}

func (w tenancy) status(id string) *mapper.Status {
	w.Helper()
	s, err := w.Engine.Job(id).Status(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// TestEraseTenant erases the entities that have a value in a property, in all kinds and namespaces,
// indexed or not.
func TestEraseTenant(t *testing.T) {
	d := newDrawer(t)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		tenant := func(v any, noindex bool) datastore.Property {
			return datastore.Property{Name: "tenant", Value: v, NoIndex: noindex}
		}
		for i, namespace := range []string{"", "eu", "us"} {
			for j := range 40 {
				w.put(namespace, "Account", alice(100*i+j), datastore.Property{Name: "n", Value: int64(j)},
					tenant("acme", false))
				w.put(namespace, "Account", fmt.Sprintf("bob-%d", j), datastore.Property{Name: "n", Value: int64(j)},
					tenant("umbrella", false))
			}
			w.put(namespace, "Note", alice(i), tenant("acme", true))
			w.put(namespace, "Note", "several", tenant([]any{"x", "acme"}, false))
			w.put(namespace, "Note", "similar", tenant("acme2", false))
			w.put(namespace, "Count", "text", tenant("7", false))
			w.put(namespace, "Count", "number", tenant(int64(7), false))
			w.put(namespace, "Count", "float", tenant(7.0, false))
		}
		w.earlier(mapper.Query{Kind: "Account"}, "a-")
		w.earlier(mapper.Query{Kind: "Account", Namespace: "eu"}, "b-")
		time.Sleep(time.Hour)
		for _, params := range []string{`{"property": "tenant"}`, `{"value": "acme"}`,
			`{"property": "tenant", "value": null}`, `{"property": "tenant", "value": ""}`,
			`{"property": "tenant", "value": "acme", "what": 1}`} {
			if _, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{}, []byte(params),
				nil); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("%s: %v", params, err)
			}
		}
		if _, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{},
			[]byte(`{"property": "tenant", "value": "acme"}`),
			&mapper.StartOptions{ID: "acme-erasure"}); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("an ID that names the tenant: %v", err)
		}
		if s := w.run("erase", mapper.Query{}, `{"property": "tenant", "value": 7}`, "seven"); s.Written != 3 {
			t.Errorf("%+v", s)
		}
		s := w.run("erase", mapper.Query{}, `{"property": "tenant", "value": "acme"}`, "tenant")
		if s.Written != 126+80+1 { // including the copies, and an entity that was put again
			t.Errorf("%d were erased", s.Written)
		}
		c := d.certificate(t, "tenant")
		if c.Tenant == nil || c.Tenant.Property != "tenant" || c.Tenant.Value.V != "acme" || c.Unindexed != 3 ||
			!slices.Contains(c.Tenant.Namespaces, "us") {
			text, _ := json.Marshal(c)
			t.Errorf("%s", text)
		}
		for _, text := range []string{"alice", "acme"} {
			found, err := grep(t.Context(), w.Client, text, nil)
			if err != nil || len(found) > 0 {
				t.Errorf("%q is left in %q, %v", text, found, err)
			}
		}
		for kind, want := range map[string]int{"Account": 40, "Note": 1, "Count": 2} {
			for _, namespace := range []string{"", "eu", "us"} {
				if n, err := w.Client.Count(t.Context(), datastore.NewQuery(kind).Namespace(namespace)); err != nil ||
					n != want {
					t.Errorf("%d of %s in %q, want %d; %v", n, kind, namespace, want, err)
				}
			}
		}
	})
}

// ticking returns an engine for the calls of a schedule. Its process runs no tasks. So a tick that
// waits for another job does not start until the test calls Advance.
func ticking(t *testing.T, w *mappertest.Env, s mapper.AnySchedule) *mapper.Engine {
	t.Helper()
	e, err := mapper.NewEngine(w.Client, w.Engine.Queue(), &mapper.EngineOptions{Mappers: prebuilt.Mappers(),
		Schedules: []mapper.AnySchedule{s}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestEraseIsInTheWay checks that a waiting tick of a schedule, and an undo that still runs,
// prevent the certificate. The error names the obstacle. After the test has removed it, the erasure
// is resumed and succeeds.
func TestEraseIsInTheWay(t *testing.T) {
	d := newDrawer(t)
	nightly := mapper.NewSchedule("nightly", prebuilt.Touch, mapper.OverlapQueue)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		for i := range 40 {
			w.put("acme", "Account", alice(i), datastore.Property{Name: "n", Value: int64(i)})
		}
		q := mapper.Query{Namespace: "acme", Kind: "Account"}
		set := w.run("set", q, `{"property": "seen", "value": true}`, "set")
		first, err := nightly.Tick(t.Context(), ticking(t, world, nightly), time.Now(), q, mapper.NoParams{},
			&mapper.StartOptions{Rate: mapper.Rate{EntitiesPerSecond: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		ticked, err := nightly.Tick(t.Context(), ticking(t, world, nightly), time.Now().Add(time.Hour), q,
			mapper.NoParams{}, nil)
		if err != nil || ticked.Outcome != mapper.TickQueued {
			t.Fatalf("%+v, %v", ticked, err)
		}
		if err := w.Engine.Job(first.Job.ID).Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		slow := &mapper.UndoOptions{PageSize: 1, Rate: mapper.Rate{EntitiesPerSecond: 1}} // paused before it ends
		undo, err := w.Engine.Job(set.ID).Undo(t.Context(), slow)
		if err == nil {
			err = undo.Pause(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		job := w.start("erase", mapper.Query{Namespace: "acme"}, "{}", "erasure", mapper.Rate{})
		blocked := func(want string) {
			t.Helper()
			s, err := job.Wait(t.Context())
			if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, want) || len(d.kept) > 0 {
				t.Fatalf("%+v, %v, %d certificates; want %q", s, err, len(d.kept), want)
			}
		}
		blocked(`a tick of the schedule "nightly" waits`)
		// the call must fail, because no tick waits any more
		if err := nightly.Advance(t.Context(), w.Engine); err == nil {
			time.Sleep(time.Hour)
		} else if record := datastore.NameKey("ScattermapSchedule", "nightly", nil); w.Client.Delete(
			t.Context(), record) != nil {
			t.Fatal("the schedule can't be deleted")
		}
		if err := job.Retry(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("a retry of a job without records: %v", err)
		}
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		blocked("undo-set")
		if err := undo.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		stray := datastore.NameKey("ScattermapUndoBatch", "stray", nil) // a copy of the record under another name
		if _, err := w.Client.Put(t.Context(), stray, &datastore.PropertyList{
			{Name: "job", Value: "gone", NoIndex: true}, {Name: "incarnation", Value: "0", NoIndex: true},
			{Name: "wrote", Value: []byte(`{"others":[["acme","Account","nalice"]]}`), NoIndex: true}}); err != nil {
			t.Fatal(err)
		}
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		blocked("of job gone")
		if err := w.Client.Delete(t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || len(d.kept) != 1 {
			t.Fatalf("%+v, %v, %d certificates", s, err, len(d.kept))
		}
		for _, text := range []string{"alice", "acme"} {
			if found, err := grep(t.Context(), w.Client, text, nil); err != nil || len(found) > 0 {
				t.Errorf("%q is left in %q, %v", text, found, err)
			}
		}
	})
}

// TestEraseBesideALatePage stops a process between a page's reads and its commit, aborts the job,
// and erases the namespace. When the process continues after the certificate was stored, its commit
// must write no key of the namespace.
func TestEraseBesideALatePage(t *testing.T) {
	d := newDrawer(t)
	slow := mapper.Visit("slow", func(context.Context, *mapper.Entity[datastore.PropertyList], mapper.NoParams) error {
		time.Sleep(20 * time.Second)
		return errors.New("no") // the page records the error with the entity's key
	})
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase(), slow), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		w.put("acme", "Account", alice(1)) // only one entity, so that no record of a range contains its key as a bound
		o := &mapper.StartOptions{ID: "late", ExpectedWorkers: 1}
		late, err := slow.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account", AllNamespaces: true},
			mapper.NoParams{}, o)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := late.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.run("erase", mapper.Query{Namespace: "acme"}, "{}", "erasure"); s.State != mapper.StateSucceeded {
			t.Fatalf("%+v", s)
		}
		for range 2 {
			if found, err := grep(t.Context(), w.Client, "alice", nil); err != nil || len(found) > 0 {
				t.Errorf("%q, %v", found, err)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestEraseTicks erases a namespace whose name is in the ID of a job that has prevented a tick of a
// schedule. The schedule's record must lose this ID, and keep the outcome of the tick and its list
// of runs.
func TestEraseTicks(t *testing.T) {
	for _, variant := range []string{"no run", "the run is there", "the run is gone", "the job and the run are gone"} {
		t.Run(variant, func(t *testing.T) {
			d := newDrawer(t)
			nightly := mapper.NewSchedule("nightly", prebuilt.Touch, mapper.OverlapSkip)
			mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
				w := tenancy{t, world}
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				for i := range 60 {
					w.put("acme", "Account", alice(i))
					w.put("other", "Account", fmt.Sprintf("carol-%04d", i))
				}
				tick := func(at time.Time, want mapper.TickOutcome) *mapper.Job {
					t.Helper()
					ticked, err := nightly.Tick(t.Context(), w.Engine, at,
						mapper.Query{Namespace: "other", Kind: "Account"},
						mapper.NoParams{}, nil)
					if err != nil || ticked.Outcome != want {
						t.Fatalf("%+v, %v, want %s", ticked, err, want)
					}
					return ticked.Job
				}
				byHand, err := prebuilt.Touch.Start(t.Context(), w.Engine,
					mapper.Query{Namespace: "acme", Kind: "Account"},
					mapper.NoParams{},
					&mapper.StartOptions{ID: "touch-acme", Rate: mapper.Rate{EntitiesPerSecond: 1}})
				must(err)
				skipped := time.Now()
				tick(skipped, mapper.TickSkipped)
				_, err = byHand.Wait(t.Context())
				must(err)
				if variant != "no run" {
					time.Sleep(time.Hour)
					run := tick(time.Now(), mapper.TickStarted)
					_, err := run.Wait(t.Context())
					must(err)
					if variant == "the job and the run are gone" {
						must(byHand.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}))
					}
					if variant != "the run is there" {
						must(run.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}))
						time.Sleep(24 * time.Hour)
					}
				}
				if found, err := grep(t.Context(), w.Client, "acme", func(kind string, _ *datastore.Key,
					_ datastore.PropertyList) bool {
					return kind != "ScattermapSchedule"
				}); err != nil || len(found) == 0 {
					t.Fatalf("the schedule does not name the job: %v", err)
				}
				w.run("erase", mapper.Query{Namespace: "acme"}, "{}", "erasure")
				d.certificate(t, "erasure")
				if found, err := grep(t.Context(), w.Client, "acme", nil); err != nil || len(found) > 0 {
					t.Errorf("it is left in %q, %v", found, err)
				}
				tick(skipped, mapper.TickSkipped)
				time.Sleep(time.Hour)
				_, err = tick(time.Now(), mapper.TickStarted).Wait(t.Context())
				must(err)
			})
		})
	}
}

// TestEraseQueuedTick erases a word that occurs in the parameters of a waiting tick. JSON escapes
// this word. The erasure succeeds when the tick's run has ended, or when somebody deletes the record
// of the schedule, which the service no longer has.
func TestEraseQueuedTick(t *testing.T) {
	t.Run("the run ends", func(t *testing.T) {
		eraseQueuedTick(t, func(w tenancy, s *mapper.Schedule[prebuilt.SetPropertyParams]) error {
			return s.Advance(w.Context(), w.Engine)
		})
	})
	t.Run("the schedule is removed", func(t *testing.T) {
		eraseQueuedTick(t, func(w tenancy, s *mapper.Schedule[prebuilt.SetPropertyParams]) error {
			return w.Client.Delete(w.Context(), datastore.NameKey("ScattermapSchedule", s.Name(), nil))
		})
	})
}

func eraseQueuedTick(t *testing.T,
	resolve func(w tenancy, s *mapper.Schedule[prebuilt.SetPropertyParams]) error) {
	t.Helper()
	d := newDrawer(t)
	nightly := mapper.NewSchedule("nightly", prebuilt.SetProperty, mapper.OverlapQueue)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		for i := range 60 {
			w.put("acme", "Account", alice(i))
			w.put("other", "Account", fmt.Sprintf("carol-%04d", i))
		}
		q := mapper.Query{Namespace: "other", Kind: "Account"}
		first, err := prebuilt.SetProperty.Start(t.Context(), w.Engine, q,
			prebuilt.SetPropertyParams{Property: "p", Value: prebuilt.Value{V: "x"}},
			&mapper.StartOptions{ID: "by-hand", Rate: mapper.Rate{EntitiesPerSecond: 1}})
		if err != nil {
			t.Fatal(err)
		}
		ticked, err := nightly.Tick(t.Context(), ticking(t, world, nightly), time.Now(), q,
			prebuilt.SetPropertyParams{Property: "p", Value: prebuilt.Value{V: "AT&T"}}, nil)
		if err != nil || ticked.Outcome != mapper.TickQueued {
			t.Fatalf("%+v, %v", ticked, err)
		}
		if _, err := first.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		job := w.start("erase", mapper.Query{Namespace: "acme"}, `{"words": ["AT&T"]}`, "erasure", mapper.Rate{})
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateFailed ||
			!strings.Contains(s.Error, `a tick of the schedule "nightly" waits`) {
			t.Fatalf("%+v, %v", s, err)
		}
		if err := resolve(w, nightly); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err = job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, text := range []string{"AT&T", `AT\u0026T`} {
			if found, err := grep(t.Context(), w.Client, text, nil); err != nil || len(found) > 0 {
				t.Errorf("%q is left in %q, %v", text, found, err)
			}
		}
	})
}

// TestEraseValues erases tenants whose value is a number or a time. Records of earlier jobs contain
// the value in filters, parameters, keys, counters, IDs, and bounds of ranges.
func TestEraseValues(t *testing.T) {
	at := time.Date(2026, 11, 26, 10, 20, 30, 0, time.UTC)
	for _, test := range []struct {
		value any
		json  string
		texts []string // all forms in which records may contain the value
		id    int64
	}{
		{int64(4711471147), "4711471147", []string{"4711471147"}, 4711471147},
		{at, `{"time": "2026-11-26T11:20:30+01:00"}`, []string{"T10:20:30", "T11:20:30", "10:20:30 +0000"}, 7},
	} {
		t.Run(fmt.Sprintf("%T", test.value), func(t *testing.T) {
			d := newDrawer(t)
			mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
				w := tenancy{t, world}
				tenant := datastore.Property{Name: "tenant", Value: test.value}
				for i := range 60 {
					w.put("", "Account", alice(i), tenant)
				}
				key := datastore.IDKey("Account", test.id, nil)
				if _, err := w.Client.Put(t.Context(), key, &datastore.PropertyList{tenant}); err != nil {
					t.Fatal(err)
				}
				all := mapper.Query{Kind: "Account"}
				filtered := mapper.Query{Kind: "Account",
					Filters: []mapper.Filter{mapper.Where("tenant", "=", test.value)}}
				w.run("touch", filtered, "{}", "touched")
				w.run("touch", mapper.Query{Kind: "Account", ShardBy: "tenant"}, "{}", "sharded")
				w.run("touch", mapper.Query{Kind: "Account", Start: key}, "{}", "started")
				w.run("set", all, `{"property": "was", "value": `+test.json+`}`, "set")
				w.run("count", all, `{"by": "tenant"}`, "counted")
				if test.id > 7 {
					w.run("touch", all, "{}", fmt.Sprint("touch-", test.id))
				}
				s := w.run("erase", mapper.Query{}, `{"property": "tenant", "value": `+test.json+`}`, "erasure")
				if d.certificate(t, "erasure"); s.Written != 61 {
					t.Errorf("%d were erased", s.Written)
				}
				for _, text := range test.texts {
					if found, err := grep(t.Context(), w.Client, text, nil); err != nil || len(found) > 0 {
						t.Errorf("%q is left in %q, %v", text, found, err)
					}
				}
			})
		})
	}
}

// TestEraseWaitsLong makes an erasure wait for hours until a clean-up ends. The deliveries that
// wait must not be counted as deaths of their processes, even after a delivery has failed.
func TestEraseWaitsLong(t *testing.T) {
	d := newDrawer(t)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		for i := range 20 {
			w.put("acme", "Account", alice(i))
		}
		w.run("touch", mapper.Query{Namespace: "acme", Kind: "Account"}, "{}", "touched")
		change := func(id string, set map[string]any) {
			t.Helper()
			k := datastore.NameKey("ScattermapJob", id, nil)
			var all datastore.PropertyList
			if err := w.Client.Get(t.Context(), k, &all); err != nil {
				t.Fatal(err)
			}
			for i, p := range all {
				if v, ok := set[p.Name]; ok {
					all[i].Value = v
				}
			}
			if _, err := w.Client.Put(t.Context(), k, &all); err != nil {
				t.Fatal(err)
			}
		}
		change("touched", map[string]any{"cleaning": "broken"}) // makes the clean-up stop
		job := w.start("erase", mapper.Query{Namespace: "acme"}, "{}", "erasure", mapper.Rate{})
		failed := false
		for range 2 * 6 {
			time.Sleep(10 * time.Minute)
			s := w.status("erasure")
			if s.State != mapper.StateRunning {
				t.Fatalf("%+v", s)
			}
			if !failed && strings.Contains(s.Error, "waits to end") {
				change("erasure", map[string]any{"solo": true}) // the state after a delivery that has failed
				failed = true
			}
		}
		if !failed {
			t.Fatal("it did not wait")
		}
		change("touched", map[string]any{"cleaning": ""})
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}

// TestEraseOddProperty erases tenants by a property whose name has quotes or a minus, which
// Google's Go client interprets in filters and orders. The erasure notices an entity that is put
// after its pages have passed.
func TestEraseOddProperty(t *testing.T) {
	for _, property := range []string{"`tenant`", `"tenant"`, "-tenant"} {
		d := newDrawer(t)
		mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
			w := tenancy{t, world}
			of := func(v string) datastore.Property { return datastore.Property{Name: property, Value: v} }
			w.put("", "Account", "a", of("acme"))
			w.put("", "Account", "b", of("umbrella"), datastore.Property{Name: "tenant", Value: "acme"})
			// the erasure has to wait until this job is cleaned up
			w.run("touch", mapper.Query{Kind: "Account"}, `{}`, "earlier")
			params, err := json.Marshal(map[string]string{"property": property, "value": "acme"})
			if err != nil {
				t.Fatal(err)
			}
			erasure := w.start("erase", mapper.Query{Kind: "Account"}, string(params), "erasure", mapper.Rate{})
			time.Sleep(5 * time.Second)
			w.put("", "Account", "late", of("acme"))
			s, err := erasure.Wait(t.Context())
			if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, "were put meanwhile") {
				t.Errorf("%s: status %+v, %v", property, s, err)
			}
			if s := w.run("erase", mapper.Query{Kind: "Account"}, string(params), "again"); s.Written != 1 {
				t.Errorf("%s: %d were erased", property, s.Written)
			}
			if c := d.certificate(t, "again"); c.Tenant == nil || c.Tenant.Property != property {
				t.Errorf("%s: %+v", property, c)
			}
		})
	}
}

// TestEraseMistyped erases a tenant by a property that no entity has, because its name is mistyped.
// The job must store no certificate, and its error must say what to do. A rehearsal shows how many
// entities have the property. With "allow_missing" there is a certificate.
func TestEraseMistyped(t *testing.T) {
	d := newDrawer(t)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		for i := range 5 {
			w.put("", "Account", fmt.Sprint(i), datastore.Property{Name: "tenant", Value: "acme", NoIndex: i == 0})
		}
		run := func(id, params string, dry bool) *mapper.Status {
			t.Helper()
			job, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{}, []byte(params),
				&mapper.StartOptions{ID: id, DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			s, err := job.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		const mistyped = `"property": "tenat", "value": "acme"`
		for property, n := range map[string]int64{"tenat": 0, "tenant": 5} {
			s := run("rehearsed-"+property, fmt.Sprintf(`{"property": %q, "value": "acme"}`, property), true)
			if s.Counters["erase/with property"] != n || s.Written != n {
				t.Errorf("a rehearsal over %s: %+v", property, s)
			}
		}
		s := run("mistyped", "{"+mistyped+"}", false)
		if s.State != mapper.StateFailed || !strings.Contains(s.Error, `has the property "tenat"`) ||
			!strings.Contains(s.Error, "allow_missing") {
			t.Errorf("a mistyped property: %s, %s", s.State, s.Error)
		}
		if len(d.kept) > 0 {
			t.Errorf("%d certificates are kept", len(d.kept))
		}
		if s := run("absent", `{"property": "tenant", "value": "umbrella"}`, false); s.State != mapper.StateSucceeded {
			t.Errorf("a value that no entity has: %s, %s", s.State, s.Error)
		}
		if c := d.certificate(t, "absent"); c.Deleted != 0 || c.WithProperty != 5 {
			t.Errorf("a value that no entity has: %+v", c)
		}
		s = run("allowed", `{"allow_missing": true, `+mistyped+"}", false)
		if c := d.certificate(t, "allowed"); s.State != mapper.StateSucceeded || c.Deleted != 0 || c.WithProperty != 0 {
			t.Errorf("a property that may be missing: %s, %s, %+v", s.State, s.Error, c)
		}
		if n, err := w.Client.Count(t.Context(), datastore.NewQuery("Account")); n != 5 || err != nil {
			t.Errorf("%d accounts, %v", n, err)
		}
		if _, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{Namespace: "x"},
			[]byte(`{"allow_missing": true}`), nil); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a namespace whose property may be missing: %v", err)
		}
	})
}

// TestEraseImpossible refuses to erase a tenant if the end of the job could not look for its value.
func TestEraseImpossible(t *testing.T) {
	d := newDrawer(t)
	mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
		w := tenancy{t, world}
		w.put("", "Account", "a", datastore.Property{Name: "tenant", Value: "acme"})
		long, bytes := strings.Repeat("x", 1501), strings.Repeat("eHh4", 501) // in base64
		for params, want := range map[string]string{
			`{"property": "tenant", "value": "` + long + `"}`:             `"value": a text or blob has more than 1500`,
			`{"property": "tenant", "value": {"bytes": "` + bytes + `"}}`: `"value": a text or blob`,
			`{"property": "tenant", "value": {"bytes": ""}}`:              "whose value is not empty",
			`{"property": "` + long + `", "value": "acme"}`:               `"property" is longer`,
		} {
			_, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{Kind: "Account"}, []byte(params), nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%.60s: %v, want %q", params, err, want)
			}
		}
	})
}
