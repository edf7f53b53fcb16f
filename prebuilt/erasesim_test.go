package prebuilt_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

// TestEraseSimulation erases namespaces and tenants after other jobs of all kinds, and while such
// jobs run. Calls, answers and deliveries get lost. Processes stop before or after calls for hours,
// and then continue. Other clients put entities, and operators pause, abort, resume, undo and clean
// up jobs. Erasures are started by several callers at once, under one ID and others, and some are
// aborted. A schedule ticks before and during the erasures, with each of the settings for
// overlapping runs.
//
// Whenever a certificate is stored, the test searches all entities and records. They must contain
// nothing that the certificate says is gone. Concurrent jobs that copy and rename must neither lose
// a change of another client nor make it twice.
func TestEraseSimulation(t *testing.T) {
	kept := 0
	n := testflag.Simulate(t, 2, 2, func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { kept += simulateErase(t, seed) })
	})
	if t.Logf("%d certificates of %d seeds", kept, n); kept*2 < n && !t.Failed() {
		t.Errorf("only %d certificates were kept in %d seeds", kept, n)
	}
}

// A fleet is a number of simulated processes with one database and one queue.
type fleet struct {
	*testing.T
	rng    *rand.Rand
	mu     sync.Mutex // guards rng
	faults *faults.Faults
	calm   *datastore.Client // a client without injected stops
	past   *datastore.Client // a client for reads at a time in the past
	all    []*mapper.Engine
}

func (f *fleet) chance(share float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.Float64() < share
}

func (f *fleet) upTo(most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.rng.Int64N(int64(most)))
}

// stops returns an interceptor that stops the process at a share of its calls, before or after they
// take effect. A stop may take hours, longer than others wait for the process.
func (f *fleet) stops(share float64) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		o ...grpc.CallOption) error {
		switch {
		case f.chance(share):
			time.Sleep(f.upTo(3 * time.Hour))
			ctx = context.WithoutCancel(ctx)
		case f.chance(share):
			defer func() { time.Sleep(f.upTo(3 * time.Hour)) }()
		}
		return invoke(ctx, method, req, reply, cc, o...)
	}
}

// newFleet returns a fleet. The interceptor, which may be nil, gets the calls to the emulated
// database and queue.
func newFleet(t *testing.T, seed uint64, mappers []mapper.AnyMapper, intercept grpc.UnaryServerInterceptor,
	schedules ...mapper.AnySchedule) *fleet {
	t.Helper()
	f := &fleet{T: t, rng: rand.New(rand.NewPCG(seed, 7))}
	share := func(most float64) float64 { return most * f.rng.Float64() }
	f.faults = faults.New(seed,
		faults.Rule{Kind: faults.LoseCall, Share: share(0.05)},
		faults.Rule{Kind: faults.LoseAnswer, Share: share(0.05)},
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 10 * time.Millisecond}},
		faults.Rule{Kind: faults.AbortCommit, Share: share(0.1)},
		faults.Rule{Kind: faults.DeliverTwice, Share: share(0.2), Latency: faults.Uniform{Max: 2 * time.Hour}},
		faults.Rule{Kind: faults.DeliverTogether, Share: share(0.2), Latency: faults.Uniform{Max: time.Second}},
		faults.Rule{Kind: faults.DeliverLate, Share: share(0.1), Latency: faults.Uniform{Max: time.Hour}},
		faults.Rule{Kind: faults.CrashReceiver, Share: share(0.1)},
		faults.Rule{Kind: faults.LoseReply, Share: share(0.1)})
	f.faults.Pause()
	var handlers []http.Handler
	var running sync.WaitGroup
	e := emulator.ForTest(t, &emulator.Options{
		Faults: f.faults, Seed: seed, Retention: 48 * time.Hour, Interceptor: intercept,
		Transport: emulator.HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			f.mu.Lock()
			i := f.rng.IntN(len(handlers))
			f.mu.Unlock()
			handlers[i].ServeHTTP(rw, r)
		}))})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := e.TasksClient(t.Context())
	must(err)
	t.Cleanup(func() { client.Close() })
	const location = "projects/test/locations/here"
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/jobs",
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 8}}})
	must(err)
	stop := 0.004 * f.rng.Float64()
	for i := range 4 { // the last process is for operators and gets no deliveries; the third one has no injected stops
		options := []option.ClientOption{mapper.ClientOption()}
		if i != 2 {
			options = append(options, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(f.stops(stop))))
		}
		db, err := e.DatastoreClient(t.Context(), "test", options...)
		must(err)
		t.Cleanup(func() { db.Close() })
		queue, err := tasks.NewQueue(client, location+"/queues/jobs", "http://worker/mapper/",
			&tasks.Options{InsecureSkipVerify: true})
		must(err)
		engine, err := mapper.NewEngine(db, queue,
			&mapper.EngineOptions{Mappers: mappers, Retain: mapper.MinRetain, Schedules: schedules,
				Logger: slog.New(slog.DiscardHandler)})
		must(err)
		if f.all = append(f.all, engine); i == 2 {
			f.calm = db
		} else if i < 2 {
			handlers = append(handlers, engine.Handler())
		}
	}
	handlers = append(handlers, f.all[2].Handler())
	f.past, err = e.DatastoreClient(t.Context(), "test")
	must(err)
	t.Cleanup(func() { f.past.Close() })
	t.Cleanup(func() {
		f.faults.Pause()
		e.Reset()
		time.Sleep(24 * time.Hour)
		running.Wait()
	})
	return f
}

// insist repeats a call until it succeeds, or until its error can't be overcome by a retry.
func (f *fleet) insist(do func(ctx context.Context) error) error {
	for {
		ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
		err := do(ctx)
		cancel()
		if err == nil || errors.Is(err, mapper.ErrWrongState) || errors.Is(err, mapper.ErrInvalidArgument) ||
			errors.Is(err,
				mapper.ErrNoSuchJob) || errors.Is(err, mapper.ErrIDTaken) {
			return err
		}
		if f.Context().Err() != nil { // the test has ended
			return nil
		}
		time.Sleep(f.upTo(time.Minute))
	}
}

// quietly calls look while no faults are injected.
func (f *fleet) quietly(look func(ctx context.Context) error) {
	f.faults.Pause()
	err := f.insist(look)
	f.faults.Resume()
	if err != nil {
		f.Error(err)
	}
}

// A simulation is one run of TestEraseSimulation: an erasure, with other jobs, clients and
// operators at the same time.
type simulation struct {
	*fleet
	tenant   bool
	acme     any // the tenant's value, a text or a number
	schedule *mapper.Schedule[mapper.NoParams]

	mu     sync.Mutex
	guests map[string]time.Time // the names of the entities that other clients put during the erasure, with the times
}

// tenantNumber is a tenant's value. It is long, so that no hash in a record contains it by chance.
const tenantNumber int64 = 4711471147

func key(namespace, kind, name string) *datastore.Key {
	k := datastore.NameKey(kind, name, nil)
	k.Namespace = namespace
	return k
}

// simulateErase runs a simulation, and returns how many certificates were kept.
func simulateErase(t *testing.T, seed uint64) (kept int) {
	d := newDrawer(t)
	s := &simulation{guests: make(map[string]time.Time)}
	var certificates sync.Mutex
	d.keep = func(ctx context.Context, c *prebuilt.Certificate) error {
		if s.chance(0.2) {
			time.Sleep(s.upTo(5 * time.Minute)) // storing a certificate may be slow
		}
		s.look(c)
		certificates.Lock()
		kept++
		certificates.Unlock()
		if s.chance(0.2) {
			return errors.New("the bucket does not answer")
		}
		return nil
	}
	s.schedule = mapper.NewSchedule("nightly", prebuilt.Touch,
		[]mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace}[seed%3])
	s.fleet = newFleet(t, seed, append(prebuilt.Mappers(), d.erase()), nil, s.schedule)
	s.tenant, s.acme = s.rng.IntN(2) == 0, "acme"
	if s.rng.IntN(2) == 0 {
		s.acme = tenantNumber
	}
	s.fill()
	s.faults.Resume()
	s.before()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.write(ctx) })
	group.Go(func() { s.operate(ctx) })
	group.Go(s.docs)
	s.erase()
	cancel()
	group.Wait()
	certificates.Lock()
	defer certificates.Unlock()
	return min(kept, 1)
}

// fill puts the entities that exist at the start. Some are of the namespace or tenant to be erased,
// some have alice in their names, and the rest must stay.
func (s *simulation) fill() {
	n := 20 + s.rng.IntN(100)
	for _, namespace := range []string{"acme", "other"} {
		for _, kind := range []string{"Account", "__note"} {
			keys, all := []*datastore.Key{}, []datastore.PropertyList{}
			for i := range n {
				name, tenant := fmt.Sprintf("alice-%04d", i), s.acme
				if namespace == "other" && (!s.tenant || i%3 > 0) {
					name, tenant = fmt.Sprintf("carol-%04d", i), "umbrella"
				}
				keys = append(keys, key(namespace, kind, name))
				all = append(all, datastore.PropertyList{{Name: "n", Value: int64(i)},
					{Name: "tenant", Value: tenant, NoIndex: i%5 == 0}, {Name: "name", Value: name}})
			}
			if _, err := s.calm.PutMulti(s.Context(), keys, all); err != nil {
				s.Fatal(err)
			}
		}
	}
	keys, all := []*datastore.Key{}, []datastore.PropertyList{}
	for i := range 40 {
		keys, all = append(keys, key("docs", "Doc", fmt.Sprintf("doc-%03d", i))), append(all,
			datastore.PropertyList{{Name: "n", Value: int64(0)}, {Name: "title", Value: fmt.Sprint(i)}})
	}
	if _, err := s.calm.PutMulti(s.Context(), keys, all); err != nil {
		s.Fatal(err)
	}
}

// engine returns the engine of a random process: of operators, or of one that runs tasks.
func (s *simulation) engine() *mapper.Engine {
	if s.chance(0.5) {
		return s.all[2]
	}
	return s.all[3]
}

// job runs a random kind of job. It may abort the job early, undo it or clean it up.
func (s *simulation) job(id string) {
	s.mu.Lock()
	value, _ := json.Marshal(s.acme)
	jobs := []struct{ mapper, params string }{{"set", `{"property": "of", "value": ` + string(value) + `}`},
		{"check", `{"condition": "n >= 5"}`}, {"set", `{"property": "seen", "value": "alice"}`}, {"touch", "{}"},
		{"count", `{"by": "name"}`}, {"delete", "{}"}}
	which := jobs[s.chosen(len(jobs))]
	q := []mapper.Query{{Kind: "Account", AllNamespaces: true}, {Kind: "Account", Namespace: "acme"},
		{Kinds: []string{"Account", "__note"}, Namespace: "acme"}, {Kind: "Account", Namespace: "other"},
		{Kind: "Account", AllNamespaces: true, ShardBy: "tenant"},
		{Kind: "Account", Namespace: "other", Filters: []mapper.Filter{mapper.Where("tenant", "=", s.acme)}}}[s.chosen(
		6)]
	s.mu.Unlock()
	o := &mapper.StartOptions{ID: id, PageSize: 5 + s.chosen(20), AllowOverlap: true, AllowEmpty: true,
		DryRun: which.mapper == "delete" || which.mapper == "set" && s.chance(0.3)}
	var job *mapper.Job
	err := s.insist(func(ctx context.Context) (err error) {
		job, err = s.engine().StartByName(mapper.WithReason(ctx, "alice asks"), which.mapper, q, []byte(which.params),
			o)
		return err
	})
	if err != nil {
		return // for example, because the entities are already erased
	}
	if s.chance(0.3) {
		time.Sleep(s.upTo(time.Second))
		s.give(job.Abort)
		return
	}
	if s.chance(0.3) {
		s.give(job.Pause)
		time.Sleep(s.upTo(10 * time.Minute))
		s.give(job.Resume)
	}
	s.ended(job)
	if which.mapper == "set" && !o.DryRun && s.chance(0.5) {
		var undo *mapper.Job
		if s.insist(func(ctx context.Context) (err error) { undo, err = job.Undo(ctx, nil); return err }) == nil &&
			s.chance(0.7) {
			s.ended(undo)
		}
	}
	if s.chance(0.3) {
		s.give(func(ctx context.Context) error {
			return job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: s.chance(0.5), IncludeJob: s.chance(0.3)})
		})
	}
	if s.chance(0.2) {
		s.give(func(ctx context.Context) error { return job.Retry(ctx, nil) })
		s.ended(job)
	}
}

func (f *fleet) chosen(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

// give makes a call, and ignores its error, because the state of the job may not allow the call.
func (s *simulation) give(do func(context.Context) error) { _ = s.insist(do) }

// ended waits for up to twelve hours until a job has ended, and returns its status.
func (s *simulation) ended(job *mapper.Job) (status *mapper.Status) {
	for range 12 * 60 {
		err := s.insist(func(ctx context.Context) (err error) { status, err = job.Status(ctx); return err })
		if err != nil || status.State.Ended() {
			return status
		}
		time.Sleep(time.Minute)
	}
	return status
}

func (s *simulation) before() {
	var group sync.WaitGroup
	for i := range 2 + s.chosen(4) {
		group.Go(func() { s.job(fmt.Sprint([]string{"before-", "alice-before-"}[i%2], i)) })
	}
	group.Go(s.tick)
	group.Wait()
}

// tick calls Tick of the schedule while another job prevents the schedule's run. The ID of that job
// contains alice, and perhaps the tenant.
func (s *simulation) tick() {
	id := []string{"touch-alice", fmt.Sprint("touch-of-", s.acme, "-for-alice")}[s.chosen(2)]
	var job *mapper.Job
	err := s.insist(func(ctx context.Context) (err error) {
		q := mapper.Query{Kind: "Account", Namespace: []string{"acme", "other"}[s.chosen(2)]}
		job, err = s.all[2].StartByName(ctx, "touch", q, []byte("{}"),
			&mapper.StartOptions{ID: id, PageSize: 5, Rate: mapper.Rate{EntitiesPerSecond: 0.5}, AllowEmpty: true})
		return err
	})
	if err != nil {
		return
	}
	q := mapper.Query{Kind: "Account", Namespace: "other"}
	if s.chance(0.3) {
		q.Filters = []mapper.Filter{mapper.Where("tenant", "=", s.acme)}
	}
	at := time.Now()
	s.give(func(ctx context.Context) error {
		_, err := s.schedule.Tick(ctx, s.all[2], at, q, mapper.NoParams{}, &mapper.StartOptions{AllowEmpty: true})
		return err
	})
	if s.chance(0.5) {
		s.give(job.Abort)
	}
	s.ended(job)
	if s.chance(0.5) {
		s.give(func(ctx context.Context) error { return s.schedule.Advance(ctx, s.all[2]) })
	}
}

// write puts entities of the namespace or tenant while it is erased, and notes them in guests.
func (s *simulation) write(ctx context.Context) {
	if s.chance(0.5) {
		return
	}
	for i := range 5 {
		if time.Sleep(s.upTo(20 * time.Minute)); ctx.Err() != nil {
			return
		}
		name := fmt.Sprint("guest-", i)
		s.give(func(ctx context.Context) error {
			_, err := s.all[3].Client().Put(ctx, key("acme", "Account", name),
				&datastore.PropertyList{{Name: "tenant", Value: s.acme}, {Name: "n", Value: int64(9)}})
			return err
		})
		s.mu.Lock()
		s.guests[name] = time.Now()
		s.mu.Unlock()
	}
}

// operate starts other jobs and ticks of the schedule during the erasure.
func (s *simulation) operate(ctx context.Context) {
	for i := range s.chosen(4) {
		if time.Sleep(s.upTo(30 * time.Minute)); ctx.Err() != nil {
			return
		}
		if s.chance(0.4) {
			s.tickBeside()
			continue
		}
		s.job(fmt.Sprint("beside-", i))
	}
}

// tickBeside calls Tick of the schedule twice in a row. With OverlapReplace the second tick aborts
// the run of the first one.
func (s *simulation) tickBeside() {
	for range 2 {
		q, at := mapper.Query{Kind: "Account", Namespace: "other"}, time.Now()
		if s.chance(0.3) {
			q.Filters = []mapper.Filter{mapper.Where("tenant", "=", s.acme)}
		}
		o := &mapper.StartOptions{AllowEmpty: true, PageSize: 5, Rate: mapper.Rate{EntitiesPerSecond: 0.5}}
		s.give(func(ctx context.Context) error {
			_, err := s.schedule.Tick(ctx, s.engine(), at, q, mapper.NoParams{}, o)
			return err
		})
		time.Sleep(s.upTo(5 * time.Minute))
	}
}

// leave starts a job, pauses it, and leaves it paused, like an operator who has forgotten it.
func (s *simulation) leave(id string) {
	var beside *mapper.Job
	err := s.insist(func(ctx context.Context) (err error) {
		beside, err = s.all[2].StartByName(ctx, "touch", mapper.Query{Kind: "Account", AllNamespaces: true},
			[]byte("{}"), &mapper.StartOptions{ID: id, PageSize: 3, AllowOverlap: true})
		return err
	})
	if err == nil {
		s.give(beside.Pause)
	}
}

// erase tries to erase until an erasure succeeds. It aborts jobs that prevent it.
func (s *simulation) erase() {
	// the reasons of the test's operators contain alice
	q, params := mapper.Query{Namespace: "acme"}, `{"words": ["alice"]}`
	if s.tenant {
		value, _ := json.Marshal(s.acme)
		q, params = mapper.Query{}, fmt.Sprintf(`{"property": "tenant", "value": %s, "words": ["alice"]}`, value)
	}
	why := ""
	start := func(id string) (job *mapper.Job, err error) {
		err = s.insist(func(ctx context.Context) (err error) {
			job, err = s.engine().StartByName(ctx, "erase", q, []byte(params),
				&mapper.StartOptions{ID: id, PageSize: 7 + s.chosen(20)})
			return err
		})
		return job, err
	}
	var rivals sync.WaitGroup
	defer rivals.Wait()
	for i := range 40 {
		id := fmt.Sprint("erasure-", i)
		if s.chance(0.3) { // another operator starts an erasure, too
			rival := []string{id, id + "-rival"}[s.chosen(2)]
			rivals.Go(func() {
				job, err := start(rival)
				if err != nil || rival == id {
					return
				}
				time.Sleep(s.upTo(3 * time.Hour))
				s.give(job.Abort)
			})
			if s.chance(0.5) {
				time.Sleep(s.upTo(time.Minute))
			}
		}
		job, err := start(id)
		if err == nil && s.chance(0.5) {
			s.leave(fmt.Sprint("paused-", i))
		}
		if err != nil {
			if strings.Contains(err.Error(), "has no entities") {
				return
			}
			why = err.Error()
			s.clear()
			continue
		}
		if s.chance(0.3) {
			time.Sleep(s.upTo(5 * time.Minute))
			s.give(job.Pause)
			time.Sleep(s.upTo(time.Hour))
			s.give(job.Resume)
		}
		if s.chance(0.2) {
			after := s.upTo([]time.Duration{10 * time.Second, 10 * time.Minute, 3 * time.Hour}[s.chosen(3)])
			rivals.Go(func() {
				time.Sleep(after)
				s.give(job.Abort)
			})
		}
		for range 10 {
			status := s.ended(job)
			if status == nil || !status.State.Ended() {
				if status != nil {
					why = status.Error
				}
				s.clear() // for example, an undo prevents the erasure
				continue
			}
			if status.State == mapper.StateSucceeded {
				return
			}
			why = status.Error
			if status.State != mapper.StateFailed || strings.Contains(status.Error, "start another") {
				break
			}
			s.clear()
			s.give(job.Resume)
		}
	}
	s.Errorf("it could not be erased: %s", why)
}

// clear aborts the jobs that prevent an erasure, and starts a tick that waits.
func (s *simulation) clear() {
	time.Sleep(s.upTo(30 * time.Minute))
	// a waiting tick also prevents an erasure
	s.give(func(ctx context.Context) error { return s.schedule.Advance(ctx, s.engine()) })
	for _, state := range []mapper.State{mapper.StateRunning, mapper.StatePaused, mapper.StateFailed} {
		var jobs []mapper.JobInfo
		s.give(func(ctx context.Context) (err error) {
			jobs, _, err = s.engine().JobsPage(ctx, &mapper.JobsOptions{State: state}, "")
			return err
		})
		for _, j := range jobs {
			if !strings.HasPrefix(j.ID, "erasure") && !strings.HasPrefix(j.ID, "docs") {
				s.give(s.engine().Job(j.ID).Abort)
			}
		}
	}
}

// look is called when a certificate is stored. It searches all entities and records for data that
// must be erased.
func (s *simulation) look(c *prebuilt.Certificate) {
	s.mu.Lock()
	before := make(map[string]bool)
	for name, at := range s.guests {
		before[name] = at.Before(c.Looked)
	}
	s.mu.Unlock()
	s.quietly(func(ctx context.Context) error {
		for _, namespace := range []string{"acme", "other", "docs", ""} {
			for _, kind := range []string{"Account", "__note"} {
				keys, err := s.calm.GetAll(ctx, datastore.NewQuery(kind).Namespace(namespace).KeysOnly(), nil)
				if err != nil {
					return err
				}
				for _, k := range keys {
					gone := s.tenant || namespace == "acme"
					if strings.HasPrefix(k.Name, "alice") && gone || before[k.Name] {
						s.Errorf("%v is there, and there is a certificate: looked at %v", k, c.Looked)
					}
				}
			}
		}
		texts := []string{"alice"}
		if s.tenant && s.acme == tenantNumber { // the text "acme" would also be found in the names of namespaces
			texts = append(texts, fmt.Sprint(s.acme))
		}
		for _, text := range texts {
			found, err := grep(ctx, s.calm, text, func(kind string, key *datastore.Key, _ datastore.PropertyList) bool {
				// the erasure's own record may contain the data until the job ends
				return kind == "ScattermapJob" && key.Name == c.Job
			})
			if err != nil {
				return err
			}
			if len(found) == 0 {
				continue
			}
			// Ignore records that did not contain the text when the final search started: jobs that
			// started later may have written them.
			looked := datastore.ReadTime(c.Looked.Truncate(time.Microsecond))
			before, err := grep(ctx, s.past.WithReadOptions(looked), text, nil)
			if err != nil {
				return err
			}
			for _, what := range found {
				if slices.Contains(before, what) {
					s.Errorf("a certificate is kept, and there is %q, as it was when the look began: %s", what, text)
				} else {
					s.Logf("since the look began there is %q: %s", what, text)
				}
			}
		}
		return nil
	})
}

// docs runs jobs that rename a property and copy entities, while another client changes these
// entities. It checks that no change is lost or made twice.
func (s *simulation) docs() {
	count := make([]int64, 40)
	var group sync.WaitGroup
	group.Go(func() {
		for range 60 {
			i := s.chosen(len(count))
			time.Sleep(s.upTo(time.Second))
			err := s.insist(func(ctx context.Context) error {
				_, err := s.calm.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
					var all datastore.PropertyList
					k := key("docs", "Doc", fmt.Sprintf("doc-%03d", i))
					if err := tx.Get(k, &all); err != nil {
						return err
					}
					for j := range all {
						if all[j].Name == "n" {
							// this transaction was committed before, but the answer was lost
							if all[j].Value.(int64) != count[i] {
								return nil
							}
							all[j].Value = count[i] + 1
						}
					}
					_, err := tx.Put(k, &all)
					return err
				})
				return err
			})
			if err != nil {
				s.Error(err)
			}
			count[i]++
		}
	})
	q := mapper.Query{Kind: "Doc", Namespace: "docs"}
	for _, each := range [][2]string{{"rename", `{"from": "title", "to": "name"}`}, {"copy", `{"kind": "Copy"}`}} {
		group.Go(func() {
			var job *mapper.Job
			err := s.insist(func(ctx context.Context) (err error) {
				job, err = s.engine().StartByName(ctx, each[0], q, []byte(each[1]),
					&mapper.StartOptions{ID: "docs-" + each[0], PageSize: 7})
				return err
			})
			if err != nil {
				return // the start may be refused, because an erasure of a tenant was first
			}
			if status := s.ended(job); status != nil && status.State != mapper.StateSucceeded {
				s.Errorf("%+v", status)
			}
		})
	}
	group.Wait()
	s.quietly(func(ctx context.Context) error {
		for _, kind := range []string{"Doc", "Copy"} {
			var all []datastore.PropertyList
			keys, err := s.calm.GetAll(ctx, datastore.NewQuery(kind).Namespace("docs").Order("__key__"), &all)
			if err != nil {
				return err
			}
			if len(all) != len(count) {
				s.Errorf("%d of %s, want %d", len(all), kind, len(count))
				return nil
			}
			for i, list := range all {
				values := make(map[string]any)
				for _, p := range list {
					values[p.Name] = p.Value
				}
				title := values["name"]
				if kind == "Copy" && title == nil {
					title = values["title"]
				}
				n, _ := values["n"].(int64)
				if len(list) != 2 || title != fmt.Sprint(i) || n > count[i] || kind == "Doc" && n != count[i] {
					s.Errorf("%v is %v, and was changed %d times", keys[i], values, count[i])
				}
			}
		}
		return nil
	})
}
