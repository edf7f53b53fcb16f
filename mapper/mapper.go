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

// A Mapper is a named function over entities. P is the type of its parameters, which are stored as
// JSON. Define a mapper as a package-level variable, so that every process that starts or runs its
// jobs has the same one.
type Mapper[P any] struct {
	def function.Definition
}

// NoParams is the parameter type of a mapper without parameters.
type NoParams struct{}

// Update defines a mapper whose function changes entities. The changes of e.Value, and all that the
// function puts, deletes and counts, are committed once for each entity, together with the job's
// own records. The commit takes effect only if nobody else has changed the entity since the
// function got it. The name has 1 to 100 letters, digits, '_', '.' and '-'.
//
// Calls on the entities of a page run one after the other, unless the job has a Concurrency
// ([Mapper.WithConcurrency]). The function may run several times for an entity, so it should be
// short and have no other effects. If others change an entity before its page is committed, the
// function runs again on the new state, and the writes and counts of its earlier run are dropped.
// [Entity.Get] reads other entities under the same guard.
//
// An Update loads e.Value, calls the function, and merges the result into the stored entity:
//
//   - A field that the function leaves alone stays as stored, bit for bit. So null stays null, and
//     meanings, index flags of elements and keys of other projects stay, too.
//   - A field that the function changes is stored as the client's Put stores it. In an array or
//     embedded entity, unchanged elements stay as stored, even at another position. A changed
//     element is merged with the stored element at its position, so properties that T does not
//     declare stay. If it is unclear where such properties belong, the entity is a failure.
//   - A field that is not stored yet is stored, even if it is false or 0, unless it has the tag
//     omitempty.
//   - Properties that T does not declare stay as stored.
//
// An entity in which nothing differs is not written, and neither is one for which the function
// returns [Skip]. Status.Written counts the written ones. [Entity.Resave] also stores changed tags,
// and the changes that T's Load makes. [Entity.Touch] writes an entity exactly as it is stored.
//
// An error leaves the entity unchanged. The entity is then retried alone until its attempts are
// used up ([DefaultUpdateAttempts], [RetryPolicy]), and after that recorded as a failure. The other
// entities go on. [Permanent] marks an error that is not retried, and [RetryAfter] delays the next
// attempt. A value that does not fit T is a permanent error.
//
// If too many entities of a page fail, the function is probably at fault. Too many are more than 10
// entities and more than 5% of [StartOptions].PageSize. In a small page they are more than half of
// it. But then the process's latest calls and the whole job must say the same: more than 10 and 5%
// have failed. The page is then retried as a whole, as often as an entity, and after that the job
// fails. It fails at once if all of these errors are permanent. It also fails if the database
// refuses the writes of more than 10 entities, and of more than 5% of the job's.
//
// T is a struct, or a type whose pointer implements datastore.PropertyLoadSaver. A struct needs
// only the fields that the function uses, with their usual tags. A PropertyLoadSaver declares the
// properties that it saves. A datastore.PropertyList has all properties; one that gets another name
// keeps its stored value. A property whose name differs from its field's only in case is an error.
func Update[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Update, fn)
}

// Visit defines a mapper whose function has its effects outside Datastore. The function runs at
// least once for each entity; [Entity.IdempotencyKey] lets another service recognise repetitions.
// Its counters count each entity once. Changes of e.Value are not saved.
//
// Calls on the entities of a page run one after the other, unless the job has a Concurrency
// ([Mapper.WithConcurrency]): a service may not expect more. Errors are treated as in an [Update],
// with up to [DefaultVisitAttempts] attempts, because a service may be down for an hour.
//
// If more than 4% of the calls fail, errors marked by [Permanent] not counted, the job slows down
// to what the service accepts. Mark an error by [RetryAfter] if the service asks for a later call.
func Visit[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Visit, fn)
}

// WithConcurrency sets how many calls of the function are under way at once in one page, in [1,
// 1000]. Defaults to 1. [StartOptions].Concurrency overrides it for a job. It returns the mapper,
// for use in its definition. [NewEngine] returns an error if n is out of bounds.
//
// Use it for a function that waits for other services. The calls run in several goroutines, so
// shared data needs a lock; maps and pointers in the parameters are shared, too.
//
// Calls start in the order of keys, and their results take effect in that order. A call may read an
// entity with Entity.Get that an earlier entity of the page writes. Then the function runs again
// for the later entity.
//
// The limits on the job's speed ([Rate], [RetryAfter]) are on all calls together. If a service
// refuses calls, the page ends early, and a Visit function may be called again for the page's other
// entities.
func (m *Mapper[P]) WithConcurrency(n int) *Mapper[P] {
	if (n < 1 || n > record.MaxPageSize) && m.def.Err == nil {
		m.def.Err = fmt.Errorf("WithConcurrency: %d is not in [1, %d]", n, record.MaxPageSize)
	}
	m.def.Concurrency = n
	return m
}

// WithDescription says what the mapper does, in a sentence for those who start its jobs. The
// dashboard shows it. WithDescription returns the mapper, so that it can be part of the mapper's
// definition.
func (m *Mapper[P]) WithDescription(text string) *Mapper[P] {
	m.def.Description = text
	return m
}

// concurrencyOf returns the concurrency of a job as its record has it: 0 for one, as in records of
// builds without it.
func concurrencyOf(o StartOptions, def *function.Definition) int64 {
	n := cmp.Or(o.Concurrency, def.Concurrency, 1)
	if n == 1 {
		return 0
	}
	return int64(n)
}

// WithFinalizer adds a finalizer to the mapper: a function that runs after the last page of a job
// that succeeds, with or without failures. It returns the mapper, for use in its definition. The
// finalizer runs in a task of its own, possibly several times. Its puts and deletes commit in the
// transaction that ends the job, so they take effect exactly once. After a [Job.Retry] the job ends
// again, and so the finalizer takes effect again. A rehearsal has no finalizer.
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

// Forget makes the mapper's jobs keep nothing about the entities that they processed, for an
// erasure of personal data. It returns the mapper. After the last entity, if there are no failures,
// the job deletes the records of its ranges. Then it calls fn, in a task of its own and outside any
// transaction, for up to half of the queue's DispatchDeadline.
//
// When fn returns nil, the job ends, and its record loses query, parameters, errors, reasons and
// counters. Of query and parameters a salted hash stays, and the salt is not kept. From then on a
// start of the job's ID is refused with [ErrWrongState], and the job can't be undone, retried or
// verified.
//
// fn runs at least once. If it returns an error, the queue retries it, and Status.Error shows the
// error. An error marked by [Permanent] fails the job, and [Job.Resume] calls fn again. In fn,
// [Completion.Proof] returns what the records proved, and [Completion.Forget] cleans other records.
// [Completion.Put] and [Completion.Delete] have no effect. If the job has failures, it keeps its
// records, and calls the finalizer of [Mapper.WithFinalizer] and not fn.
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
		closing, err := record.ClosingOf(j)
		if err != nil || closing == nil {
			return fmt.Errorf("what the records have proved is gone: %w", err)
		}
		return fn(ctx, &Completion{Status: status, attempt: a, closing: closing}, params)
	}
	return m
}

var errNoMapper = errors.New("the mapper is nil, or was not made by a function of this package, such as Update")

// A starter starts jobs by name.
type starter = func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error)

// WithStarter replaces how [Engine.StartByName] starts jobs of the mapper: it calls start. Use it
// if a job needs something first, such as a folder. The function gets the caller's parameters as
// JSON, which need not be a P; [CheckParams] decodes them. It then starts the job by
// [Mapper.Start]. WithStarter returns the mapper, for use in its definition.
func (m *Mapper[P]) WithStarter(
	start func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error),
) *Mapper[P] {
	m.def.ByName = start
	return m
}

// CheckByName sets a function that checks the parameters for the function of [Mapper.WithStarter].
// [Engine.PlanByName] calls it. Without it, plans of a mapper with such a function do not check
// their parameters. It returns the mapper, for use in its definition.
func (m *Mapper[P]) CheckByName(check func(params json.RawMessage) error) *Mapper[P] {
	m.def.Given = check
	return m
}

// A Validator is a type of parameters that checks itself. Starts, ticks of a [Schedule] and plans
// call Validate before anything is recorded. If it returns an error, they refuse the call with
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

// CheckParams decodes JSON parameters into params, and checks them as a start does (see
// [Validator]). The error is [ErrInvalidArgument]. Use it in the function of [Mapper.WithStarter].
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
// job of that ID exists, it returns that job: see [StartOptions].ID. A nil o has all defaults.
// Query and parameters take up to 320 KiB as JSON. Errors: [ErrInvalidArgument], [ErrIDTaken],
// [ErrUnknownMapper], [ErrWrongState] and [ErrWrongQueue].
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
		_, d.Err = datastore.SaveStruct(new(T)) // a struct that the client can't handle
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
