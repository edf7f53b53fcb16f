package protocol_test

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// A fleet is a number of simulated processes that share the deliveries of a queue.
type fleet struct {
	world   *world
	mappers []mapper.AnyMapper
	queue   string      // the queue of the processes
	target  string      // the URL of the tasks
	zombies float64     // share of deliveries whose handlers continue after the request has ended
	fails   atomic.Bool // whether jobs may fail in this test
	stops   stops

	// number of records after which an addition stores a draft: see bridge.Portion; 0: the default
	portion     int
	portionTime time.Duration // time after which an addition leaves the rest to another task; 0: the default
	undoMost    int64         // size of a commit of an undo: see bridge.UndoMost; 0: the default

	mu        sync.Mutex
	rng       *rand.Rand
	processes []*process
	frozen    []*process // stopped processes that others have replaced
	killed    int
}

// noErrors is a log handler that fails the test if a process logs an error: that it has dropped a
// task, or that a job has failed.
type noErrors struct {
	slog.Handler
	fleet *fleet
}

func (h *noErrors) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && (!h.fleet.fails.Load() || r.Message != "job failed") && !byTheEnd(r) {
		h.fleet.world.Errorf("a process logs an error: %s", r.Message)
	}
	return h.Handler.Handle(ctx, r)
}

// byTheEnd reports whether a log record says that a job has failed because of its finalizer, or
// because its records were changed. Simulations cause both, and check the job's status themselves.
func byTheEnd(r slog.Record) (yes bool) {
	r.Attrs(func(a slog.Attr) bool {
		cause := a.Value.String()
		yes = yes || a.Key == "cause" && (strings.HasPrefix(cause, "its records do not add up") ||
			strings.Contains(cause, "the finalizer"))
		return true
	})
	return yes && r.Message == "job failed"
}

// newFleet creates a fleet, and sends the deliveries of the world's queue to it.
func newFleet(w *world, seed uint64, size int, mappers ...mapper.AnyMapper) *fleet {
	f := newFleetOf(w, queueName, target, seed, size, mappers...)
	w.handler = f
	return f
}

// newFleetOf creates a fleet for a queue of a world. The caller has to send the queue's deliveries
// to it.
func newFleetOf(w *world, queue, target string, seed uint64, size int, mappers ...mapper.AnyMapper) *fleet {
	f := &fleet{world: w, mappers: mappers, queue: queue, target: target, rng: rand.New(rand.NewPCG(seed, 2)),
		processes: make([]*process, size)}
	f.stops.rng = rand.New(rand.NewPCG(seed, 3))
	for i := range f.processes {
		f.processes[i] = newProcess(f)
	}
	w.Cleanup(func() {
		f.thaw()
		w.settle()
		for _, p := range slices.Concat(f.processes, f.frozen) {
			p.kill()
		}
	})
	return f
}

// addIn sets two limits for the tasks that add up a job's records at its end. After the given
// number of records, a task stores a draft of its sums. After the time longest, it ends, and a new
// task continues.
func (f *fleet) addIn(records int, longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.portion, f.portionTime = records, longest
	for _, p := range f.processes {
		bridge.Portion(p.engine, records, longest)
	}
}

// undoesBy limits the size of the entities that an undo restores in one commit, in bytes.
func (f *fleet) undoesBy(most int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.undoMost = most
	for _, p := range f.processes {
		bridge.UndoMost(p.engine, most)
	}
}

// kill ends a process, and starts another one in its place.
func (f *fleet) kill(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.kill()
	for i := range f.processes {
		if f.processes[i] == p {
			f.processes[i] = newProcess(f)
			f.killed++
		}
	}
}

// drain tells a process to drain, and waits for up to the time grace. Then it ends the process, and
// starts another one in its place.
func (f *fleet) drain(p *process, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := p.engine.Drain(ctx)
	f.kill(p)
	return err
}

// retire does the same as drain, for a platform such as Cloud Run: it sends the process no more
// deliveries before it tells it to drain. If the process drains in time, it ends after its last
// answer.
func (f *fleet) retire(p *process, grace time.Duration) error {
	f.mu.Lock()
	i := slices.Index(f.processes, p)
	f.processes[i] = newProcess(f)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	defer p.kill()
	if err := p.engine.Drain(ctx); err != nil {
		return err
	}
	answered := make(chan struct{})
	go func() { p.requests.Wait(); close(answered) }()
	select {
	case <-answered:
	case <-ctx.Done():
	}
	return nil
}

// freeze stops a process until a call of thaw, and starts another one in its place.
func (f *fleet) freeze(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.processes, p)
	if i < 0 {
		return // the process is dead, or already stopped
	}
	f.processes[i] = newProcess(f)
	f.frozen = append(f.frozen, p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

// thaw lets all processes continue that freeze has stopped.
func (f *fleet) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.frozen {
		p.mu.Lock()
		if p.frozen != nil {
			close(p.frozen)
			p.frozen = nil
		}
		p.mu.Unlock()
	}
}

// wake makes all processes that sleep continue within a minute. A sleep of hours is a fault, and
// must end when all faults end.
func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range slices.Concat(f.processes, f.frozen) {
		p.mu.Lock()
		p.until = time.Time{}
		p.mu.Unlock()
	}
}

// deaths returns the number of processes that have died.
func (f *fleet) deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// killAny ends a random process.
func (f *fleet) killAny() { f.kill(f.pick()) }

func (f *fleet) pick() *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[f.rng.IntN(len(f.processes))]
}

// die ends the process that runs the mapper's function of the context. Functions call it instead of
// os.Exit.
func (f *fleet) die(ctx context.Context) error {
	f.kill(ctx.Value(processKey{}).(*process))
	return ctx.Err()
}

// ServeHTTP passes a delivery to a random process.
func (f *fleet) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	p := f.processes[f.rng.IntN(len(f.processes))]
	p.requests.Add(1)
	zombie := f.rng.Float64() < f.zombies
	f.mu.Unlock()
	defer p.requests.Done()
	answered := make(chan int, 1)
	f.world.deliveries.Go(func() { answered <- p.serve(r, zombie) })
	select {
	case code := <-answered:
		rw.WriteHeader(code)
	case <-p.Done(): // the process is dead, and can't answer
		rw.WriteHeader(http.StatusBadGateway)
	}
}

// A process simulates a process of a service. It has its own engine and clients. It can end or stop
// in three ways:
//
//   - One that is killed loses all work under way. It reaches neither the database nor the queue
//     any more.
//   - One that is stopped does nothing until it wakes, as after SIGSTOP. Its work under way then
//     goes on.
//   - One that freezes stops between a read and the use of it. Its platform gives it up and starts
//     another in its place. It goes on when the fleet thaws it.
type process struct {
	context.Context
	kill    func()
	engine  *mapper.Engine
	handler http.Handler
	stops   *stops
	fleet   *fleet

	requests sync.WaitGroup // deliveries that the platform has not answered yet

	mu     sync.Mutex
	until  time.Time     // when the process continues after a sleep
	frozen chan struct{} // closed when the process continues after freeze
}

type (
	processKey struct{}
	pathKey    struct{}
)

// pathOf returns the last element of the path of the task whose handler has this context.
func pathOf(ctx context.Context) string {
	path, _ := ctx.Value(pathKey{}).(string)
	return path
}

// stops determine how often the processes of a fleet stop or die. That may happen at any call that
// they make, before or after it.
type stops struct {
	mu    sync.Mutex
	rng   *rand.Rand
	share float64 // the probability that a process sleeps at a call
	left  int     // number of sleeps that may still happen
	most  time.Duration
	count int

	freezes     int     // number of processes that may still freeze
	freezeShare float64 // the probability that a process freezes at a call

	deaths      int // number of processes that may still die
	deathShare  float64
	draftDeaths int // number of processes that may still die when they store a draft of a job's sums
	draftShare  float64
	draftRng    *rand.Rand
}

// dieAdding allows n further deaths of processes that add up a job's records. The share is the
// probability of a death when a draft is stored.
func (s *stops) dieAdding(n int, share float64, rng *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draftDeaths, s.draftShare, s.draftRng = n, share, rng
}

// drawDraftDeath draws whether a process dies when it stores a draft, and whether the draft is
// stored before that.
func (s *stops) drawDraftDeath() (dies, recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draftDeaths == 0 || s.draftRng.Float64() >= s.draftShare {
		return false, false
	}
	s.draftDeaths--
	return true, s.draftRng.IntN(2) == 0
}

// allow allows n further sleeps. The share is the probability at each call.
func (s *stops) allow(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.share = n, share
}

// freeze allows n further processes to freeze. The share is the probability after each read.
func (s *stops) freeze(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freezes, s.freezeShare = n, share
}

// kill allows n further processes to die. The share is the probability at each call.
func (s *stops) kill(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths, s.deathShare = n, share
}

// calm ends all random sleeps, freezes and deaths.
func (s *stops) calm() {
	s.allow(0, 0)
	s.freeze(0, 0)
	s.kill(0, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draftDeaths = 0
}

// drawDeath draws whether a process dies at a call.
func (s *stops) drawDeath() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaths == 0 || s.rng.Float64() >= s.deathShare {
		return false
	}
	s.deaths--
	return true
}

// drawFreeze draws whether a process freezes at a call that it makes for a task with the path. The
// probability is higher for tasks of whole jobs, because they are rare.
func (s *stops) drawFreeze(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.freezeShare
	if path != "" && path != "range" {
		share = math.Cbrt(share)
	}
	if s.freezes == 0 || s.rng.Float64() >= share {
		return false
	}
	s.freezes--
	s.count++
	return true
}

// draw draws how long a process sleeps at a call, which is mostly 0. Short and long sleeps are
// equally likely, from seconds to hours.
func (s *stops) draw() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 || s.rng.Float64() >= s.share {
		return 0
	}
	s.left--
	s.count++
	return time.Duration(math.Pow(s.most.Seconds(), s.rng.Float64()) * float64(time.Second))
}

// A mishap is what happens to a process during one operation of an operator. It happens once,
// before one of the operation's calls or after its answer.
type mishap struct {
	happen func(*process)
	commit bool // whether it happens after the answer to a commit
	deadly bool // whether the process then dies after its next commit

	mu       sync.Mutex
	after    int // if commit is not set: number of calls and answers before it happens
	happened bool

	commits, since int // number of answered commits: all, and those after the mishap
}

type mishapKey struct{}

// with returns a context for the calls of an operator whose process has the mishap.
func (m *mishap) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, mishapKey{}, m)
}

// pass counts a call or an answer, and makes the mishap happen when its time has come.
func (m *mishap) pass(p *process, method string, answered bool) {
	last := path.Base(method)
	m.mu.Lock()
	now, committed := m.after == 0, answered && last == "Commit"
	if m.after--; m.commit {
		now = committed && !m.happened
	}
	dies := m.deadly && m.happened && committed
	if committed {
		m.commits++
		if m.happened {
			m.since++
		}
	}
	m.happened = m.happened || now
	m.mu.Unlock()
	if now {
		m.happen(p)
	}
	if dies {
		p.fleet.kill(p)
	}
}

// pass is called before each call that a process makes, and after its answer. The process may die
// or sleep there. If it sleeps, pass returns when it continues.
func (p *process) pass(ctx context.Context, method string, answered bool) {
	if m, ok := ctx.Value(mishapKey{}).(*mishap); ok {
		m.pass(p, method, answered)
	}
	if p.Err() == nil && p.stops.drawDeath() {
		p.fleet.kill(p)
	}
	if d := p.stops.draw(); d > 0 {
		p.mu.Lock()
		if until := time.Now().Add(d); until.After(p.until) {
			p.until = until
		}
		p.mu.Unlock()
	}
	p.awake()
}

// awake waits until the process is not sleeping or frozen, and reports whether it had to wait.
func (p *process) awake() (slept bool) {
	for {
		p.mu.Lock()
		d, frozen := time.Until(p.until), p.frozen
		p.mu.Unlock()
		switch {
		case p.Err() != nil:
			return slept
		case frozen != nil:
			select {
			case <-frozen:
			case <-p.Done():
			}
		case d <= 0:
			return slept
		default:
			time.Sleep(min(d, time.Minute)) // at most a minute at a time, because fleet.wake may shorten the sleep
		}
		slept = true
	}
}

func (p *process) intercept(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	p.pass(ctx, method, false)
	if drafts(req) {
		if dies, recorded := p.stops.drawDraftDeath(); dies {
			if recorded {
				_ = invoke(ctx, method, req, reply, conn, opts...)
			}
			p.fleet.kill(p)
			return p.Err()
		}
	}
	err := invoke(ctx, method, req, reply, conn, opts...)
	if read := strings.HasSuffix(method, "/Lookup") || strings.HasSuffix(method, "/RunQuery"); read &&
		p.stops.drawFreeze(pathOf(ctx)) {
		p.fleet.freeze(p)
	}
	p.pass(ctx, method, err == nil)
	return err
}

// newProcess starts a new process of a fleet.
func newProcess(f *fleet) *process {
	w := f.world
	p := &process{stops: &f.stops, fleet: f}
	intercept := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(p.intercept))
	database, err := w.emulator.DatastoreClient(context.Background(), "test",
		append(slices.Clip(w.options), intercept)...)
	if err != nil {
		panic(err)
	}
	off := time.Duration((2*f.rng.Float64() - 1) * float64(w.clocks))
	client, err := w.emulator.TasksClient(context.Background(), intercept,
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(clockOff(off))))
	if err != nil {
		panic(err)
	}
	queue, err := tasks.NewQueue(client, f.queue, f.target,
		&tasks.Options{InsecureSkipVerify: true, DispatchDeadline: w.queue.DispatchDeadline()})
	if err != nil {
		panic(err)
	}
	o := &mapper.EngineOptions{Mappers: f.mappers, Logger: slog.New(&noErrors{slog.NewTextHandler(w.Output(), nil), f})}
	for _, name := range w.others {
		other, err := tasks.NewQueue(client, name, f.target,
			&tasks.Options{InsecureSkipVerify: true, DispatchDeadline: w.queue.DispatchDeadline()})
		if err != nil {
			panic(err)
		}
		o.OtherQueues = append(o.OtherQueues, other)
	}
	if w.more != nil {
		w.more(o)
	}
	p.engine, err = mapper.NewEngine(database, queue, o)
	if err != nil {
		panic(err)
	}
	bridge.Seed(p.engine, f.rng.Uint64())
	bridge.Portion(p.engine, f.portion, f.portionTime)
	bridge.UndoMost(p.engine, f.undoMost)
	p.handler = p.engine.Handler()
	var cancel func()
	p.Context, cancel = context.WithCancel(context.Background())
	p.kill = sync.OnceFunc(func() {
		cancel()
		database.Close()
		client.Close()
	})
	return p
}

// serve lets the process handle a request, and returns the status code of the answer. When the
// request ends, the handler's context ends, too, except in a zombie. A sleeping process notices
// this only when it continues.
func (p *process) serve(r *http.Request, zombie bool) int {
	const asleep = time.Second
	ctx, cancel := context.WithCancel(context.WithValue(context.WithValue(p, processKey{}, p), pathKey{},
		path.Base(r.URL.Path)))
	defer cancel()
	if !zombie {
		context.AfterFunc(r.Context(), func() {
			if p.awake() {
				select {
				case <-time.After(asleep):
				case <-ctx.Done(): // the handler has answered in the meantime
				}
			}
			cancel()
		})
	}
	p.awake()
	answer := &answer{header: make(http.Header), code: http.StatusOK}
	p.handler.ServeHTTP(answer, r.WithContext(ctx))
	p.awake()
	return answer.code
}

// An answer is an http.ResponseWriter that keeps only the status code.
type answer struct {
	header http.Header
	code   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(code int)        { a.code = code }

// A snapshotChecker checks the records of jobs after commits that change one of them. It reads the
// records as of the commit's time, directly from the emulator, without faults. While there are few
// records, it checks every commit. With more records it checks less often, so that it reads about a
// hundred records for each commit.
type snapshotChecker struct {
	*testing.T
	checks atomic.Int64

	mu        sync.Mutex
	abandoned map[string]time.Time                 // when each abandoned record was abandoned
	decoded   map[string]*datastorepb.EntityResult // the results of the last check, by their encoded form
	unread    int                                  // number of records that the next check may read
}

func (c *snapshotChecker) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if committed, ok := resp.(*datastorepb.CommitResponse); ok && err == nil && len(written(req)) > 0 && c.due() {
		commit := req.(*datastorepb.CommitRequest)
		c.check(info.Server.(datastorepb.DatastoreServer), commit.ProjectId, commitTime(committed))
	}
	return resp, err
}

// due reports whether to check the database after this commit. A check reads all records. So if
// there are n records, only one in n/100 commits is checked.
func (c *snapshotChecker) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread += 100; c.unread < len(c.decoded) {
		return false
	}
	c.unread = 0
	return true
}

// commitTime returns the time of a commit. The answer to a commit without a transaction does not
// have it, but the version of the written entities equals it.
func commitTime(committed *datastorepb.CommitResponse) *timestamppb.Timestamp {
	var at int64
	for _, r := range committed.MutationResults {
		at = max(at, r.Version)
	}
	return timestamppb.New(time.UnixMicro(at))
}

func (c *snapshotChecker) check(server datastorepb.DatastoreServer, project string, at *timestamppb.Timestamp) {
	c.checks.Add(1)
	c.mu.Lock()
	before, decoded := c.decoded, make(map[string]*datastorepb.EntityResult)
	c.mu.Unlock()
	// by the job's ID and incarnation, which distinguishes jobs with the same ID
	ranges := make(map[string][]rangeRecord)
	states, cleaned, totals := make(map[string]string), make(map[string]bool), make(map[string]bool)
	for _, kind := range []string{record.JobKind, record.RangeKind} {
		q := &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}}
		for more := true; more; {
			resp, err := server.RunQuery(context.Background(), &datastorepb.RunQueryRequest{
				ProjectId: project, QueryType: &datastorepb.RunQueryRequest_Query{Query: q},
				ReadOptions: &datastorepb.ReadOptions{ConsistencyType: &datastorepb.ReadOptions_ReadTime{ReadTime: at}},
			})
			if err != nil {
				c.Errorf("read the records: %v", err)
				return
			}
			for _, encoded := range resp.Batch.EntityResults {
				wire, result := recode(encoded, before)
				decoded[wire] = result
				p := result.Entity.Properties
				if kind == record.JobKind {
					job := result.Entity.Key.Path[0].GetName() + " " + p["incarnation"].GetStringValue()
					states[job], cleaned[job] = p["state"].GetStringValue(), p["cleaned"].GetBooleanValue()
					totals[job] = len(p["totals"].GetBlobValue()) > 0
					continue
				}
				r := rangeRecord{Job: p["job"].GetStringValue(), State: p["state"].GetStringValue(),
					Alone: p["alone"].GetBooleanValue(), Start: positionOf(p["start"]), End: positionOf(p["end"])}
				if open := p["open"]; open != nil {
					mark := open.GetStringValue()
					r.Open = &mark
				}
				if !c.mayBe(result.Entity.Key.Path[0].GetName(), r.State, at.AsTime()) {
					c.Errorf("job %s: a range was abandoned, and is %s", r.Job, r.State)
				}
				if r.Job == "" {
					continue // this record only prevents the late commit of a start
				}
				job := r.Job + " " + p["incarnation"].GetStringValue()
				ranges[job] = append(ranges[job], r)
			}
			more = resp.Batch.MoreResults == datastorepb.QueryResultBatch_NOT_FINISHED
			q.StartCursor = resp.Batch.EndCursor
		}
	}
	c.mu.Lock()
	c.decoded = decoded
	c.mu.Unlock()
	for job := range ranges {
		switch {
		case states[job] == "":
			c.Errorf("there are %d ranges of a job that is gone", len(ranges[job]))
		case cleaned[job] && totals[job] && slices.ContainsFunc(ranges[job], func(r rangeRecord) bool {
			return r.State == "pending"
		}):
			c.Errorf("job %s was added up for its clean-up, and a range is pending", job)
		case !cleaned[job]: // otherwise, the job's records are being deleted
			checkRecords(c, job, states[job], ranges[job])
		}
	}
}

// mayBe reports whether a record may have a state at a time: a record that was abandoned must stay
// so.
func (c *snapshotChecker) mayBe(name, state string, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.abandoned[name]
	if state != "abandoned" {
		return !known || !at.After(since)
	}
	if !known || at.Before(since) {
		if c.abandoned == nil {
			c.abandoned = make(map[string]time.Time)
		}
		c.abandoned[name] = at
	}
	return true
}

// recode decodes an encoded result of a query. If the last check has decoded the same bytes, it
// takes its result, because most records do not change between commits.
func recode(
	encoded *datastorepb.EntityResult, before map[string]*datastorepb.EntityResult,
) (string, *datastorepb.EntityResult) {
	wire, err := proto.Marshal(encoded)
	if err != nil {
		panic(err)
	}
	if result, ok := before[string(wire)]; ok {
		return string(wire), result
	}
	result := new(datastorepb.EntityResult)
	if err := proto.Unmarshal(wire, result); err != nil {
		panic(err)
	}
	return string(wire), result
}

// positionOf decodes a position (a place in the order of a job's entities) from a value. It returns
// nil if there is none.
func positionOf(v *datastorepb.Value) *keyspace.Position {
	p := v.GetEntityValue().GetProperties()
	if p == nil {
		return nil
	}
	at := &keyspace.Position{
		Namespace: p["namespace"].GetStringValue(), Kind: p["kind"].GetStringValue(),
		Valued: p["valued"].GetBooleanValue(),
	}
	if p["key"].GetKeyValue() != nil {
		at.Key = keyOf(p["key"])
	}
	switch v := p["value"].GetValueType().(type) {
	case *datastorepb.Value_IntegerValue:
		at.Value = v.IntegerValue
	case *datastorepb.Value_TimestampValue:
		at.Value = v.TimestampValue.AsTime()
	case *datastorepb.Value_StringValue:
		at.Value = v.StringValue
	case *datastorepb.Value_DoubleValue:
		at.Value = v.DoubleValue
	case *datastorepb.Value_BooleanValue:
		at.Value = v.BooleanValue
	case *datastorepb.Value_BlobValue:
		at.Value = v.BlobValue
	}
	return at
}

// keyOf decodes a key from a value. It returns nil if there is none.
func keyOf(v *datastorepb.Value) *datastore.Key {
	var key *datastore.Key
	for _, el := range v.GetKeyValue().GetPath() {
		key = &datastore.Key{Kind: el.Kind, ID: el.GetId(), Name: el.GetName(), Parent: key,
			Namespace: v.GetKeyValue().GetPartitionId().GetNamespaceId()}
	}
	return key
}
