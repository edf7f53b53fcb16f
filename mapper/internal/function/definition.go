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

// ErrUnknownMapper says that the process has no mapper of the job's name.
var ErrUnknownMapper = errors.New("unknown mapper")

// A Mode says where a function has its effects.
type Mode int

// The modes correspond to mapper.Update and mapper.Visit.
const (
	Update Mode = iota // changes entities, in the transaction of their page
	Visit              // has its effects outside the transaction
)

// Writes returns the usual number of writes for one entity. It is the estimate before the first
// page of a job.
func (m Mode) Writes() float64 {
	if m == Update {
		return 1
	}
	return 0
}

// Longest returns the longest time that the function can take on one entity, in a delivery with
// the given deadline.
func (m Mode) Longest(deadline time.Duration) time.Duration {
	if m == Visit {
		return deadline / 2
	}
	return min(MaxInTransaction, deadline/2)
}

// MaxInTransaction is the longest time that a function can take in a transaction. Datastore drops
// a transaction after a minute without a request.
const MaxInTransaction = 30 * time.Second

// A Definition is a mapper without its types.
type Definition struct {
	Name string
	Mode Mode
	Err  error // why the definition is invalid; nil: it is valid

	Description string // what it does, in a sentence for operators; may be empty

	Queue string // of its jobs; empty: the first queue

	Params reflect.Type // the type of its parameters

	// GivenType is the type of the parameters for ByName; nil: it is Params. Given checks them in a
	// plan. If it is nil, a plan cannot check them.
	GivenType reflect.Type
	Given     func(params json.RawMessage) error
	// ByName starts the mapper's jobs by name, see mapper.Mapper.WithStarter. If it is nil, a start
	// by name takes the mapper's own parameters.
	ByName any

	Concurrency int // calls at once in a page of its jobs; 0: one
	BatchSize   int // maximum number of entities in a call of PrepareBatch's function

	Backoff fault.Backoff // of its jobs; zero fields have their defaults

	// Canonical checks the parameters of a start and returns their canonical encoding, which is
	// the same for equal parameters.
	Canonical func(params json.RawMessage) (json.RawMessage, error)

	// OnDone calls the finalizer of a job whose records add up to sum. It is nil without a
	// finalizer.
	OnDone func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Forget is called before the transaction that ends a job and deletes its records. It is nil
	// if the job keeps its records.
	Forget func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Prepare decodes a job's parameters and returns the function over one entity.
	Prepare func(params json.RawMessage, keysOnly bool) (Func, error)

	// PrepareBatch does the same for the function over several entities of a page. It is nil if the
	// mapper has no such function.
	PrepareBatch func(params json.RawMessage, keysOnly bool) (BatchFunc, error)

	// PrepareKeys does the same for the function that names the other entities to read. It is nil
	// if the mapper has no such function.
	PrepareKeys func(params json.RawMessage, keysOnly bool) (Keys, error)

	// PreparePage does the same for the function over the collected values of a page. It is nil
	// if the mapper has no such function.
	PreparePage func(params json.RawMessage) (PageFunc, error)
}

// Functions are the functions of a mapper, with the parameters of a job.
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

// A Job is what a function needs to know of its job.
type Job struct {
	Ref   record.Ref
	Masks bool // the database keeps the properties that a property mask does not name

	Others Others // the other entities that the function may read; nil: it runs outside a page

	Calls *Announced // where the function announces calls of a service; nil: it runs outside a page

	Rehearses bool // the job is a rehearsal: nothing is written
}

// Others gives a function the entities besides its own.
type Others interface {
	// Look returns entities as the function may see them: as earlier entities of its page leave
	// them, or else as the database has them. Entities from the database are guarded: if somebody
	// changes one before the page commits, the function runs again.
	Look(ctx context.Context, keys []*datastore.Key) ([]Seen, error)

	// Known returns an entity if its state is known without a call of the database.
	Known(key *datastore.Key) (s Seen, ok bool)
}

// A Seen is another entity, in the state that a function has seen.
type Seen struct {
	Key *datastore.Key
	wire.Stamp
	OfPage bool // an earlier entity of the page has written it
}

// A Keys names the other entities that the function will read for an entity, so that one call can
// read them ahead.
type Keys func(key *datastore.Key, stored *pb.Entity) ([]*datastore.Key, error)

// A Func runs the mapper's function on one entity and returns its effect. It does not panic. It
// does not change stored, which is nil if the job reads only keys.
type Func func(ctx context.Context, j Job, key *datastore.Key, stored *pb.Entity) (*Effect, error)

// A Subject is an entity of a batch. Stored is nil if the job reads only keys.
type Subject struct {
	Job    Job
	Key    *datastore.Key
	Stored *pb.Entity
}

// An Answer is the outcome of a function for an entity of a batch.
type Answer struct {
	Effect *Effect // nil: the entity has failed
	Err    error
}

// A BatchFunc runs the mapper's function once on all entities of a batch. An error concerns the
// batch as a whole: then there are no answers. It does not panic.
type BatchFunc func(ctx context.Context, batch []Subject) ([]Answer, error)

// A PageFunc runs the mapper's function on the collected values of a page's entities. It does not
// panic.
type PageFunc func(ctx context.Context, a *Attempt, name string, collected []any) error
