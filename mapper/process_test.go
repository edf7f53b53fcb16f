package mapper_test

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
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/tasks"
)

// A process has an engine and clients of its own. One that is killed loses all that it has under
// way: it reaches neither the database nor the queue any more. One that is stopped does nothing
// until it wakes, as after SIGSTOP: what it has under way goes on then. One that freezes, between
// what it has read and what it does about it, is given up by its platform, which starts another in
// its place; it thaws when the fleet says so.
type process struct {
	context.Context
	kill    func()
	engine  *mapper.Engine
	handler http.Handler
	stops   *stops
	fleet   *fleet

	mu     sync.Mutex
	until  time.Time     // when it wakes
	frozen chan struct{} // is closed when it thaws
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

// stops say how often processes stop: at any call that they make, before or after it.
type stops struct {
	mu    sync.Mutex
	rng   *rand.Rand
	share float64 // of calls
	left  int     // how many more there are
	most  time.Duration
	count int

	freezes     int     // how many more processes freeze
	freezeShare float64 // at a call

	deaths      int // how many more processes die
	deathShare  float64
	draftDeaths int // how many more processes die while they add up records, before or after they keep a draft
	draftShare  float64
	draftRng    *rand.Rand
}

// dieAdding sets how many more processes die within an addition, and how likely one does at a
// draft.
func (s *stops) dieAdding(n int, share float64, rng *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draftDeaths, s.draftShare, s.draftRng = n, share, rng
}

// drawDraftDeath reports whether a process dies at a draft, and whether that is recorded.
func (s *stops) drawDraftDeath() (dies, recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draftDeaths == 0 || s.draftRng.Float64() >= s.draftShare {
		return false, false
	}
	s.draftDeaths--
	return true, s.draftRng.IntN(2) == 0
}

// allow sets how many more stops there are, and how likely one is at a call.
func (s *stops) allow(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.share = n, share
}

// freeze sets how many more processes freeze, and how likely one does when it has read something.
func (s *stops) freeze(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freezes, s.freezeShare = n, share
}

// kill sets how many more processes die, and how likely one does at a call, before it or after it.
func (s *stops) kill(n int, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths, s.deathShare = n, share
}

// calm has no more processes stop, freeze or die by themselves.
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

// drawFreeze reports whether a process freezes at a call that it makes for a task of a path. There
// are few tasks of whole jobs, so they are more likely to meet it.
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

// draw returns for how long a process stops at a call: mostly it does not. A second is as likely as
// an hour.
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

// A mishap is what happens to a process while it does what an operator asks for: before one of its
// calls, or behind it.
type mishap struct {
	happen func(*process)
	commit bool // it happens behind the answer to a commit,
	deadly bool // and if it does not, the process dies behind the next one

	mu       sync.Mutex
	after    int // otherwise it happens behind so many calls and answers
	happened bool

	commits, since int // that were answered: in all, and since it happened
}

type mishapKey struct{}

// with returns the context of an operator who meets the mishap.
func (m *mishap) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, mishapKey{}, m)
}

// pass has the mishap happen, if it is time.
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

// pass is called where a process makes a call, or has its answer: it may die or stop there, and it
// goes on when it is awake.
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

// awake waits until the process is awake. It reports whether it was not.
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
			time.Sleep(min(d, time.Minute)) // it may be woken, see fleet.wake
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

// serve handles a request, and returns its answer. The request's end reaches the handler, unless
// this is a zombie: a process that sleeps learns of it when it wakes, and may have made a call by
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
				case <-ctx.Done(): // it has answered meanwhile
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

// An answer keeps what a process answers.
type answer struct {
	header http.Header
	code   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(code int)        { a.code = code }
