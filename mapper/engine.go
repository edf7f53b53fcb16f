package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/stranger"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undo"
	"github.com/scattermap/scattermap/tasks"
)

// EngineOptions are the settings of an [Engine].
type EngineOptions struct {
	// Mappers are the mappers whose jobs the engine starts and runs. Required.
	Mappers []AnyMapper

	// Logger receives a line for each change of a job's state, with its cause, the caller
	// ([WithCaller]) and the work done so far. It also receives warnings. Of each warning it gets
	// at most ten lines a minute, and the number of lines left out. Entities, keys, parameters and
	// errors of functions are never logged; the job's records have them. Defaults to
	// slog.Default().
	Logger *slog.Logger

	// OnStateChange, if set, is called after each change of a job's state: its start, its end, and
	// each pause, resume, abort and retry, by a caller or by a limit. The process that made the
	// change calls it once, after the commit and outside any transaction. Calls may be concurrent.
	// A call costs up to 250 reads and 10 s, to count the work done. The method that changed the
	// state, such as [Job.Pause], returns after OnStateChange. A panic is logged and has no other
	// effect.
	//
	// Package webhook has such a function, which posts the changes to a URL.
	//
	// A change may be missed: if the process dies between the commit and the call, there is no
	// call. If you must not miss a change, poll [Engine.JobsPage]. To record the end of a job
	// reliably, use a finalizer ([Mapper.WithFinalizer]).
	OnStateChange func(ctx context.Context, c StateChange)

	// Schedules are the engine's schedules. The engine starts their waiting runs. With
	// [OverlapQueue], a run that is due may wait for the end of a job. The engine starts it when
	// any job ends or pauses in this process, and in [Engine.ReviveJobs].
	Schedules []AnySchedule

	// MeterProvider and TracerProvider receive the metrics and traces of docs/telemetry.md. They
	// default to the global ones of OpenTelemetry, which drop everything unless the program sets
	// them.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// OtherQueues are further queues for the engine's jobs. Use them for work that must not wait
	// for other work, or that has its own rate. [Mapper.WithQueue] and [StartOptions.Queue] choose
	// a queue. All queues deliver to the URL of the first one; [Engine.Handler] recognises the
	// queue of each task.
	OtherQueues []*tasks.Queue

	// Retain is how long the records of new jobs are kept after their end, at least [MinRetain].
	// [StartOptions.Retain] overrides it for a job. It also holds for jobs of schedules, exports,
	// prebuilt mappers and undos. A later change holds only for jobs that start after it. Defaults
	// to [RetainAlways].
	Retain time.Duration

	// Prices are used for plans, budgets and the cost of jobs. Defaults to [billing.NAM5], if all
	// prices are 0.
	Prices billing.Prices
}

// An Engine starts jobs, follows them, and runs their tasks. Engines with the same database, queues
// and mappers are interchangeable: one process can start a job, and many others run it. A process
// should have only one Engine. It is safe for concurrent use.
//
// A job belongs to the queue in which it was started. An engine without that queue can only read
// the job, or take it over by [Job.Move].
type Engine struct {
	client  *datastore.Client
	queue   *tasks.Queue // the engine's first queue
	mappers map[string]*function.Definition
	log     *slog.Logger
	jobs    *lifecycle.Jobs // controls the jobs of the first queue
	queues  queues
	health  *store.Health
	retain  time.Duration // how long the records of new jobs are kept after their end

	serves    atomic.Bool // whether Handler was called
	schedules []string    // names of the engine's schedules
	prices    billing.Prices

	shown    *estimate.Shown
	undoMost *atomic.Int64 // the limit of bytes in one commit of an undo; 0: the default
}

// NewEngine returns an engine that keeps its records in the client's database, and sends its tasks
// through the queue. It does not connect to either. The client must be made with [NewClient] or
// [ClientOption]. Mount [Engine.Handler] at the path of the queue's URL, so that the tasks run. It
// returns an error if a mapper, a schedule or an option is invalid.
func NewEngine(client *datastore.Client, queue *tasks.Queue, o *EngineOptions) (*Engine, error) {
	if client == nil || queue == nil {
		return nil, errors.New("mapper: NewEngine needs a client and a queue")
	}
	if !intercept.Has(client) {
		return nil, fmt.Errorf("mapper: %w: %w", ErrInvalidArgument, errPlainClient)
	}
	if o == nil || len(o.Mappers) == 0 {
		return nil, errors.New("mapper: EngineOptions.Mappers is empty")
	}
	if err := checkRetain("EngineOptions.Retain", o.Retain); err != nil {
		return nil, fmt.Errorf("mapper: %w: %w", ErrInvalidArgument, err)
	}
	prices, err := pricesOf(o.Prices)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		prices: prices,
		client: client, queue: queue, log: o.Logger, retain: o.Retain,
		mappers: make(map[string]*function.Definition), health: new(store.Health), undoMost: new(atomic.Int64),
		shown: new(estimate.Shown),
	}
	if e.log == nil {
		e.log = slog.Default()
	}
	if err := e.register(o.Mappers); err != nil {
		return nil, err
	}
	if err := e.schedule(o.Schedules); err != nil {
		return nil, err
	}
	observer, err := observe.New(o.MeterProvider, o.TracerProvider)
	if err != nil {
		return nil, fmt.Errorf("mapper: %w", err)
	}
	observer.Store, observer.Log, observer.Flaws, observer.Hook = e.store(), e.log, observe.Limited(e.log),
		hookOf(o.OnStateChange)
	if schedules := o.Schedules; len(schedules) > 0 {
		observer.Hook = observe.Advancing(observer.Hook, func(ctx context.Context) error {
			return advance(ctx, e, schedules)
		}, observer.Flaws)
	}
	e.log = observer.Flaws
	e.jobs = &lifecycle.Jobs{Store: store.New(client), Queue: queue, Mappers: e.mappers, Log: e.log, Observer: observer,
		Gate: gate.New(), Random: lifecycle.Unique, Prices: e.prices, Serves: e.serves.Load}
	for _, def := range o.Mappers {
		observer.Has(context.Background(), def.Name())
	}
	e.jobs.Revived = func(ctx context.Context) error { return advance(ctx, e, o.Schedules) }
	if e.queues, err = queuesOf(e, o.OtherQueues); err != nil {
		return nil, err
	}
	return e, nil
}

// pricesOf returns the prices, or [billing.NAM5] if all prices are zero. It returns an error if a
// price is invalid.
func pricesOf(prices billing.Prices) (billing.Prices, error) {
	if prices == (billing.Prices{}) {
		return billing.NAM5, nil
	}
	for _, price := range []float64{prices.ReadsPer100K, prices.WritesPer100K, prices.DeletesPer100K,
		prices.SmallOpsPer100K, prices.TaskOpsPerMillion} {
		if !(price >= 0) || math.IsInf(price, 1) { // also NaN
			return prices, fmt.Errorf("mapper: %w: EngineOptions.Prices has %v, and prices are at least 0",
				ErrInvalidArgument, price)
		}
	}
	return prices, nil
}

// register adds mappers to the engine, and for each the mappers that rehearse it and that undo its
// jobs.
func (e *Engine) register(mappers []AnyMapper) error {
	for i, m := range mappers {
		var def *function.Definition
		if m != nil {
			def = m.definition()
		}
		if def == nil || def.Prepare == nil {
			return fmt.Errorf("mapper: EngineOptions.Mappers[%d] is nil, or was not made by a function of this "+
				"package, such as Update", i)
		}
		if def.Err != nil {
			return fmt.Errorf("mapper: EngineOptions.Mappers: mapper %q: %w", def.Name, def.Err)
		}
		if e.mappers[def.Name] != nil {
			return fmt.Errorf("mapper: EngineOptions.Mappers: two mappers have the name %q", def.Name)
		}
		e.mappers[def.Name] = def
		if def.Mode == function.Update {
			undoes := undo.Mapper(def, e.client, e.log, e.undoMost)
			for _, d := range []*function.Definition{undoes, undoes.Rehearsal(DefaultUpdateAttempts),
				def.Rehearsal(DefaultUpdateAttempts)} {
				e.mappers[d.Name] = d
			}
		}
	}
	return nil
}

// schedule checks the schedules of [EngineOptions], and adds their names to the engine.
func (e *Engine) schedule(schedules []AnySchedule) error {
	for i, s := range schedules {
		if s == nil {
			return fmt.Errorf("mapper: %w: EngineOptions.Schedules[%d] is nil", ErrInvalidArgument, i)
		}
		if err := s.defined(e); err != nil {
			return fmt.Errorf("mapper: %w: EngineOptions.Schedules[%d]: %w", ErrInvalidArgument, i, err)
		}
		if slices.Contains(e.schedules, s.Name()) {
			return fmt.Errorf("mapper: %w: EngineOptions.Schedules: two schedules have the name %q",
				ErrInvalidArgument,
				s.Name())
		}
		e.schedules = append(e.schedules, s.Name())
	}
	return nil
}

// source returns the source that reads entities from the engine's database. If e is nil, the calls
// of the source return an error.
func (e *Engine) source() source.Source {
	if e == nil {
		return source.New(nil, nil)
	}
	return source.New(e.client, e.log)
}

// store returns the store of the engine's records. Its calls have short timeouts, because a person
// may wait for them. If e is nil, they return an error that says so.
func (e *Engine) store() store.Store {
	if e == nil {
		return store.New(nil)
	}
	return store.New(e.client).Asked()
}

// names lists the names of the engine's mappers, for the text of an error.
func (e *Engine) names() string {
	var names []string
	for _, m := range e.Mappers() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// Handler returns the handler that runs the tasks of the engine's jobs. Mount it at the path of the
// queue's URL, with a slash at the end. The handler answers requests to other paths with 404 and
// logs them, because they show that the queue's URL is wrong. It limits the time for a request's
// body. To limit the time for the headers, set http.Server.ReadHeaderTimeout.
func (e *Engine) Handler() http.Handler {
	e.serves.Store(true)
	queues := make(map[string]map[string]http.Handler) // by queue and path
	for _, on := range e.queues {
		handlers := on.jobs.Handlers()
		handlers[body.RangePath] = on.jobs.Handler(body.RangePath, on.ranges.Deliver)
		queues[on.queue.Name()] = handlers
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers := queues[tasks.QueueOf(r)]
		if handlers == nil { // an older build's task, a schedule's, or of another service's queue
			handlers = queues[e.queue.Name()]
		}
		deliveries := handlers[path.Base(r.URL.Path)]
		if deliveries == nil {
			e.log.LogAttrs(r.Context(), slog.LevelWarn,
				"a request that is for no task: is the handler mounted at the path of the queue's URL?",
				slog.String("path", stranger.Shown(r.URL.Path)))
			stranger.Refuse(w, http.StatusNotFound)
			return
		}
		deliveries.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), engineKey{}, e)))
	})
}

// Job returns a handle on the job with an ID, for example in a process that did not start it. It
// does not check that the job exists; if not, the handle's methods return [ErrNoSuchJob]. Each call
// of a method is about the job that has the ID at that time.
func (e *Engine) Job(id string) *Job { return &Job{ID: id, engine: e} }

// Jobs lists the selected jobs, the last started first. It reads them by [Engine.JobsPage], one
// page at a time. If a read fails, the last element has the error.
func (e *Engine) Jobs(ctx context.Context, o *JobsOptions) iter.Seq2[JobInfo, error] {
	return pages(func(cursor string) ([]JobInfo, string, error) { return e.JobsPage(ctx, o, cursor) })
}

// pages returns an iterator over all elements of a list, which it reads one page at a time. The
// function page reads the page at a cursor, and returns the cursor of the next page.
func pages[T any](page func(cursor string) (some []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor, more := "", true; more; more = cursor != "" {
			some, next, err := page(cursor)
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, one := range some {
				if !yield(one, nil) {
					return
				}
			}
			cursor = next
		}
	}
}

// JobsPage lists a page of the selected jobs, the last started first. A page has up to 50 jobs, and
// costs up to 50 reads for each of the engine's queues. A nil o selects all jobs of the engine's
// queues.
//
// An empty cursor starts the list. Pass next as the cursor of the next page; an empty next ends the
// list. A cursor stays valid if the options change, because it stands for a time of start.
//
// Each page shows the states at the time when it is read. So if you list jobs by one state and then
// by another, you may miss a job that changes in between. A job that an older build has started is
// listed only after a newer build has changed its record.
func (e *Engine) JobsPage(ctx context.Context, o *JobsOptions, cursor string) (jobs []JobInfo, next string, err error) {
	o = cmp.Or(o, new(JobsOptions))
	if jobs, next, err = o.list(ctx, e.store(), e.listed(o), cursor, e.Prices()); err != nil {
		return nil, "", fmt.Errorf("mapper: jobs: %w", err)
	}
	return jobs, next, nil
}

// listed returns the queues whose jobs the options select. A single empty name in the result stands
// for all queues.
func (e *Engine) listed(o *JobsOptions) []record.Owner {
	if e != nil && e.queue != nil && !o.AllQueues {
		return e.queues.owners()
	}
	return []record.Owner{""}
}

// CountJobs returns the number of the selected jobs. It costs one read for every 1,000 of them, at
// least one for each of the engine's queues. A nil o selects all jobs of the engine's queues.
func (e *Engine) CountJobs(ctx context.Context, o *JobsOptions) (int64, error) {
	o = cmp.Or(o, new(JobsOptions))
	if err := record.CheckState(record.JobState(o.State)); err != nil {
		return 0, fmt.Errorf("mapper: count jobs: %w: %w", ErrInvalidArgument, err)
	}
	n, err := e.store().CountJobs(ctx, e.listed(o), o.listing())
	if err != nil {
		return 0, fmt.Errorf("mapper: count jobs: %w", err)
	}
	return n, nil
}

// ReviveJobs makes sure that every running job of the engine's queues has a sweep. A sweep is a
// task that runs every two minutes and enqueues lost tasks again. A job loses its sweep only if the
// queue is purged or gives up tasks, or if another server answers its deliveries with success. Let
// a scheduler call ReviveJobs, or post to the path "revive" of the handler.
//
// If tasks can't be delivered, ReviveJobs logs why. In total it costs up to 22 reads, a task, and
// two calls of the queue for each running job.
//
// ReviveJobs also starts lost clean-ups of jobs whose retention is over, see [StartOptions.Retain].
// It starts up to 1,000 for each queue, the oldest first, at a read and a task each.
func (e *Engine) ReviveJobs(ctx context.Context) error {
	if e == nil {
		return fmt.Errorf("mapper: revive: %w: the engine is nil", ErrInvalidArgument)
	}
	if err := e.jobs.Asked().Revive(ctx); err != nil {
		return fmt.Errorf("mapper: revive: %w", err)
	}
	return nil
}

// Drain stops the engine before its process ends. After a signal to end, such as SIGTERM, call
// Drain first, and then shut down the server.
//
// The handler answers new deliveries with 421, so that the queue repeats them at other processes.
// Deliveries under way end after their current entity. They commit a shorter page, and enqueue new
// tasks for the rest. None of this counts as an attempt or a crash. The process gives the jobs back
// the budget that it has reserved.
//
// Drain returns when all deliveries have ended, or with an error when ctx is done. A drained engine
// takes no more deliveries, but it can still start and follow jobs.
func (e *Engine) Drain(ctx context.Context) error {
	if e == nil {
		return fmt.Errorf("mapper: drain: %w: the engine is nil", ErrInvalidArgument)
	}
	if left, err := e.jobs.Gate.Drain(ctx); err != nil {
		return fmt.Errorf("mapper: drain: deliveries still under way: %d: %w", left, err)
	}
	for _, on := range e.queues {
		on.ranges.GiveBack(ctx)
	}
	return nil
}

// seed makes the engine draw its random numbers from a seed, so that a test run can be repeated.
func (e *Engine) seed(seed uint64) {
	drawn := lifecycle.Seeded(seed)
	for _, on := range e.queues {
		on.jobs.Random = drawn
	}
}

// engineKey is the context key for the engine that runs a task.
type engineKey struct{}

// EngineFromContext returns the engine that called a function or finalizer with this context. For
// any other context it returns nil.
//
// For example, a finalizer can start another job. The start is not part of the finalizer's
// transaction, and may happen several times. So derive the new job's ID from the ending job's ID: a
// repeated start then finds the same job.
func EngineFromContext(ctx context.Context) *Engine {
	e, _ := ctx.Value(engineKey{}).(*Engine)
	return e
}

// A MapperInfo describes a mapper of an engine: see [Engine.Mappers].
//
//nolint:revive // beside JobInfo, Info alone would not say of what
type MapperInfo struct {
	Name       string
	Visit      bool         // whether the mapper was made by [Visit], [VisitPages] or [VisitBatches]
	ParamsType reflect.Type // the type of the parameters of [Engine.StartByName]

	Description string // see [Mapper.WithDescription]
}

// Mappers returns the mappers that [Engine.StartByName] starts, sorted by name. It leaves out the
// mappers of rehearsals and undos, which the engine adds itself. It also leaves out mappers with a
// nil [Mapper.WithStarter], which only the program starts.
func (e *Engine) Mappers() (all []MapperInfo) {
	for _, name := range slices.Sorted(maps.Keys(e.mappers)) {
		if def := e.mappers[name]; !isDerived(name) && !onlyInside(def) {
			params := def.Params
			if def.GivenType != nil {
				params = def.GivenType
			}
			all = append(all, MapperInfo{name, def.Mode == function.Visit, params, def.Description})
		}
	}
	return all
}

// onlyInside reports whether only the program itself may start a mapper's jobs, and not a caller by
// name.
func onlyInside(def *function.Definition) bool {
	start, ok := def.ByName.(starter)
	return ok && start == nil
}

// Prices returns the engine's prices, see [EngineOptions].Prices.
func (e *Engine) Prices() billing.Prices {
	if e == nil {
		return billing.NAM5
	}
	return e.prices
}

// Client returns the client of the engine's database, which was passed to [NewEngine].
func (e *Engine) Client() *datastore.Client { return e.client }

// Queue returns the engine's first queue, which was passed to [NewEngine]. [Engine.Queues] returns
// all.
func (e *Engine) Queue() *tasks.Queue { return e.queue }

// Queues returns all of the engine's queues: [Engine.Queue], and then [EngineOptions].OtherQueues.
func (e *Engine) Queues() (all []*tasks.Queue) {
	for _, on := range e.queues {
		all = append(all, on.queue)
	}
	return all
}

// Owns reports whether the engine has the queue of this full name: see [tasks.Queue.Name].
func (e *Engine) Owns(queue string) bool { return e.queues.has(record.Owner(queue)) }

// CheckSettings compares the settings of the engine's queues with the limits of the service that
// runs their tasks. It returns an error if they contradict each other: see
// [tasks.Queue.CheckSettings].
func (e *Engine) CheckSettings(ctx context.Context, s tasks.ServiceLimits) error {
	var all []error
	for _, on := range e.queues {
		all = append(all, on.queue.CheckSettings(ctx, s))
	}
	return errors.Join(all...)
}

// CheckReady returns nil if the engine accepts deliveries and its database answers. Use it for your
// platform's readiness check. It looks up a key, with a timeout of 2 s, at most once a second.
func (e *Engine) CheckReady(ctx context.Context) error {
	if e == nil || e.client == nil {
		return fmt.Errorf("mapper: ready: %w: the engine is nil", ErrInvalidArgument)
	}
	if e.jobs.Gate.IsDraining() {
		return fmt.Errorf("mapper: ready: %w", gate.ErrDraining)
	}
	if err := e.health.Check(ctx, e.client); err != nil {
		return fmt.Errorf("mapper: ready: the database does not answer: %w", err)
	}
	return nil
}
