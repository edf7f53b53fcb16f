package protocol_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/tasks"
)

const (
	location  = "projects/test/locations/here"
	queueName = location + "/queues/mapper"
	target    = "http://worker/mapper/"
)

// A world is everything that a job needs: a database, a queue, and an engine that handles the
// queue's deliveries. All of it is in this process and in virtual time.
type world struct {
	*testing.T
	emulator *emulator.Emulator
	client   *datastore.Client
	queue    *tasks.Queue
	engine   *mapper.Engine

	// handler receives the queue's deliveries. By default it is the engine's.
	handler http.Handler
	options []option.ClientOption // options of the Datastore clients

	more   func(*mapper.EngineOptions) // changes the options of the engines; nil: no change
	others []string                    // names of further queues that the engines have
	clocks time.Duration               // how much the clock of a fleet's process may differ from the queue's clock

	mu            sync.Mutex // guards ending; when ending is set, no delivery starts any more
	ending        bool
	deliveries    sync.WaitGroup
	running, most atomic.Int64 // number of deliveries that are running, and the maximum so far
}

// A setting determines how a world is created.
type setting struct {
	emulator emulator.Options
	queue    *cloudtaskspb.Queue
	client   *datastore.Client // used instead of a client of the embedded Datastore
	log      io.Writer         // gets the log instead of the test's output
	deadline time.Duration     // the queue's deadline for a delivery
	// whether the database tells no versions of entities, so that pages commit in transactions
	plain bool
}

func newWorld(t *testing.T, s setting, mappers ...mapper.AnyMapper) *world {
	t.Helper()
	w := &world{T: t}
	w.options = append(w.options, mapper.ClientOption())
	if s.plain {
		w.options = append(w.options, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(withoutVersions)))
	}
	s.emulator.Transport = emulator.HandlerTransport(w)
	w.emulator = emulator.ForTest(t, &s.emulator)
	if w.client = s.client; w.client == nil {
		client, err := w.emulator.DatastoreClient(t.Context(), "test", w.options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		w.client = client
	}
	if s.queue == nil {
		s.queue = new(cloudtaskspb.Queue)
	}
	s.queue.Name = queueName
	client, err := w.emulator.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: s.queue}); err != nil {
		t.Fatal(err)
	}
	w.queue, err = tasks.NewQueue(client, queueName, target,
		&tasks.Options{InsecureSkipVerify: true, DispatchDeadline: s.deadline})
	if err != nil {
		t.Fatal(err)
	}
	if s.log == nil {
		s.log = t.Output()
	}
	if len(mappers) > 0 {
		w.engine, err = mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(s.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		bridge.Seed(w.engine, 1)
		w.handler = w.engine.Handler()
	}
	t.Cleanup(w.end)
	return w
}

// withoutVersions is an interceptor that removes the versions of entities from answers, as of a
// database that does not tell them. So all pages commit in transactions.
func withoutVersions(
	ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, resp, conn, opts...)
	var results []*datastorepb.EntityResult
	switch resp := resp.(type) {
	case *datastorepb.RunQueryResponse:
		results = resp.GetBatch().GetEntityResults()
	case *datastorepb.LookupResponse:
		results = resp.GetFound()
	case *datastorepb.CommitResponse:
		for _, r := range resp.GetMutationResults() {
			r.Version = 0
		}
	}
	for _, r := range results {
		r.Version = 0
	}
	return err
}

// end waits until all running deliveries have ended, so that the database can be closed. Then it
// checks the records.
func (w *world) end() {
	w.settle()
	checkInvariants(w, w.client)
}

// settle waits until all running deliveries have ended, and prevents further ones.
func (w *world) settle() {
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	w.deliveries.Wait()
}

// begin registers the start of a delivery. It returns false if the test has ended.
func (w *world) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ending {
		w.deliveries.Add(1)
	}
	return !w.ending
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !w.begin() {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer w.deliveries.Done()
	n := w.running.Add(1)
	defer w.running.Add(-1)
	for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
	}
	w.handler.ServeHTTP(rw, r)
}

type account struct {
	Balance int64
	Owner   string
}

type credit struct{ Amount int64 }

// addCredit is an Update that adds an amount to the balance of each account. Most tests run it.
var addCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// putAccounts puts accounts with the given keys. Each account has a different balance.
func (w *world) putAccounts(keys []*datastore.Key) {
	w.Helper()
	for start := 0; start < len(keys); start += 400 {
		batch := keys[start:min(start+400, len(keys))]
		accounts := make([]account, len(batch))
		for i := range accounts {
			accounts[i] = account{Balance: int64(start + i), Owner: fmt.Sprint("owner ", start+i)}
		}
		if _, err := w.client.PutMulti(w.Context(), batch, accounts); err != nil {
			w.Fatal(err)
		}
	}
}

// names returns the keys of n accounts.
func names(n int) []*datastore.Key {
	keys := make([]*datastore.Key, n)
	for i := range keys {
		keys[i] = datastore.NameKey("Account", fmt.Sprintf("user-%07d", i), nil)
	}
	return keys
}

// account reads an account from the database.
func (w *world) account(key *datastore.Key) (a account) {
	w.Helper()
	if err := w.client.Get(w.Context(), key, &a); err != nil {
		w.Fatal(err)
	}
	return a
}

// wantBalances checks that the balance of every account is its first balance plus amount.
func (w *world) wantBalances(keys []*datastore.Key, amount int64) {
	w.Helper()
	wrong := 0
	for start := 0; start < len(keys); start += 1000 {
		batch := keys[start:min(start+1000, len(keys))]
		accounts := make([]account, len(batch))
		if err := w.client.GetMulti(w.Context(), batch, accounts); err != nil {
			w.Fatal(err)
		}
		for i, a := range accounts {
			if want := int64(start+i) + amount; a.Balance != want || a.Owner != fmt.Sprint("owner ", start+i) {
				if wrong++; wrong <= 3 {
					w.Errorf("%v: %+v, want the balance %d", batch[i], a, want)
				}
			}
		}
	}
	if wrong > 3 {
		w.Errorf("%d of %d accounts are wrong", wrong, len(keys))
	}
}

// start starts a job of addCredit over all accounts.
func (w *world) start(amount int64, o *mapper.StartOptions) *mapper.Job {
	w.Helper()
	job, err := addCredit.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{amount}, o)
	if err != nil {
		w.Fatal(err)
	}
	return job
}

// longestJob is how long a test waits for the end of a job, in virtual time.
const longestJob = time.Hour

// wait waits for the end of a job, checks that it has succeeded, and returns its status.
func (w *world) wait(job *mapper.Job) *mapper.Status {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), longestJob)
	defer cancel()
	status, err := job.Wait(ctx)
	if err != nil {
		w.Fatal(err)
	}
	if err := status.Err(); err != nil {
		failures, _, err := job.FailuresPage(w.Context(), "")
		w.Errorf("%v: %+v, %v", status.Err(), failures, err)
	}
	time.Sleep(time.Millisecond) // so that later events have a later time than the job's end
	return status
}

// letRun returns when a job does not run any more, or later by at most a tenth of its time. In
// virtual time a job may take days. Job.Wait would then read its record every two seconds, which
// would be most of a test's work. So a test calls letRun first.
func letRun(ctx context.Context, e *mapper.Engine, job *mapper.Job) {
	begun := time.Now()
	for ctx.Err() == nil {
		jobs, _, err := e.JobsPage(ctx, nil, "")
		i := slices.IndexFunc(jobs, func(j mapper.JobInfo) bool { return j.ID == job.ID })
		if err == nil && (i < 0 || jobs[i].State != mapper.StateRunning) {
			return
		}
		time.Sleep(min(max(time.Since(begun)/10, 50*time.Millisecond), 5*time.Minute))
	}
}

// A logged is a writer that keeps the log of a process. It can be used by several goroutines.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns everything that was logged so far.
func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count returns how many times the log contains a text.
func (l *logged) count(text string) int { return strings.Count(l.String(), text) }

func TestMain(m *testing.M) { googletest.Main(m) }

// onEach runs a test on the embedded Datastore, and on each of Google's emulators that is
// installed.
func onEach(t *testing.T, test func(t *testing.T, client *datastore.Client)) {
	t.Run("embedded", func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		test(t, client)
	})
	t.Run("google", func(t *testing.T) { test(t, googletest.Client(t, google.Classic)) })
	t.Run("firestore", func(t *testing.T) { test(t, googletest.Client(t, google.Firestore)) })
}
