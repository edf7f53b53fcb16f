package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Mapper is a function with a name, which jobs run over entities. P is the type of its
// parameters, which are stored as JSON. Define a mapper as a package-level variable. Then every
// process that starts or runs its jobs has the same one.
type Mapper[P any] struct {
	def function.Definition
}

// NoParams is the parameter type of a mapper without parameters.
type NoParams struct{}

// Update defines a mapper whose function changes entities. The name has 1 to 100 letters, digits,
// '_', '.' and '-'. The changes of e.Value, and the function's puts, deletes and counts, are
// committed exactly once for each entity. They commit together with the job's own records, and only
// if nobody else has changed the entity since the function got it.
//
// The function may run several times for an entity, so it should be short and have no other
// effects. If others change the entity before its page is committed, the function runs again on the
// new state. The writes and counts of its earlier run are dropped. The same holds for other
// entities that the function reads by [Entity.Get]. Calls on the entities of a page run one after
// the other, unless the job has a concurrency ([Mapper.WithConcurrency]).
//
// An Update loads e.Value, calls the function, and merges the result into the stored entity:
//
//   - A field that the function does not change stays as stored, bit for bit, even if the Go type
//     can't represent it. For example, null stays null.
//   - A field that the function changes is stored as the client's Put stores it. In an array or
//     embedded entity, unchanged elements stay as stored, even if they move. A changed element is
//     merged with the stored element at its position, so that properties which T does not declare
//     stay. If it is unclear to which element such properties belong, the entity is a failure.
//   - A field that is not stored yet is stored, even if it is false or 0, unless it has the tag
//     omitempty.
//   - Properties that T does not declare stay as stored.
//
// An entity is not written if nothing differs, or if the function returns [Skip]. Status.Written
// counts the written entities. [Entity.Resave] and [Entity.Touch] write entities that the function
// does not change.
//
// If the function returns an error, the entity stays unchanged, and the job continues with the
// other entities. The entity is retried alone. After its last attempt ([DefaultUpdateAttempts],
// [RetryPolicy]) it is recorded as a failure. [Permanent] marks an error that is not retried, and
// [RetryAfter] delays the next attempt. A value that does not fit T is a permanent error.
//
// If too many entities of a page fail, the function is probably at fault. Then nothing of the page
// is committed, and the page is retried as a whole, with as many attempts as an entity has. After
// the last attempt the job fails. It fails at once if all of these errors are permanent. One of two
// conditions makes the failures too many:
//
//   - More than 10 entities of the page have failed, and these are more than 5% of
//     [StartOptions].PageSize.
//   - More than half of the page has failed. In addition, more than 10 and more than 5% have failed
//     among the process's latest calls, and also among all of the job's entities so far.
//
// The job also fails if the database refuses to write an entity, and too many entities have failed
// before. Too many are more than 10, and more than 5% of the job's entities so far.
//
// T is a struct, or a type whose pointer implements datastore.PropertyLoadSaver. A struct needs
// only the fields that the function uses, with their usual tags. A PropertyLoadSaver declares the
// properties that it saves. A datastore.PropertyList has all properties. If the function renames a
// property in it, the value stays as stored, bit for bit. It is an error if the names of a property
// and of its field differ only in case.
func Update[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Update, fn)
}

// Visit defines a mapper whose function has its effects outside Datastore. The function runs at
// least once for each entity; [Entity.IdempotencyKey] lets another service recognise repetitions.
// Its counts take effect once for each entity. Changes of e.Value are not saved.
//
// Calls on the entities of a page run one after the other, so that they do not overload a service.
// [Mapper.WithConcurrency] changes that. Errors are treated as in an [Update], with up to
// [DefaultVisitAttempts] attempts, because a service may be down for an hour.
//
// If more than 4% of the calls fail, the job slows down to the rate that the service accepts.
// Errors marked by [Permanent] do not count. Mark an error by [RetryAfter] if the service asks for
// a later call.
func Visit[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Visit, fn)
}

// WithConcurrency sets how many calls of the function run at once in one page, in [1, 1000].
// Defaults to 1. [StartOptions].Concurrency overrides it for a job. WithConcurrency returns the
// mapper, for use in its definition. [NewEngine] returns an error if n is out of bounds.
//
// Use it for a function that waits for other services. The calls run in several goroutines, so
// shared data needs a lock. Maps and pointers in the parameters are shared data, too.
//
// Calls start in the order of keys, and their results take effect in that order. If a call reads by
// [Entity.Get] what the call for an earlier entity of the page writes, it runs again after that
// call.
//
// A [Rate], and the slower speed after a [RetryAfter], hold for all calls together. If a service
// refuses calls, the page ends early. The function of a [Visit] may then run again for entities
// whose calls were under way.
func (m *Mapper[P]) WithConcurrency(n int) *Mapper[P] {
	if (n < 1 || n > record.MaxPageSize) && m.def.Err == nil {
		m.def.Err = fmt.Errorf("WithConcurrency: %d is not in [1, %d]", n, record.MaxPageSize)
	}
	m.def.Concurrency = n
	return m
}

// WithDescription sets a sentence that says what the mapper does, for people who start its jobs.
// The dashboard shows it. WithDescription returns the mapper, for use in its definition.
func (m *Mapper[P]) WithDescription(text string) *Mapper[P] {
	m.def.Description = text
	return m
}

// concurrencyOf returns the Concurrency for a new job's record. It is 0 if calls run one after the
// other, as in the records of older builds.
func concurrencyOf(o StartOptions, def *function.Definition) int64 {
	n := cmp.Or(o.Concurrency, def.Concurrency, 1)
	if n == 1 {
		return 0
	}
	return int64(n)
}

// WithFinalizer adds a finalizer to the mapper, and returns the mapper, for use in its definition.
// A finalizer is a function that runs after the last page of a job, if the job succeeds, with or
// without failures. It runs in a task of its own, possibly several times. Its puts and deletes
// commit in the transaction that ends the job, so they take effect exactly once. After a
// [Job.Retry] the job ends a second time, and then the finalizer takes effect a second time. A
// rehearsal does not run the finalizer.
//
// If the finalizer returns an error, or takes more than 30 s, the queue retries it, and
// Status.Error shows the error. The job fails if the error is marked by [Permanent], if the
// database refuses the writes, or if the finalizer kills its process five times ([MaxDeaths]).
func (m *Mapper[P]) WithFinalizer(fn func(ctx context.Context, d *Completion, params P) error) *Mapper[P] {
	if fn == nil {
		m.def.Err = errors.New("WithFinalizer: the function is nil")
		return m
	}
	m.def.OnDone = func(ctx context.Context, a *function.Attempt, j *record.Job, sum record.Totals) error {
		status, err := completionOf(ctx, j, sum)
		if err != nil {
			return err
		}
		var params P
		if err := function.DecodeParams(j.Params, &params); err != nil {
			return err
		}
		return fn(ctx, &Completion{Status: status, attempt: a}, params)
	}
	return m
}

// Forget makes the mapper's jobs keep nothing about the entities that they processed. Use it in the
// definition of a mapper that erases personal data; it returns the mapper. If a job has no
// failures, it deletes the records of its ranges after the last entity. Then it calls fn, in a task
// of its own and outside any transaction. The call may take up to half of the queue's
// DispatchDeadline.
//
// When fn returns nil, the job ends, and its query, parameters, errors, reasons and counters are
// removed from its record. A salted hash of query and parameters stays; the salt is not kept. After
// that, a start of the job's ID is refused with [ErrWrongState], and the job can't be undone,
// retried or verified.
//
// fn runs at least once. If it returns an error, the queue retries it, and Status.Error shows the
// error. An error marked by [Permanent] fails the job, and [Job.Resume] calls fn again. In fn,
// [Completion.Proof] returns the proof from the deleted records, and [Completion.Forget] cleans
// other records. [Completion.Put] and [Completion.Delete] have no effect. A job with failures keeps
// its records. It runs the finalizer of [Mapper.WithFinalizer] and not fn.
func (m *Mapper[P]) Forget(fn func(ctx context.Context, d *Completion, params P) error) *Mapper[P] {
	if fn == nil {
		m.def.Err = errors.New("Forget: the function is nil")
		return m
	}
	m.def.Forget = func(ctx context.Context, a *function.Attempt, j *record.Job, sum record.Totals) error {
		status, err := completionOf(ctx, j, sum)
		if err != nil {
			return err
		}
		var params P
		if err := function.DecodeParams(j.Params, &params); err != nil {
			return err
		}
		closing, err := j.DecodeClosing()
		if err != nil || closing == nil {
			return fmt.Errorf("what the records have proved is gone: %w", err)
		}
		return fn(ctx, &Completion{Status: status, attempt: a, closing: closing}, params)
	}
	return m
}

var errNoMapper = errors.New("the mapper is nil, or was not made by a function of this package, such as Update")

// A starter is a function that starts a job of a mapper by the mapper's name: see
// [Mapper.WithStarter].
type starter = func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error)

// WithStarter makes [Engine.StartByName] call start for this mapper. Use it if something must be
// prepared before each job, such as a folder. The function start gets the caller's parameters as
// JSON, which may have another type than P; [CheckParams] decodes them. It prepares the job, and
// starts it by [Mapper.Start]. If start is nil, only the program starts jobs of the mapper: starts
// by name are refused, and [Engine.Mappers] leaves the mapper out. WithStarter returns the mapper,
// for use in its definition.
func (m *Mapper[P]) WithStarter(
	start func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error),
) *Mapper[P] {
	m.def.ByName = start
	return m
}

// CheckByName sets the function by which [Engine.PlanByName] checks parameters. Use it together
// with [Mapper.WithStarter], because the caller's parameters then may have another type than P.
// Without it, plans of such a mapper do not check parameters. The argument params is their type,
// for [MapperInfo].ParamsType; nil stands for P. CheckByName returns the mapper, for use in its
// definition.
func (m *Mapper[P]) CheckByName(params reflect.Type, check func(params json.RawMessage) error) *Mapper[P] {
	m.def.GivenType, m.def.Given = params, check
	return m
}

// A Validator is a type of parameters that can check its values. Starts, ticks of a [Schedule] and
// plans call Validate before they record anything. If Validate returns an error, they return
// [ErrInvalidArgument]. A running job does not call it. The error should name the parameter by its
// JSON name. The method may have a pointer receiver.
//
//	type Params struct {
//		Amount int64 `json:"amount"`
//	}
//
//	func (p Params) Validate() error {
//		if p.Amount <= 0 {
//			return fmt.Errorf(`"amount" is %d, it has to be positive`, p.Amount)
//		}
//		return nil
//	}
//
// Every start also refuses JSON with an unknown name, a repeated name, or null for a field that
// can't be null. In a field of type any it refuses a number that a float64 would round.
type Validator interface{ Validate() error }

// CheckParams decodes JSON into params, and checks them as a start does (see [Validator]). If they
// are invalid, the error is [ErrInvalidArgument]. Use it in the function of [Mapper.WithStarter].
func CheckParams[P any](encoded json.RawMessage, params *P) error {
	if err := function.ReadParams(encoded, params); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return nil
}

// Name returns the mapper's name.
func (m *Mapper[P]) Name() string { return m.def.Name }

func (m *Mapper[P]) definition() *function.Definition {
	if m == nil {
		return nil
	}
	return &m.def
}

// Start starts a job that runs the mapper over a query, and returns without waiting for it. If a
// job with the ID in o exists, Start returns that job: see [StartOptions].ID. A nil o has all
// defaults. The JSON of query and parameters together has up to 320 KiB. Errors:
// [ErrInvalidArgument], [ErrIDTaken], [ErrUnknownMapper], [ErrWrongState] and [ErrWrongQueue].
func (m *Mapper[P]) Start(ctx context.Context, e *Engine, q Query, params P, o *StartOptions) (*Job, error) {
	if m == nil || m.def.Prepare == nil {
		return nil, fmt.Errorf("mapper: start: %w: %w", ErrInvalidArgument, errNoMapper)
	}
	encoded, err := function.EncodeParams(params)
	if err != nil {
		return nil, fmt.Errorf("mapper: start a job of %q: %w: %w", m.def.Name, ErrInvalidArgument, err)
	}
	return e.start(ctx, &m.def, q, encoded, o)
}

// An AnyMapper is a *[Mapper] with any type of parameters. Other types can't implement it. It is
// the type of the mappers in [EngineOptions].
type AnyMapper interface {
	Name() string
	definition() *function.Definition
}

var mapperName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}$`)

func define[T, P any](name string, m function.Mode, fn func(context.Context, *Entity[T], P) error) *Mapper[P] {
	d := function.Definition{Name: name, Mode: m, Params: reflect.TypeFor[P]()}
	loader := reflect.PointerTo(reflect.TypeFor[T]()).Implements(reflect.TypeFor[datastore.PropertyLoadSaver]())
	switch {
	case !mapperName.MatchString(name):
		d.Err = fmt.Errorf("the name %q is not 1 to 100 letters, digits, '_', '.' and '-'", name)
	case fn == nil:
		d.Err = errors.New("the function is nil")
	case !loader && reflect.TypeFor[T]().Kind() != reflect.Struct:
		d.Err = fmt.Errorf("entities have the type %v, which is neither a struct nor a datastore.PropertyLoadSaver",
			reflect.TypeFor[T]())
	case !loader:
		_, d.Err = datastore.SaveStruct(new(T)) // returns an error if the client can't save the struct
	}
	d.Canonical = func(encoded json.RawMessage) (json.RawMessage, error) {
		var params P
		if err := function.ReadParams(encoded, &params); err != nil {
			return nil, err
		}
		return function.EncodeParams(params)
	}
	d.Prepare = func(encoded json.RawMessage, keysOnly bool) (function.Func, error) {
		var params P
		if err := function.DecodeParams(encoded, &params); err != nil {
			return nil, err
		}
		return func(ctx context.Context, j function.Job, key *datastore.Key, stored *pb.Entity) (*function.Effect,
			error) {
			return apply(m, keysOnly, j, key, stored, func(e *Entity[T]) error { return fn(ctx, e, params) })
		}, nil
	}
	return &Mapper[P]{def: d}
}
