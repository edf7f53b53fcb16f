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

// A fleet is a number of processes that share the deliveries of a world.
type fleet struct {
	world   *world
	mappers []mapper.AnyMapper
	queue   string      // the queue of its processes
	target  string      // the URL of its tasks
	zombies float64     // the share of deliveries that continue after their request has ended
	fails   atomic.Bool // jobs are expected to fail
	stops   stops

	portion     int           // see bridge.Portion; 0: the default
	portionTime time.Duration // 0: the default
	undoMost    int64         // see bridge.UndoMost; 0: the default

	mu        sync.Mutex
	rng       *rand.Rand
	processes []*process
	frozen    []*process // which others have replaced
	killed    int
}

// noErrors is a log handler that fails the test if a process logs an error: that it dropped a task,
// or that a job failed.
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

// byTheEnd reports whether a log record says that a job failed at its end: by its finalizer, or by
// changed records. Simulations cause both, and check the job's status.
func byTheEnd(r slog.Record) (yes bool) {
	r.Attrs(func(a slog.Attr) bool {
		cause := a.Value.String()
		yes = yes || a.Key == "cause" && (strings.HasPrefix(cause, "its records do not add up") ||
			strings.Contains(cause, "the finalizer"))
		return true
	})
	return yes && r.Message == "job failed"
}

// newFleet sends the deliveries of a world to a new fleet.
func newFleet(w *world, seed uint64, size int, mappers ...mapper.AnyMapper) *fleet {
	f := newFleetOf(w, queueName, target, seed, size, mappers...)
	w.handler = f
	return f
}

// newFleetOf returns a fleet that uses a queue of a world. The caller sends the queue's deliveries
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

// addIn makes the processes keep a draft of a job's sums after each number of records of a slice.
// After a time a process leaves the rest to a new task.
func (f *fleet) addIn(records int, longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.portion, f.portionTime = records, longest
	for _, p := range f.processes {
		bridge.Portion(p.engine, records, longest)
	}
}

// undoesBy limits the images in one commit of an undo to a number of bytes.
func (f *fleet) undoesBy(most int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.undoMost = most
	for _, p := range f.processes {
		bridge.UndoMost(p.engine, most)
	}
}

// kill ends a process, and starts another in its place.
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

// drain drains a process for the time that its platform allows, ends it, and starts another in its
// place.
func (f *fleet) drain(p *process, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := p.engine.Drain(ctx)
	f.kill(p)
	return err
}

// retire is drain on a platform that stops sending deliveries before it tells the process to end,
// as Cloud Run does. A process that has drained in time ends after its last answer.
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

// freeze stops a process until the fleet thaws, and starts another in its place.
func (f *fleet) freeze(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.processes, p)
	if i < 0 {
		return // it is dead, or already frozen
	}
	f.processes[i] = newProcess(f)
	f.frozen = append(f.frozen, p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

// thaw wakes all frozen processes.
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

// wake makes all stopped processes go on within a minute. A stop of hours is a fault, too, and has
// to end with the others.
func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range slices.Concat(f.processes, f.frozen) {
		p.mu.Lock()
		p.until = time.Time{}
		p.mu.Unlock()
	}
}

// deaths returns how many processes have died.
func (f *fleet) deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// killAny ends one of the processes.
func (f *fleet) killAny() { f.kill(f.pick()) }

func (f *fleet) pick() *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[f.rng.IntN(len(f.processes))]
}

// die ends the process that runs a mapper's function. The function calls it in place of os.Exit.
func (f *fleet) die(ctx context.Context) error {
	f.kill(ctx.Value(processKey{}).(*process))
	return ctx.Err()
}

// ServeHTTP passes a delivery to one of the processes.
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
	case <-p.Done(): // nobody can answer any more
		rw.WriteHeader(http.StatusBadGateway)
	}
}

// A process has an engine and clients of its own. It can come to an end, or stand still, in three
// ways:
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

	requests sync.WaitGroup // deliveries that the platform has not answered

	mu     sync.Mutex
	until  time.Time     // when it wakes
	frozen chan struct{} // closed when it thaws
}

type (
	processKey struct{}
	pathKey    struct{}
)

// pathOf returns the last element of the path of the task that is under way.
func pathOf(ctx context.Context) string {
	path, _ := ctx.Value(pathKey{}).(string)
	return path
}

// stops say how often processes stop. They may do so at any call that they make, before or after
// it.
type stops struct {
	mu    sync.Mutex
	rng   *rand.Rand
	share float64 // chance to stop at a call
	left  int     // how many more stops there are
	most  time.Duration
	count int

	freezes     int     // how many more processes freeze
	freezeShare float64 // chance to freeze at a call

	deaths      int // how many more processes die
	deathShare  float64
	draftDeaths int // how many more processes die beside a draft, before or after it is kept
	draftShare  float64
	draftRng    *rand.Rand
}

// dieAdding sets how many more processes die during an addition, and the chance at a draft.
func (s *stops) dieAdding(n int, share float64, rng *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draftDeaths, s.draftShare, s.draftRng = n, share, rng
}

// drawDraftDeath reports whether a process dies at a draft, and whether the draft is recorded.
func (s *stops) drawDraftDeath() (dies, recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draftDeaths == 0 || s.draftRng.Float64() >= s.draftShare {
		return false, false
	}
	s.draftDeaths--
	return true, s.draftRng.IntN(2) == 0
}

// allow sets how many more stops there are, and the chance at a call.
func (s *stops) allow(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.share = n, share
}

// freeze sets how many more processes freeze, and the chance after a read.
func (s *stops) freeze(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freezes, s.freezeShare = n, share
}

// kill sets how many more processes die, and the chance at a call, before or after it.
func (s *stops) kill(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths, s.deathShare = n, share
}

// calm ends all stops, freezes and deaths that are drawn at random.
func (s *stops) calm() {
	s.allow(0, 0)
	s.freeze(0, 0)
	s.kill(0, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draftDeaths = 0
}

// drawDeath reports whether a process dies at a call.
func (s *stops) drawDeath() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaths == 0 || s.rng.Float64() >= s.deathShare {
		return false
	}
	s.deaths--
	return true
}

// drawFreeze reports whether a process freezes at a call that it makes for a task of a path. Tasks
// of whole jobs are rare, so their chance is higher.
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

// draw returns how long a process stops at a call: mostly not at all. A second is as likely as an
// hour.
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

// A mishap happens to a process during an operation, before one of its calls or after it.
type mishap struct {
	happen func(*process)
	commit bool // it happens after the answer to a commit,
	deadly bool // and if the process survives it, the process dies after the next commit

	mu       sync.Mutex
	after    int // otherwise it happens after this many calls and answers
	happened bool

	commits, since int // answered commits: in all, and since it happened
}

type mishapKey struct{}

// with returns the context of an operator who meets the mishap.
func (m *mishap) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, mishapKey{}, m)
}

// pass makes the mishap happen, if it is time.
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

// pass is called where a process makes a call, or gets its answer. The process may die or stop
// there. Otherwise pass returns when the process is awake.
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

// awake waits until the process is awake, and reports whether it had to wait.
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
			time.Sleep(min(d, time.Minute)) // fleet.wake may wake it earlier
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

// newProcess starts a process of a fleet.
func newProcess(f *fleet) *process {
	w := f.world
	p := &process{stops: &f.stops, fleet: f}
	intercept := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(p.intercept))
	database, err := w.emulator.DatastoreClient(context.Background(), "test",
		append(slices.Clip(w.options), intercept)...)
	if err != nil {
		panic(err)
	}
	client, err := w.emulator.TasksClient(context.Background(), intercept)
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

// serve handles a request, and returns its status code. The end of the request reaches the handler,
// except in a zombie. A sleeping process learns of it when it wakes, and may have made a call by
// then.
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
				case <-ctx.Done(): // the handler has answered meanwhile
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

// An answer keeps the status code of a response.
type answer struct {
	header http.Header
	code   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(code int)        { a.code = code }

// A snapshotChecker checks the records of jobs after commits that change one, at the time of the
// commit. It asks the Datastore's server directly, past all faults. While there are few records it
// checks every commit. Later it checks so often that it reads a hundred records for each commit.
type snapshotChecker struct {
	*testing.T
	checks atomic.Int64

	mu        sync.Mutex
	abandoned map[string]time.Time                 // records, and since when they are abandoned
	decoded   map[string]*datastorepb.EntityResult // of the last check, by their wire format
	unread    int                                  // records that the next check may read
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

// due reports whether a commit is to be checked.
func (c *snapshotChecker) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread += 100; c.unread < len(c.decoded) {
		return false
	}
	c.unread = 0
	return true
}

// commitTime returns the time of a commit, which equals the version of the entities that it wrote.
// Only the answer to a transactional commit names it.
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
	ranges := make(map[string][]rangeRecord) // by job and incarnation
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
					continue // it only prevents a late start from recording a job
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
		case !cleaned[job]: // its records are being deleted
			checkRecords(c, job, states[job], ranges[job])
		}
	}
}

// mayBe reports whether a record may be in a state at a time: an abandoned one stays abandoned.
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

// recode decodes a result whose entity is in encoded form. It takes the result from the last check
// if that has decoded it: most records of a job do not change between commits.
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

// positionOf returns the position in a value, or nil.
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

// keyOf returns the key in a value, or nil.
func keyOf(v *datastorepb.Value) *datastore.Key {
	var key *datastore.Key
	for _, el := range v.GetKeyValue().GetPath() {
		key = &datastore.Key{Kind: el.Kind, ID: el.GetId(), Name: el.GetName(), Parent: key,
			Namespace: v.GetKeyValue().GetPartitionId().GetNamespaceId()}
	}
	return key
}
