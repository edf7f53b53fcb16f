package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const (
	location  = "projects/test/locations/here"
	queueName = location + "/queues/mapper"
)

// An account is the entity of the kind Account.
type account struct{ Balance int64 }

// Extra is a struct of parameters of many types, nested in TextParams.
type Extra struct {
	Dry   bool          `json:"dry,omitempty"`
	Tags  []string      `json:"tags,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`
	Since time.Time     `json:"since,omitzero"`
	Top   *int          `json:"top,omitempty"`
}

// TextParams are the parameters of the mapper credit.
type TextParams struct {
	Amount int64
	Note   string `json:"note,omitempty"`
	Extra  Extra  `json:"extra,omitzero"`
}

// A world is an engine with an emulated database and queue, and a dashboard. Its mappers add to
// accounts; the fields below slow them down or make them fail.
type world struct {
	emulator *emulator.Emulator
	client   *datastore.Client
	queues   *cloudtasks.Client
	mappers  []mapper.AnyMapper
	engine   *mapper.Engine
	url      string // the dashboard's URL

	refuses atomic.Bool  // whether the service refuses all deliveries
	slow    atomic.Int64 // how long the function takes for an entity, in nanoseconds
	hot     atomic.Int64 // the ID of the first of 80 accounts for which the function takes eight times as long
	all     atomic.Bool  // whether the function, if it fails, fails for all accounts
	busy    atomic.Bool  // whether the service that the mapper mail calls refuses calls
	late    atomic.Int64 // how long that service takes for a call, in nanoseconds
	fails   atomic.Bool  // whether the function fails for some accounts
	error   atomic.Value // the text of the function's error
	uploads atomic.Int64 // number of pages that the mapper upload has processed; it fails after 60
}

// newWorld returns a world with a dashboard that is mounted at /some/where/.
func newWorld(t testing.TB, o *dashboard.Options) *world {
	t.Helper()
	w := newEngine(t)
	w.url = w.serve(t, o)
	return w
}

// newEngine returns a world without a dashboard.
func newEngine(t testing.TB) *world {
	t.Helper()
	w := new(world)
	var handler http.Handler
	w.emulator = emulator.ForTest(t,
		&emulator.Options{
			Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if w.refuses.Load() {
					rw.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				handler.ServeHTTP(rw, r)
			}))})
	var err error
	if w.client, err = w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	taskClient, err := w.emulator.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	w.queues = taskClient
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 8},
		}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, queueName, "http://tasks.test/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	credit := mapper.Update("credit", func(ctx context.Context, e *mapper.Entity[account], p TextParams) error {
		if d := time.Duration(w.slow.Load()); d > 0 {
			if from := w.hot.Load(); from > 0 && e.Key.ID >= from && e.Key.ID < from+80 {
				d *= 8
			}
			time.Sleep(d)
		}
		if w.fails.Load() && (e.Key.ID%97 == 0 || w.all.Load()) {
			text, _ := w.error.Load().(string)
			if text == "" {
				text = fmt.Sprintf("account %d is closed", e.Key.ID)
			}
			return mapper.Permanent(errors.New(text))
		}
		e.Value.Balance += p.Amount
		e.Count("credited", 1)
		if p.Note != "" {
			e.Count(p.Note, 1)
		}
		return nil
	})
	look := mapper.Visit("look", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
	mail := mapper.Visit("mail", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(time.Duration(w.late.Load()))
		if w.busy.Load() && e.Key.ID%3 != 0 {
			return mapper.RetryAfter(errBusy, 10*time.Second)
		}
		return nil
	})
	upload := mapper.VisitPages("upload",
		func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) (int64, error) {
			return e.Value.Balance, nil
		},
		func(context.Context, *mapper.Page[int64], mapper.NoParams) error {
			time.Sleep(20 * time.Millisecond)
			if w.uploads.Add(1) > 60 {
				return mapper.Permanent(errors.New("warehouse: 403 Forbidden: the table accounts is read-only"))
			}
			return nil
		})
	w.mappers = []mapper.AnyMapper{credit, look, mail, upload}
	if w.engine, err = mapper.NewEngine(w.client, queue,
		&mapper.EngineOptions{Mappers: w.mappers, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	handler = w.engine.Handler()
	return w
}

// serve serves another dashboard of the world's engine, with the given options.
func (w *world) serve(t testing.TB, o *dashboard.Options) (url string) {
	if o == nil {
		o = new(dashboard.Options)
	}
	opts := *o
	if opts.Allow == nil {
		opts.Allow = auth.Loopback
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.Handle("/some/where/", dashboard.NewHandler(w.engine, &opts))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/some/where/"
}

// putAccounts puts n accounts with the IDs from 1 on. Their balances are their positions.
func (w *world) putAccounts(t testing.TB, n int) {
	t.Helper()
	w.putBalances(t, n, 0)
}

// putBalances is like putAccounts. It adds a number to the balances.
func (w *world) putBalances(t testing.TB, n int, more int64) {
	t.Helper()
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		var all []account
		for i := first; i < min(n, first+500); i++ {
			keys, all = append(keys, datastore.IDKey("Account", int64(i+1), nil)), append(all, account{int64(i) + more})
		}
		if _, err := w.client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// start starts a job, and does not wait for it.
func (w *world) start(t testing.TB, id string, params string, o mapper.StartOptions) *mapper.Job {
	t.Helper()
	o.ID = id
	job, err := w.engine.StartByName(mapper.WithReason(mapper.WithCaller(t.Context(), "ann@example.com"),
		"the spring campaign"), "credit", mapper.Query{Kind: "Account"}, []byte(params), &o)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// run runs a job to its end.
func (w *world) run(t testing.TB, id string, params string, o mapper.StartOptions) *mapper.Status {
	t.Helper()
	s, err := w.start(t, id, params, o).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// get gets a page. It returns the code and the body of the answer.
func get(t testing.TB, url, accept string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	return send(t, r)
}

// post posts a form, with further headers as names and values. It returns the code and the body of
// the answer.
func post(t testing.TB, url, form string, headers ...string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return send(t, r)
}

func send(t testing.TB, r *http.Request) (code int, text string) {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// accountKey returns the key of an account.
func accountKey(id int64) *datastore.Key { return datastore.IDKey("Account", id, nil) }

// rangeOf returns the ID of a range of a job: a failed one, if there is one.
func (w *world) rangeOf(t testing.TB, job string) string {
	t.Helper()
	_, text := get(t, w.url+"job?id="+job+"&format=json", "")
	var page struct {
		Ranges []struct{ ID, State string }
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		t.Fatalf("%v: %.200s", err, text)
	}
	id := ""
	for _, r := range page.Ranges {
		if id == "" || r.State == "failed" {
			id = r.ID
		}
	}
	return id
}
