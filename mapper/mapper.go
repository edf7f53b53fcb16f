package mapper

import (
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

// A Mapper is a named function over entities, with parameters of type P. Define
// it as a package-level value, so that it is the same in the process that
// starts a job and in those that run it.
type Mapper[P any] struct {
	def function.Definition
}

// NoParams is the type of the parameters of a mapper that takes none.
type NoParams struct{}

// Update defines a mapper whose function changes entities. What it changes of
// e.Value, and what it puts and deletes besides, is committed together with the job's own
// records: once for each entity, and only if nobody else has changed the entity since the
// function got it.
//
// An Update loads e.Value, has the function change it, and saves it over the stored entity:
//
//   - A field that is saved the same before and after the function stays as stored, bit for bit:
//     null stays null, and so do meanings, the index flag of each element, and keys of other
//     projects.
//   - A field that the function has changed is stored as the client's Put stores it. In arrays and
//     entities only what differs is: an element that is there before and after stays as stored,
//     wherever it is now, and one that has changed is merged with the one at its place. What T does
//     not declare of it, stays. If nothing says where such properties belong, the entity is a
//     failure.
//   - A field that is not stored yet is stored, false and 0 too, unless it has the tag omitempty.
//   - What T does not declare stays as stored.
//
// An entity in which nothing differs is not written, and neither is one for which the function
// returns [Skip]. Status.Written counts those that are. What a changed tag says of indexes, and
// what T's Load makes of older entities, is stored if the function calls [Entity.Resave];
// [Entity.Touch] writes an entity exactly as it is stored.
//
// The function should be short, and free of other effects: it may run several times for one effect.
// Where others change an entity before its page is committed, the function runs again on what is
// there then, and what it asked for before is forgotten. It may read other entities by
// [Entity.Get], which are guarded as its own is. An error leaves the entity as it was and has it
// tried again by itself, up to [DefaultUpdateAttempts] times, see [RetryPolicy]. An error marked by
// [Permanent], or a value that does not fit T, is not tried again, and one by [RetryAfter] not
// before its time. What can't be processed is recorded as a failure, and the others go on.
//
// But when more than 10 entities of a page fail, and more than 5% of a full one, or most of a small
// one and so much of what the process has lately called, it is the function that is at fault: the
// page is tried again as a whole, as often, and then the job fails; at once if all of these errors
// are permanent. So it does when the database refuses what the function writes for as much of what
// the job has processed.
//
// T is a struct, or a type whose pointer implements datastore.PropertyLoadSaver. It needs only the
// fields that the function uses, with the tags that they have elsewhere. A PropertyLoadSaver
// declares what it saves. A datastore.PropertyList has all properties; one that gets another name
// is stored under that as it was. A property whose name differs from that of its field in case only
// is an error.
func Update[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Update, fn)
}

// Visit defines a mapper whose function has its effects outside Datastore. It
// runs at least once for each entity, with [Entity.IdempotencyKey] to recognise
// repetitions by; what it counts, counts once. What it changes of e.Value is
// not saved. Errors are treated as those of [Update], but tried up to [DefaultVisitAttempts] times:
// a service may be away for an hour. Where more than 5% of the calls fail because there are
// too many at once, the job slows down by itself, to what is accepted.
func Visit[T, P any](name string, fn func(ctx context.Context, e *Entity[T], params P) error) *Mapper[P] {
	return define(name, function.Visit, fn)
}

// WithFinalizer adds a finalizer to the mapper: a function that runs after the last page
// of a job that succeeds, with or without failures, in a task of its own. It takes
// effect once each time the job ends: after a [Job.Retry], again.
// What it puts and deletes is committed in one transaction with the end of the
// job: exactly once. Its error, or that it takes more than 30 s, has it tried again,
// by the queue's back-off, and is shown in Status.Error. One marked by [Permanent]
// fails the job, and so does a write that the database refuses, or a finalizer that kills
// its process five times. It returns the mapper, for use in its definition.
func (m *Mapper[P]) WithFinalizer(fn func(ctx context.Context, d *Completion, params P) error) *Mapper[P] {
	if fn == nil {
		m.def.Err = errors.New("WithFinalizer: the function is nil")
		return m
	}
	m.def.OnDone = func(ctx context.Context, a *function.Attempt, j *record.Job, sum record.Totals) error {
		status, err := statusOf(j, sum)
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

// Forget has the mapper's jobs keep nothing of what they were about. When a job has come to all of
// its entities, and none is a failure, it deletes the records of its ranges. Then fn is called, in
// a task of its own and in no transaction, for up to half of the queue's Deadline. When it returns
// nil the job ends, and its record loses query, parameters, errors, reasons and counters: a hash
// stays, whose salt nobody keeps. A start of its ID is refused with [ErrWrongState] from then on.
// The job can't be undone, retried or verified.
//
// The function runs at least once. Its error has it tried again by the queue's back-off, and is
// shown in Status.Error; one that is marked by [Permanent] fails the job, and [Job.Resume] calls it
// again. [Completion.Proof] is what the records have proved, and [Completion.Forget] has other
// records forget. Put and Delete of the Done have no effect. A job with failures calls the
// finalizer of [Mapper.WithFinalizer] instead, if there is one. It returns the mapper, for use in
// its definition.
func (m *Mapper[P]) Forget(fn func(ctx context.Context, d *Completion, params P) error) *Mapper[P] {
	if fn == nil {
		m.def.Err = errors.New("Forget: the function is nil")
		return m
	}
	m.def.Forget = func(ctx context.Context, a *function.Attempt, j *record.Job, sum record.Totals) error {
		status, err := statusOf(j, sum)
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

var errNoMapper = errors.New("the mapper is nil, or was not made by Update or Visit")

// A starter starts jobs by name.
type starter = func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error)

// WithStarter has [Engine.StartByName] start jobs of the mapper by a function, which may prepare
// something first that the job needs. Params are what was given, and not yet those of the mapper.
// It returns the mapper, for use in its definition.
func (m *Mapper[P]) WithStarter(
	start func(ctx context.Context, e *Engine, q Query, params json.RawMessage, o *StartOptions) (*Job, error),
) *Mapper[P] {
	m.def.ByName = start
	return m
}

// CheckByName has [Engine.PlanByName] check the parameters that the function of
// [Mapper.WithStarter] takes, which a plan does not know otherwise. It returns the mapper, for use
// in its definition.
func (m *Mapper[P]) CheckByName(check func(params json.RawMessage) error) *Mapper[P] {
	m.def.Given = check
	return m
}

// A Validator is a type of parameters that says what is wrong with them. Validate is called for
// each start, by whatever means, with [Mapper.Start], [Engine.StartByName] or [Schedule.Tick], and
// by a plan: its error refuses that with [ErrInvalidArgument], before anything is recorded. It
// is not called while a job runs. Name the parameter in the error, as it is in JSON. The method may
// have a pointer as its receiver.
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
// Without it, too, a start refuses by name what JSON has and the type has not, a name that comes
// twice, null for a field that can't be null, and a number in a field of the type any that a
// float64 does not hold.
type Validator interface{ Validate() error }

// CheckParams decodes parameters in JSON into what params points to, and checks them, as a start
// does: for the function of [Mapper.WithStarter].
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

// Start starts a job that runs the mapper over a query, or returns the job of
// that ID if there is one: see [StartOptions.ID].
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

// A AnyMapper is a [Mapper] of any parameters.
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
