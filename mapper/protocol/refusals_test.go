package protocol_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// TestBadStarts starts jobs with wrong arguments. Each error must name what is wrong, and nothing
// may be recorded.
func TestBadStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type sized struct{ Size float64 }
		type channel struct{ C chan int }
		type hidden struct{ amount int64 }
		bySize := mapper.Visit("by-size", func(context.Context, *mapper.Entity[account], sized) error { return nil })
		byChannel := mapper.Visit("by-channel", func(context.Context, *mapper.Entity[account], channel) error {
			return nil
		})
		byHidden := mapper.Visit("by-hidden", func(context.Context, *mapper.Entity[account], hidden) error {
			return nil
		})
		stranger := mapper.Visit("add-credit", func(context.Context, *mapper.Entity[account], credit) error {
			return nil
		})
		byMap := mapper.Visit("by-map", func(context.Context, *mapper.Entity[account], map[string]string) error {
			return nil
		})
		byList := mapper.Visit("by-list", func(context.Context, *mapper.Entity[account], struct {
			Only []string `json:",omitempty"`
		}) error {
			return nil
		})
		w := newWorld(t, setting{}, addCredit, bySize, byChannel, byHidden, byMap, byList)
		accounts := mapper.Query{Kind: "Account"}
		start := func(q mapper.Query, o *mapper.StartOptions) error {
			_, err := addCredit.Start(t.Context(), w.engine, q, credit{1}, o)
			return err
		}
		share := func(filters ...mapper.Filter) error {
			return start(mapper.Query{Kind: "Account", Filters: filters}, nil)
		}
		named := func(name, params string) error {
			_, err := w.engine.StartByName(t.Context(), name, accounts, json.RawMessage(params),
				&mapper.StartOptions{AllowEmpty: true})
			return err
		}
		only := func(_ *mapper.Job, err error) error { return err }
		for name, c := range map[string]struct {
			err  error
			want string
		}{
			"unknown mapper": {named("none", "{}"), `unknown mapper "none": have add-credit`},
			"mapper of no engine": {only(stranger.Start(t.Context(), w.engine, accounts, credit{}, nil)),
				"unknown mapper"},
			"no kind":                  {start(mapper.Query{}, nil), "Query.Kind is empty"},
			"reserved kind":            {start(mapper.Query{Kind: "__x__"}, nil), `Query.Kind "__x__" is reserved`},
			"our own ranges":           {start(mapper.Query{Kind: record.RangeKind}, nil), "Query.Kind"},
			"our own jobs":             {start(mapper.Query{Kind: record.JobKind}, nil), "Query.Kind"},
			"long kind":                {start(mapper.Query{Kind: strings.Repeat("x", 1501)}, nil), "Query.Kind"},
			"kind that is not UTF-8":   {start(mapper.Query{Kind: "\xff"}, nil), "Query.Kind"},
			"reserved namespace":       {start(mapper.Query{Kind: "A", Namespace: "__n__"}, nil), "Query.Namespace"},
			"an empty share":           {share(mapper.Share(1, 1, 100)), "from 1 to 1 of 100"},
			"a share of more than all": {share(mapper.Share(0, 101, 100)), "from 0 to 101 of 100"},
			"a share of too many":      {share(mapper.Share(0, 1, 2000)), "1 of 2000 parts"},
			"a share in other words": {share(mapper.Filter{Property: "__key__", Op: "share", Value: "1%"}),
				`not like "0-1/100"`},
			"two shares": {share(mapper.Share(0, 1, 2), mapper.Share(1, 2, 2)), "two shares"},
			"a key in a filter": {share(mapper.Filter{Property: "__key__", Op: "=", Value: "x"}),
				"Query.Start and Query.E"},
			"negative page": {start(accounts, &mapper.StartOptions{PageSize: -1}),
				"StartOptions.PageSize has to be in [1, 1000], it is -1"},
			"large page": {start(accounts, &mapper.StartOptions{PageSize: 1001}), "StartOptions.PageSize"},
			"negative workers": {start(accounts, &mapper.StartOptions{ExpectedWorkers: -1}),
				"StartOptions.ExpectedWorkers"},
			"negative time": {start(accounts, &mapper.StartOptions{PageTime: -1}), "StartOptions.PageTime"},
			"long time": {start(accounts, &mapper.StartOptions{PageTime: time.Hour}),
				"StartOptions.PageTime"},
			"too many workers": {start(accounts, &mapper.StartOptions{ExpectedWorkers: 5001}),
				"StartOptions.ExpectedWorkers has to be in [1, 5000], it is 5001"},
			"fan-out alone": {start(accounts, &mapper.StartOptions{Splitting: mapper.Splitting{FanOut: 2}}),
				"StartOptions.Splitting.First has to be"},
			"bisecting in one": {start(accounts,
				&mapper.StartOptions{Splitting: mapper.Splitting{First: 1, FanOut: 1, Bisect: true}}),
				"Splitting.Bisect"},
			"bisecting from two": {start(accounts,
				&mapper.StartOptions{Splitting: mapper.Splitting{First: 2, FanOut: 10, Bisect: true}}),
				"Splitting.Bisect"},
			"bisecting in many": {start(accounts,
				&mapper.StartOptions{Splitting: mapper.Splitting{First: 1, FanOut: 101, Bisect: true}}),
				"Splitting.Bisect"},
			"reserved ID": {start(accounts, &mapper.StartOptions{ID: "__x__"}),
				`StartOptions.ID "__x__" is reserved`},
			"bad namespace": {start(mapper.Query{Kind: "A", Namespace: "a b"}, nil), `Query.Namespace "a b"`},
			"long namespace": {start(mapper.Query{Kind: "A", Namespace: strings.Repeat("x", 101)}, nil),
				"Query.Namespace"},
			"null params": {named("add-credit", ` null `), "params: they are null"},
			"no engine": {only(addCredit.Start(t.Context(), nil, accounts, credit{}, nil)),
				"the engine is nil"},
			"bad ID": {start(accounts, &mapper.StartOptions{ID: "a/b"}), `StartOptions.ID "a/b"`},
			"long ID": {start(accounts, &mapper.StartOptions{ID: strings.Repeat("x", 101)}),
				"StartOptions.ID"},
			"NaN": {only(bySize.Start(t.Context(), w.engine, accounts, sized{math.NaN()}, nil)),
				"params"},
			"a channel": {only(byChannel.Start(t.Context(), w.engine, accounts, channel{make(chan int)},
				nil)), "params"},
			"unexported fields":      {only(byHidden.Start(t.Context(), w.engine, accounts, hidden{5}, nil)), "params"},
			"params of another type": {named("add-credit", `{"Amount": "ten"}`), "params"},
			"params that are more": {named("add-credit", `{"Amount": 1, "Twice": true}`),
				`params: unknown field "Twice"`},
			"params twice":       {named("add-credit", `{} {}`), "params"},
			"params and a brace": {named("add-credit", `{"Amount": 1}}`), "params"},
			"no params":          {named("add-credit", ``), "params"},
			"an empty map":       {named("by-map", `{}`), ""},
			"an empty list":      {named("by-list", `{"Only": []}`), ""},
			"params too large":   {named("add-credit", `{"Amount": 1`+strings.Repeat(" ", 300<<10)+`}`), ""},
		} {
			switch {
			case c.want == "" && c.err != nil: // for example, a value whose canonical form is small enough
				t.Errorf("%s: %v", name, c.err)
			case c.want != "" && (c.err == nil || !strings.Contains(c.err.Error(), c.want)):
				t.Errorf("%s: error %v, want one with %q", name, c.err, c.want)
			}
		}
		for _, err := range []error{named("none", "{}"),
			only(stranger.Start(t.Context(), w.engine, accounts, credit{}, nil))} {
			if !errors.Is(err, mapper.ErrUnknownMapper) {
				t.Errorf("%v is not ErrUnknownMapper", err)
			}
		}
		time.Sleep(time.Hour)
		if jobs := records(t, w.client); len(jobs) != 3 {
			t.Errorf("%d jobs were recorded, want those with good parameters", len(jobs))
		}
	})
}

func TestBadEngines(t *testing.T) {
	t.Parallel()
	ok := func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil }
	type unsavable struct{ M map[string]int }
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{})
		batches := func(context.Context, []*mapper.Entity[account], mapper.NoParams) error { return nil }
		for name, c := range map[string]struct {
			mappers []mapper.AnyMapper
			want    string
		}{
			"none":       {nil, "EngineOptions.Mappers is empty"},
			"nil":        {[]mapper.AnyMapper{nil}, "EngineOptions.Mappers[0] is nil"},
			"nil mapper": {[]mapper.AnyMapper{(*mapper.Mapper[credit])(nil)}, "EngineOptions.Mappers[0] is nil"},
			"two of a name": {[]mapper.AnyMapper{mapper.Update("a", ok), mapper.Visit("a", ok)},
				`two mappers have the name "a"`},
			"no name":  {[]mapper.AnyMapper{mapper.Update("", ok)}, `the name ""`},
			"bad name": {[]mapper.AnyMapper{mapper.Update("a b", ok)}, `the name "a b"`},
			"no function": {[]mapper.AnyMapper{mapper.Update[account, mapper.NoParams]("a", nil)},
				"the function is nil"},
			"no function over batches": {
				[]mapper.AnyMapper{mapper.UpdateBatches[account, mapper.NoParams]("a", 10, nil)},
				"the function is nil"},
			"no batches": {[]mapper.AnyMapper{mapper.VisitBatches("a", 0, batches)},
				"batches of 0 entities: the size is not in [1, 1000]"},
			"too large batches": {[]mapper.AnyMapper{mapper.UpdateBatches("a", 1001, batches)},
				"batches of 1001 entities: the size is not in [1, 1000]"},
			"not a struct": {
				[]mapper.AnyMapper{mapper.Update("a",
					func(context.Context, *mapper.Entity[int], mapper.NoParams) error {
						return nil
					})}, "neither a struct"},
			"bad struct": {
				[]mapper.AnyMapper{mapper.Update("a",
					func(context.Context, *mapper.Entity[unsavable], mapper.NoParams) error {
						return nil
					})}, "unsupported struct field type"},
		} {
			_, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: c.mappers})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want one with %q", name, err, c.want)
			}
		}
		if _, err := mapper.NewEngine(w.client, w.queue, nil); err == nil {
			t.Error("nil options: no error")
		}
		if _, err := mapper.NewEngine(nil, nil,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}}); err == nil {
			t.Error("nil client and queue: no error")
		}
		if _, err := mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{
				Mappers: []mapper.AnyMapper{mapper.Update("list",
					func(context.Context, *mapper.Entity[datastore.PropertyList], mapper.NoParams) error {
						return nil
					})}}); err != nil {
			t.Errorf("a PropertyLoadSaver: %v", err)
		}
	})
}

// TestNothingToUse makes calls without an engine, a client or a mapper. They must return errors,
// and not panic.
func TestNothingToUse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var none *mapper.Mapper[mapper.NoParams]
	var engine *mapper.Engine
	job := new(mapper.Job)
	_, onNil := none.Start(ctx, engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
	_, onZero := new(mapper.Mapper[mapper.NoParams]).Start(ctx, engine, mapper.Query{Kind: "Account"},
		mapper.NoParams{}, nil)
	_, proof := mapper.VerifyJob(ctx, nil, "j", nil)
	_, status := job.Status(ctx)
	_, _, failures := job.FailuresPage(ctx, "")
	for name, err := range map[string]error{
		"a nil mapper": onNil, "a zero mapper": onZero, "revive": engine.ReviveJobs(ctx), "verify": proof,
		"status":   status,
		"failures": failures,
		"pause":    job.Pause(ctx), "resume": job.Resume(ctx), "abort": job.Abort(ctx), "retry": job.Retry(ctx, nil),
		"clean up": job.CleanUp(ctx, nil),
	} {
		if !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForeignTasks sends the handler bodies that are no tasks of scattermap. If a retry can't help,
// the handler must answer with success, so that the queue deletes the task.
func TestForeignTasks(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef"
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(100)
		w.putAccounts(keys)
		w.wait(w.start(10, &mapper.StartOptions{ID: "real", PageSize: 10}))
		send := func(method, path, body string) int {
			rw := httptest.NewRecorder()
			w.handler.ServeHTTP(rw, httptest.NewRequest(method, "http://worker"+path, strings.NewReader(body)))
			return rw.Code
		}
		for name, c := range map[string]struct {
			method, path, body string
			want               int
		}{
			"empty":        {"POST", "/mapper/range", "", 200},
			"not JSON":     {"POST", "/mapper/range", "\x00\xff", 200},
			"null":         {"POST", "/mapper/range", "null", 200},
			"an array":     {"POST", "/mapper/range", "[]", 200},
			"another type": {"POST", "/mapper/range", `{"job": 5}`, 200},
			"no range":     {"POST", "/mapper/range", `{"job": "real"}`, 200},
			"bad job":      {"POST", "/mapper/range", `{"job": "../x", "range": "` + id + `"}`, 200},
			"bad range":    {"POST", "/mapper/range", `{"job": "real", "range": "x"}`, 200},
			"bad generation": {"POST", "/mapper/range", `{"job": "real", "range": "` + id + `", "generation": -1}`,
				200},
			"no such job":       {"POST", "/mapper/range", `{"job": "gone", "range": "` + id + `"}`, 200},
			"no such range":     {"POST", "/mapper/range", `{"job": "real", "range": "` + id + `"}`, 200},
			"another method":    {"GET", "/mapper/range", "", 405},
			"another path":      {"POST", "/mapper/other", "{}", 404},
			"no path":           {"POST", "/mapper/", "{}", 404},
			"as large as it is": {"POST", "/mapper/range", strings.Repeat("x", 1<<20), 200},
			"larger": {"POST", "/mapper/range", strings.Repeat("x", 1<<20+1),
				http.StatusRequestEntityTooLarge},
		} {
			if got := send(c.method, c.path, c.body); got != c.want {
				t.Errorf("%s: answer %d, want %d", name, got, c.want)
			}
		}
		for _, path := range []string{"sweep", "replay", "finalize", "cleanup"} {
			for body, want := range map[string]int{
				"":                                       200,
				"\x00\xff":                               200,
				"null":                                   200,
				`{"job": 5}`:                             200,
				`{"job": "gone"}`:                        200,
				`{"job": "../x"}`:                        200,
				`{"job": "real", "epoch": 77}`:           200,
				`{"job": "real", "after": "../x"}`:       200,
				`{"job": "real", "tick": -5}`:            200,
				`{"job": "real", "all": true}`:           200,
				strings.Repeat("x", 1<<20):               200,
				strings.Repeat("x", 1<<20+1):             http.StatusRequestEntityTooLarge,
				`{"job": "real", "tick": 1e300}`:         200,
				`{"job": "real", "epoch": 0, "tick": 9}`: 200,
			} {
				if got := send("POST", "/mapper/"+path, body); got != want {
					t.Errorf("%s: %.50q: answer %d, want %d", path, body, got, want)
				}
			}
			if got := send("PUT", "/mapper/"+path, "{}"); got != http.StatusMethodNotAllowed {
				t.Errorf("%s: PUT: answer %d", path, got)
			}
		}
		w.wantBalances(keys, 10)
	})
}

// FuzzDeliveries sends arbitrary bodies to all paths while a job runs. The handler must not panic,
// no task may be retried, and the job must end as usual.
func FuzzDeliveries(f *testing.F) {
	paths := []string{"range", "sweep", "replay", "finalize", "cleanup", "revive"}
	for i, body := range []string{"", "null", `{"job": "half"}`, `{"job": "half", "epoch": 1}`,
		`{"job": "half", "epoch": 1, "all": true, "tick": -9223372036854775808}`,
		`{"job": "half", "after": "ffffffffffffffffffffffffffffffff"}`} {
		f.Add(uint8(i), []byte(body))
	}
	f.Fuzz(func(t *testing.T, path uint8, body []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{queue: few(1)}, addCredit)
			keys := names(20)
			w.putAccounts(keys)
			job := w.start(10, &mapper.StartOptions{ID: "half", PageSize: 5})
			_ = job.Pause(t.Context()) // returns an error if the job has ended
			rw := httptest.NewRecorder()
			w.handler.ServeHTTP(rw, httptest.NewRequest(http.MethodPost, "http://worker/mapper/"+
				paths[int(path)%len(paths)], bytes.NewReader(body)))
			if rw.Code != http.StatusOK && len(body) <= 1<<20 {
				t.Errorf("answer %d", rw.Code)
			}
			_ = job.Resume(t.Context())
			w.wait(job)
			w.wantBalances(keys, 10)
		})
	})
}

// TestMapperOfAnotherBuild delivers a task to a build without its mapper. The task must wait for a
// build that has the mapper, and the status must say so.
func TestMapperOfAnotherBuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := mapper.Visit("other", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		})
		w := newWorld(t, setting{}, addCredit)
		old, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{other}})
		if err != nil {
			t.Fatal(err)
		}
		current := w.handler
		w.handler = old.Handler()
		keys := names(100)
		w.putAccounts(keys)
		job := w.start(10, &mapper.StartOptions{PageSize: 10})
		time.Sleep(5 * time.Minute)
		w.wantBalances(keys, 0)
		if s := w.status(job); !strings.Contains(s.Error, "a build that has the mapper add-credit") {
			t.Errorf("status %+v", s)
		}
		w.handler = current
		w.wait(job)
		w.wantBalances(keys, 10)
	})
}

// TestNewRefusesPlainClients creates engines with several kinds of Datastore clients. A client
// without mapper.ClientOption can't read entities byte for byte, and must be refused. The error
// must say what to do, and the check must make no call of the database.
func TestNewRefusesPlainClients(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	w := newWorld(t, setting{})
	for name, c := range map[string]struct {
		make func() (*datastore.Client, error)
		want string
	}{
		"NewClient": {func() (*datastore.Client, error) { return mapper.NewClient(t.Context(), "test") }, ""},
		"NewClientWithDatabase": {func() (*datastore.Client, error) {
			return mapper.NewClientWithDatabase(t.Context(), "test", "other")
		}, ""},
		"the option": {func() (*datastore.Client, error) {
			return datastore.NewClient(t.Context(), "test", mapper.ClientOption())
		}, ""},
		"twice": {func() (*datastore.Client, error) {
			return mapper.NewClient(t.Context(), "test", mapper.ClientOption())
		}, ""},
		"plain": {func() (*datastore.Client, error) { return datastore.NewClient(t.Context(), "test") },
			"mapper.NewClient"},
	} {
		client, err := c.make()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		before := e.Usage()
		_, err = mapper.NewEngine(client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if used := e.Usage().Sub(before).Reads; used != 0 {
			t.Errorf("%s: %d reads", name, used)
		}
	}
}

// TestNoClient makes clients without a project and without credentials. The errors must name the
// service, and the variable that makes the client call an emulator.
func TestNoClient(t *testing.T) {
	for _, name := range []string{"DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST", "DATASTORE_PROJECT_ID"} {
		t.Setenv(name, "")
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
	_, project := mapper.NewClient(t.Context(), "")
	_, credentials := mapper.NewClient(t.Context(), "test")
	_, queues := tasks.NewClient(t.Context())
	for name, c := range map[string]struct {
		err         error
		says, hints string
	}{
		"no project":                 {project, `Datastore for the project ""`, "DATASTORE_EMULATOR_HOST"},
		"no credentials":             {credentials, `Datastore for the project "test"`, "DATASTORE_EMULATOR_HOST"},
		"no credentials of a client": {queues, "Cloud Tasks", "CLOUD_TASKS_EMULATOR_HOST"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.says) || !strings.Contains(c.err.Error(), c.hints) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// TestDefaultDatabaseByName opens the default database by its name in gcloud, "(default)".
func TestDefaultDatabaseByName(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	key, found := names(1)[0], new(account)
	for _, database := range []string{"", "(default)"} {
		client, err := mapper.NewClientWithDatabase(t.Context(), "test", database)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if database == "" {
			if _, err := client.Put(t.Context(), key, &account{Balance: 7}); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Get(t.Context(), key, found); err != nil || found.Balance != 7 {
			t.Errorf("the database %q: %+v, %v", database, found, err)
		}
	}
}

// A denial refuses one of the calls that are made with its context, like a server if the account
// lacks a role. The order of concurrent calls is random, so it counts only the calls of one method.
type denial struct {
	method string // the method whose calls are counted; empty: no call is refused
	after  int    // number of calls of the method before the refused one

	mu    sync.Mutex
	calls map[string]int // number of calls so far, by method
	did   bool
}

type denialKey struct{}

// refuses counts a call of a method, and reports whether it must be refused.
func (r *denial) refuses(method string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = make(map[string]int)
	}
	r.calls[method]++
	now := method == r.method && r.calls[method] == r.after+1
	r.did = r.did || now
	return now
}

func refuse(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if r, ok := ctx.Value(denialKey{}).(*denial); ok && r.refuses(path.Base(method)) {
		return status.Error(codes.PermissionDenied, "the account lacks a role")
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// A refusedWorld is a world with an operator, one of whose calls may be refused. The methods below
// bring its job "j" into some state.
type refusedWorld struct {
	*world
	mapper   *mapper.Mapper[mapper.NoParams]
	operator *mapper.Engine
	job      *mapper.Job // the job, as the operator's engine sees it
}

func newRefusedWorld(t *testing.T) *refusedWorld {
	w := new(refusedWorld)
	w.mapper = mapper.Update("refused", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(10 * time.Millisecond)
		if strings.HasSuffix(a.Key.Name, "7") {
			return mapper.Permanent(errors.New("no"))
		}
		a.Value.Balance += 10
		return nil
	})
	w.world = newWorld(t, setting{queue: few(2)}, w.mapper)
	w.putAccounts(names(30))
	intercept := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(refuse))
	database, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(), intercept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Close() })
	client, err := w.emulator.TasksClient(t.Context(), intercept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	queue, err := tasks.NewQueue(client, queueName, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.operator, err = mapper.NewEngine(database, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{w.mapper},
		Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	w.job = w.operator.Job("j")
	bridge.Tick(w.engine, "refused")
	bridge.Tick(w.operator, "refused")
	return w
}

// start starts the job, some of whose entities fail.
func (w *refusedWorld) start(ctx context.Context, e *mapper.Engine) error {
	o := &mapper.StartOptions{ID: "j", PageSize: 5, ExpectedWorkers: 2}
	_, err := w.mapper.Start(ctx, e, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
	return err
}

// ran starts the job, and waits until it has ended.
func (w *refusedWorld) ran() {
	w.Helper()
	if err := w.start(w.Context(), w.engine); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

// undone runs and undoes the job. It changes some entities in between, which the undo then can't
// restore.
func (w *refusedWorld) undone() {
	w.Helper()
	w.ran()
	w.putAccounts(names(3))
	if _, err := w.engine.Job("j").Undo(w.Context(), nil); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

func (w *refusedWorld) schedule() *mapper.Schedule[mapper.NoParams] {
	return mapper.NewSchedule("refused", w.mapper, mapper.OverlapQueue)
}

// tick calls the tick of a schedule for a day.
func (w *refusedWorld) tick(ctx context.Context, e *mapper.Engine, day int) error {
	_, err := w.schedule().Tick(ctx, e, midnight.AddDate(0, 0, day), mapper.Query{Kind: "Account"}, mapper.NoParams{},
		nil)
	return err
}

// ticked starts a run of the schedule, and does not wait for its end.
func (w *refusedWorld) ticked() {
	w.Helper()
	if err := w.tick(w.Context(), w.engine, 0); err != nil {
		w.Fatal(err)
	}
}

// waits lets a tick wait for the schedule's last run, until that run has ended.
func (w *refusedWorld) waits() {
	w.Helper()
	w.ticked()
	if err := w.tick(w.Context(), w.engine, 1); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

// running starts the job, and does not wait for its end.
func (w *refusedWorld) running() {
	w.Helper()
	if err := w.start(w.Context(), w.engine); err != nil {
		w.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
}

// A refusedOperation is an operation of an operator, one of whose calls is refused.
type refusedOperation struct {
	before func(*refusedWorld)
	do     func(context.Context, *refusedWorld) error
	helps  []string // methods of the calls without which the operation still succeeds
}

func errOf[T any](_ T, err error) error          { return err }
func errOf2[T, U any](_ T, _ U, err error) error { return err }

// surveys are the calls by which a start finds out how to divide its job. If one is refused, the
// job's first task does this.
var surveys = []string{"Lookup", "RunAggregationQuery", "RunQuery", "RunQuery", "RunQuery", "RunQuery", "RunQuery"}

// refusedOperations are all operations on jobs. The calls in helps only read the state of a queue,
// or details for a log line.
var refusedOperations = map[string]refusedOperation{
	"start": {
		do:    func(ctx context.Context, w *refusedWorld) error { return w.start(ctx, w.operator) },
		helps: append([]string{"GetQueue"}, surveys...),
	},
	"pause": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Pause(ctx) },
		helps:  []string{"RunQuery"},
	},
	"resume": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Resume(ctx) },
	},
	"abort": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Abort(ctx) },
		helps:  []string{"RunQuery"},
	},
	"retry": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Retry(ctx, nil) },
		helps:  []string{"RunQuery"},
	},
	"retry of a cause": {
		before: (*refusedWorld).ran,
		do: func(ctx context.Context, w *refusedWorld) error {
			return w.job.Retry(ctx, &mapper.RetryOptions{Cause: "no"})
		},
		helps: []string{"RunQuery"},
	},
	"undo": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Undo(ctx, nil)) },
		helps:  []string{"GetQueue"},
	},
	"clean up": {
		before: (*refusedWorld).ran,
		do: func(ctx context.Context, w *refusedWorld) error {
			return w.job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
		},
	},
	"set rate": {
		before: (*refusedWorld).running,
		do: func(ctx context.Context, w *refusedWorld) error {
			return w.job.SetRateFor(ctx, mapper.Rate{EntitiesPerSecond: 100}, time.Hour)
		},
	},
	"status": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Status(ctx)) },
	},
	"status of a job that runs": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Status(ctx)) },
		helps:  []string{"GetTask", "GetTask"},
	},
	"history": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.History(ctx)) },
	},
	"failures": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf2(w.job.FailuresPage(ctx, "")) },
	},
	"causes": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.FailureCauses(ctx)) },
	},
	"left": {
		before: (*refusedWorld).undone,
		do: func(ctx context.Context, w *refusedWorld) error {
			return errOf2(w.operator.Job("undo-j").NotUndonePage(ctx, ""))
		},
	},
	"examples": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Examples(ctx)) },
	},
	"verify": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Verify(ctx, nil)) },
	},
	"verify entities": {
		before: (*refusedWorld).ran,
		do: func(ctx context.Context, w *refusedWorld) error {
			return errOf(w.job.Verify(ctx, &mapper.VerifyOptions{Entities: true}))
		},
	},
	"list jobs": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf2(w.operator.JobsPage(ctx, nil, "")) },
	},
	"tick": {
		do:    func(ctx context.Context, w *refusedWorld) error { return w.tick(ctx, w.operator, 0) },
		helps: append([]string{"GetQueue"}, surveys...),
	},
	"tick that waits": {
		before: (*refusedWorld).ticked,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.tick(ctx, w.operator, 1) },
		helps:  []string{"GetQueue"},
	},
	"advance": {
		before: (*refusedWorld).waits,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.schedule().Advance(ctx, w.operator) },
		// Two of these calls check once more whether the tick must wait.
		helps: append([]string{"Lookup", "Lookup", "GetQueue"}, surveys...),
	},
	"revive": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.operator.ReviveJobs(ctx) },
		helps:  []string{"RunQuery", "GetTask", "GetTask"},
	},
	"ready": {do: func(ctx context.Context, w *refusedWorld) error { return w.operator.CheckReady(ctx) }},
}

// TestRefusedCalls runs every operation of an operator, and refuses another one of its calls each
// time. The operation must fail and say why. If the call is only helpful, the operation must
// succeed.
func TestRefusedCalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, op := range refusedOperations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(r *denial) (err error) {
				synctest.Test(t, func(t *testing.T) {
					w := newRefusedWorld(t)
					if op.before != nil {
						op.before(w)
					}
					defer time.Sleep(10 * time.Minute) // until everything that the operation has started has ended
					err = op.do(context.WithValue(t.Context(), denialKey{}, r), w)
				})
				return err
			}
			all := new(denial)
			if err := run(all); err != nil || len(all.calls) == 0 {
				t.Errorf("with no call refused: %v after calls of %v", err, all.calls)
			}
			helps := slices.Clone(op.helps)
			for _, method := range slices.Sorted(maps.Keys(all.calls)) {
				for after := 0; ; after++ {
					r := &denial{method: method, after: after}
					err := run(r)
					if !r.did {
						break
					}
					if err != nil {
						if !strings.Contains(err.Error(), "lacks a role") {
							t.Errorf("%s is refused, and it says %v", method, err)
						}
						continue
					}
					i := slices.Index(helps, method)
					if i < 0 {
						t.Errorf("%s, its call %d, is refused, and it says nothing", method, after+1)
						break
					}
					helps = slices.Delete(helps, i, i+1)
				}
			}
		})
	}
}
