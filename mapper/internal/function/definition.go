package function

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// ErrUnknownMapper says that the process does not have the job's mapper.
var ErrUnknownMapper = errors.New("unknown mapper")

// A Mode is the kind of a mapper: whether its function changes entities or calls services.
type Mode int

// Modes, which correspond to mapper.Update and mapper.Visit.
const (
	Update Mode = iota // the function changes entities, in the commit of their page
	Visit              // the function has its effects outside of Datastore's commit, such as calls of a service
)

// Writes returns the number of writes that are assumed for an entity before the first page of a
// job.
func (m Mode) Writes() float64 {
	if m == Update {
		return 1
	}
	return 0
}

// Longest returns the greatest timeout of the function for one entity, in a queue with the given
// dispatch deadline.
func (m Mode) Longest(deadline time.Duration) time.Duration {
	if m == Visit {
		return deadline / 2
	}
	return min(MaxInTransaction, deadline/2)
}

// MaxInTransaction is the greatest timeout of a function whose page commits in a transaction.
// Datastore drops a transaction after a minute without a request.
const MaxInTransaction = 30 * time.Second

// A Definition is a mapper without its Go types.
type Definition struct {
	Name string
	Mode Mode
	Err  error // why the definition is invalid; nil: it is valid

	Description string // a sentence for operators about what the mapper does; may be empty

	Queue string // the queue of the mapper's jobs; empty: the engine's first queue

	Params reflect.Type // the type of the mapper's parameters

	// GivenType is the type of the parameters that a start by name takes; nil: it is Params. The
	// function Given checks them in a plan. If it is nil, a plan can't check them.
	GivenType reflect.Type
	Given     func(params json.RawMessage) error
	// ByName starts the mapper's jobs by name, see mapper.Mapper.WithStarter. If it is nil, a start
	// by name takes parameters of the type Params.
	ByName any

	Concurrency int // how many calls of the function run at once in a page; 0: one
	BatchSize   int // maximum number of entities in a call of PrepareBatch's function

	Backoff fault.Backoff // the attempts and waits of the mapper's jobs; zero fields have their defaults

	// Canonical checks the parameters of a start and returns their canonical encoding, which is
	// the same for equal parameters.
	Canonical func(params json.RawMessage) (json.RawMessage, error)

	// OnDone calls the finalizer of a job whose totals are sum. It is nil if the mapper has none.
	OnDone func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Forget calls the function from mapper.Mapper.Forget, before the transaction that ends a job.
	// It is nil if the mapper's jobs keep their records.
	Forget func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Prepare decodes a job's parameters and returns the function over one entity.
	Prepare func(params json.RawMessage, keysOnly bool) (Func, error)

	// PrepareBatch decodes a job's parameters and returns the function over several entities of a
	// page. It is nil if the mapper has no such function.
	PrepareBatch func(params json.RawMessage, keysOnly bool) (BatchFunc, error)

	// PrepareKeys decodes a job's parameters and returns the function that names the other entities
	// to read. It is nil if the mapper has no such function.
	PrepareKeys func(params json.RawMessage, keysOnly bool) (Keys, error)

	// PreparePage decodes a job's parameters and returns the function over the collected values of
	// a page. It is nil if the mapper has no such function.
	PreparePage func(params json.RawMessage) (PageFunc, error)
}

// Functions are the functions of a mapper with the parameters of a job filled in.
type Functions struct {
	Call      Func
	Batch     BatchFunc // runs the function on several entities; nil: the mapper has none
	BatchSize int       // maximum number of entities in a call of Batch; 0: Call runs the function on each
	Keys      Keys      // names the other entities that the function reads; nil: unknown
	OverPage  PageFunc  // runs over the values that are collected in a page; nil: the mapper has none
}

// Functions decodes a job's parameters, and returns the mapper's functions.
func (d *Definition) Functions(params json.RawMessage, keysOnly bool) (f Functions, err error) {
	if f.Call, err = d.Prepare(params, keysOnly); err != nil {
		return f, err
	}
	if d.PrepareBatch != nil {
		if f.Batch, err = d.PrepareBatch(params, keysOnly); err != nil {
			return f, err
		}
		f.BatchSize = d.BatchSize
	}
	if d.PreparePage != nil {
		if f.OverPage, err = d.PreparePage(params); err != nil {
			return f, err
		}
	}
	if d.PrepareKeys != nil {
		f.Keys, err = d.PrepareKeys(params, keysOnly)
	}
	return f, err
}

// A Job has the facts about a job that a function needs.
type Job struct {
	Ref   record.Ref
	Masks bool // whether the database supports property masks: it keeps properties that a mask does not name

	Others Others // gives the function other entities; nil: it runs outside a page

	Calls *Announced // where the function announces calls of a service; nil: it runs outside a page

	Rehearses bool // whether the job is a rehearsal, so that nothing is written
}

// Others gives a function entities besides its own.
type Others interface {
	// Look returns entities in the states that the function may see: as earlier entities of its
	// page leave them, or else as the database has them. If somebody changes an entity from the
	// database before the page commits, the function runs again.
	Look(ctx context.Context, keys []*datastore.Key) ([]Seen, error)

	// Known returns an entity if its state is known without a call of the database.
	Known(key *datastore.Key) (s Seen, ok bool)
}

// A Seen is another entity in the state in which a function has seen it.
type Seen struct {
	Key *datastore.Key
	wire.Stamp
	OfPage bool // whether the mutation of an earlier entity of the same page has written the entity
}

// A Keys is a function that names the other entities which the mapper's function will read for an
// entity. So one call can read them ahead.
type Keys func(key *datastore.Key, stored *pb.Entity) ([]*datastore.Key, error)

// A Func is a function that runs the mapper's function on one entity and returns its effect. It
// does not panic, and does not change stored. That is nil if the job reads only keys.
type Func func(ctx context.Context, j Job, key *datastore.Key, stored *pb.Entity) (*Effect, error)

// A Subject is an entity in a batch. Stored is nil if the job reads only keys.
type Subject struct {
	Job    Job
	Key    *datastore.Key
	Stored *pb.Entity
}

// An Answer is the outcome of a batch's call for one of its entities.
type Answer struct {
	Effect *Effect // what the function asks for; nil: the entity has failed
	Err    error
}

// A BatchFunc is a function that runs the mapper's function once on all entities of a batch. An
// error concerns the batch as a whole: then there are no answers. It does not panic.
type BatchFunc func(ctx context.Context, batch []Subject) ([]Answer, error)

// A PageFunc is a function that runs the mapper's page function on the values collected from a
// page's entities. It does not panic.
type PageFunc func(ctx context.Context, a *Attempt, name string, collected []any) error
