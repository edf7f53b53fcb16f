package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// asService is an environment variable that makes the tests' binary run as the service. The value
// asItIs means the service without changes. The value withTrouble adds mappers that cause trouble.
const (
	asService   = "CLOUDRUN_TEST_SERVICE"
	asItIs      = "as it is"
	withTrouble = "with trouble"
)

// TestMain runs the tests, or the service if the environment variable asService is set. Tests start
// such processes.
func TestMain(m *testing.M) {
	switch os.Getenv(asService) {
	case withTrouble:
		mappers = append(mappers, deadly, doomed, slow, noted)
		main()
	case asItIs:
		main()
	default:
		testflag.AtOnce(8)
		googletest.Main(m)
	}
}

// A fleet is several processes of the service, called members, and a load balancer in front of
// them. Members that end are replaced.
type fleet struct {
	*testing.T
	env   []string
	front *httptest.Server

	// route returns the index of the member that gets a request. By default the member is random.
	route func(r *http.Request) int

	mu      sync.Mutex
	members []*member
	ended   bool
	deaths  int
	codes   []int // the exit codes of members that have ended
	all     sync.WaitGroup
}

type member struct {
	process *exec.Cmd
	url     *url.URL
}

func newFleet(t *testing.T, size int, env ...string) *fleet {
	t.Helper()
	f := &fleet{T: t, members: make([]*member, size)}
	f.front = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			f.mu.Lock()
			defer f.mu.Unlock()
			i := rand.IntN(len(f.members))
			if f.route != nil {
				i = f.route(r.In)
			}
			r.SetURL(f.members[i].url)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(f.front.Close)
	f.env = append(append(os.Environ(), env...), "AUTH=off", "SERVICE_URL="+f.front.URL, asService+"="+withTrouble)
	for i := range f.members {
		f.start(i)
	}
	t.Cleanup(func() {
		f.mu.Lock()
		f.ended = true
		f.mu.Unlock()
		for i := range f.members {
			f.kill(i)
		}
		f.all.Wait()
	})
	return f
}

// start starts a member, and starts it again whenever it ends. It may take a moment until a member
// answers requests.
func (f *fleet) start(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	port := freePort(f.T)
	m := &member{process: exec.Command(os.Args[0]), url: &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}}
	m.process.Env = append(f.env[:len(f.env):len(f.env)], "PORT="+port)
	if err := m.process.Start(); err != nil {
		f.Error(err)
		return
	}
	f.members[i] = m
	f.all.Go(func() {
		_ = m.process.Wait()
		f.mu.Lock()
		f.deaths++
		f.codes = append(f.codes, m.process.ProcessState.ExitCode())
		f.mu.Unlock()
		f.start(i)
	})
}

// kill ends a member by SIGKILL.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.members[i].process.Process.Kill() // an error means that the process has already ended
}

// signal sends a signal to the process of a member.
func (f *fleet) signal(i int, s os.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.members[i].process.Process.Signal(s); err != nil {
		f.Error(err)
	}
}

// died returns the number of processes that have ended.
func (f *fleet) died() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deaths
}

// TestKilledHandlers kills the processes of a job by SIGKILL repeatedly. Every account is credited
// exactly once. A usual run has jobs on the embedded Datastore and on the classic emulator.
func TestKilledHandlers(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves crashes of processes out")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		accounts int
		addr     func(t *testing.T, e *emulator.Emulator) string
	}{
		"embedded": {testflag.Size(t, 0, 4000, 40_000), func(_ *testing.T, e *emulator.Emulator) string {
			return e.DatastoreAddr()
		}},
		"google": {testflag.Size(t, 0, 1500, 6000), func(t *testing.T, _ *emulator.Emulator) string {
			return googletest.Addr(t, google.Classic)
		}},
		"firestore": {testflag.Size(t, 0, 1500, 6000), func(t *testing.T, _ *emulator.Emulator) string {
			return googletest.Addr(t, google.Firestore)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "firestore" {
				nightly.Leave(t)
			}
			t.Parallel()
			slow := faults.New(1,
				faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: 20 * time.Millisecond,
					Max: 120 * time.Millisecond}})
			slow.Pause()
			e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0",
				Faults: slow})
			killedHandlers(t, e, slow, c.addr(t, e), c.accounts, testflag.Size(t, 0, 10, 20))
		})
	}
}

// killedHandlers runs jobs over n accounts, until it has killed at least the given number of their
// processes.
func killedHandlers(t *testing.T, e *emulator.Emulator, slow *faults.Faults, addr string, n, least int) {
	f, client, engine := newCloud(t, e, addr, n, 4, bank.AddCredit)
	slow.Resume()
	// Run jobs until enough processes were killed.
	kills, jobs, pages := 0, int64(0), int64(0)
	for ; kills < least; jobs++ {
		job, err := bank.AddCredit.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, bank.Credit{Amount: 10},
			&mapper.StartOptions{ID: fmt.Sprint("crash-", jobs), PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		for ended, first := false, kills; kills < first+25 && !ended; kills++ {
			time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
			i := rand.IntN(len(f.members))
			f.kill(i)
			s, err := job.Status(t.Context())
			ended = err == nil && s.State.Ended()
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(n) {
			t.Errorf("after %d kills: %+v, %v", kills, s, err)
		}
		proof, err := job.Verify(t.Context(), nil)
		if err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
		pages += s.Pages
	}
	slow.Pause()
	var accounts []bank.Account
	if _, err := client.GetAll(t.Context(), datastore.NewQuery("Account"), &accounts); err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for _, a := range accounts {
		if a.Balance != 10*jobs {
			wrong++
		}
	}
	if wrong > 0 || len(accounts) != n {
		t.Errorf("%d of %d accounts are wrong", wrong, len(accounts))
	}
	t.Logf("%d kills, %d jobs, %d pages", kills, jobs, pages)
}

// newCloud returns a fleet, and a client and an engine for its jobs over a number of
// accounts.
func newCloud(
	t *testing.T, e *emulator.Emulator, addr string, n, concurrent int, mappers ...mapper.AnyMapper,
) (*fleet, *datastore.Client, *mapper.Engine) {
	t.Helper()
	return newCloudWith(t, e, addr, n, concurrent, nil, mappers...)
}

// newCloudWith does the same as newCloud. Its processes have further environment variables.
func newCloudWith(
	t *testing.T, e *emulator.Emulator, addr string, n, concurrent int, env []string, mappers ...mapper.AnyMapper,
) (*fleet, *datastore.Client, *mapper.Engine) {
	t.Helper()
	project := googletest.Project()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(mapper.ClientInterceptor()))
	if err != nil {
		t.Fatal(err)
	}
	client, err := datastore.NewClient(t.Context(), project, option.WithGRPCConn(conn), option.WithTelemetryDisabled())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		for i := first; i < first+500; i++ {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("user-%06d", i), nil))
		}
		if _, err := client.PutMulti(t.Context(), keys, make([]bank.Account, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name:        queue,
			RateLimits:  &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(concurrent)},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(time.Second)},
		}}); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, 3, append(env, "GOOGLE_CLOUD_PROJECT="+project, "TASKS_QUEUE="+queue,
		"DATASTORE_EMULATOR_HOST="+addr, "CLOUD_TASKS_EMULATOR_HOST="+e.TasksAddr())...)
	tasksQueue, err := tasks.NewQueue(taskClient, queue, f.front.URL+"/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, tasksQueue, &mapper.EngineOptions{Mappers: mappers})
	if err != nil {
		t.Fatal(err)
	}
	return f, client, engine
}

// A death says in which way the mapper deadly kills its process.
type death struct{ By string }

// deadly adds 10 to accounts. One of the accounts kills its process, unless its balance is high.
var deadly = mapper.Update("deadly", func(_ context.Context, a *mapper.Entity[bank.Account], p death) error {
	if a.Key.Name == deadlyName && a.Value.Balance < rich {
		switch p.By {
		case "exit":
			os.Exit(3)
		case "panic in a goroutine":
			go func() { panic("nobody recovers this") }()
			time.Sleep(time.Minute)
		}
	}
	a.Value.Balance += 10
	return nil
})

const (
	deadlyName = "user-006666"
	rich       = 1_000_000
)

// TestDeadlyEntity runs a job in which one account kills every process that calls the function on
// it. Each process has 20 pages under way. Without anybody's help, the job must find the account,
// and credit all others. After the test has changed the account, a retry must credit it, too.
func TestDeadlyEntity(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves crashes of processes out")
	}
	t.Parallel()
	// Each process has 20 pages under way, and further pages wait: there are 120, or 200 at night.
	n, page := testflag.Size(t, 0, 12_000, 100_000), testflag.Size(t, 0, 100, 500)
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	f, client, engine := newCloud(t, e, e.DatastoreAddr(), n, 60, deadly)
	key := datastore.NameKey("Account", deadlyName, nil)
	for _, by := range []string{"exit", "panic in a goroutine"} {
		id, before := by[:4], f.died()
		job, err := deadly.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, death{by},
			&mapper.StartOptions{ID: id, PageSize: page})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		failures, _, err := job.FailuresPage(t.Context(), "")
		if err != nil || s.State != mapper.StateSucceededWithFailures || s.Processed != int64(n-1) ||
			len(failures) != 1 ||
			!failures[0].Key.Equal(key) {
			t.Errorf("%s: %+v, failures %+v, %v", by, s, failures, err)
		}
		t.Logf("%s: %v, %d processes died, %v", by, s.Ended.Sub(s.Created), f.died()-before, failures)

		if _, err := client.Put(t.Context(), key, &bank.Account{Balance: rich}); err != nil {
			t.Fatal(err)
		}
		if err := job.Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		var mended bank.Account
		s, err = job.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(n) {
			t.Errorf("%s, after the retry: %+v, %v", by, s, err)
		}
		if err := client.Get(t.Context(), key, &mended); err != nil || mended.Balance != rich+10 {
			t.Errorf("%s: %+v, %v", by, mended, err)
		}
		if _, err := client.Put(t.Context(), key, new(bank.Account)); err != nil {
			t.Fatal(err)
		}
	}
	if wrong, err := client.Count(t.Context(), datastore.NewQuery("Account").FilterField("Balance", "!=",
		20)); err != nil || wrong != 1 {
		t.Errorf("%d accounts are wrong, %v", wrong, err)
	}
}
