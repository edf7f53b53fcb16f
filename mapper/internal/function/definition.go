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

// Modes, which correspond to mapper.Update, mapper.Visit and the rehearsal of an Update.
const (
	Update   Mode = iota // the function changes entities, in the commit of their page
	Visit                // the function has its effects outside of Datastore's commit, such as calls of a service
	Rehearse             // the function is an Update's, and its changes are only counted
)

// Updates reports whether the function is an Update's, also in a rehearsal. A rehearsal accepts the
// same queries as the Update, and reads the same entities.
func (m Mode) Updates() bool { return m != Visit }

// Writes returns how many writes an entity is assumed to need, before the first page of a job has
// shown it.
func (m Mode) Writes() float64 {
	if m == Update {
		return 1
	}
	return 0
}

// Longest returns the largest allowed timeout of the function for one entity. It depends on the
// queue's dispatch deadline: the time after which Cloud Tasks gives up a request.
func (m Mode) Longest(deadline time.Duration) time.Duration {
	if m != Update {
		return deadline / 2
	}
	return min(MaxInTransaction, deadline/2)
}

// MaxInTransaction is the largest timeout of a function whose page commits in a transaction.
// Datastore ends a transaction that gets no request for a minute.
const MaxInTransaction = 30 * time.Second

// A Definition is a mapper without its Go types: its settings, and its functions over encoded data.
type Definition struct {
	Name string
	Mode Mode
	Err  error // why the definition is invalid; nil: it is valid

	Description string // a sentence for operators about what the mapper does; may be empty

	Queue string // the queue of the mapper's jobs; empty: the engine's first queue

	Params reflect.Type // the type of the mapper's parameters

	// GivenType is the type of the parameters in a start by name. If it is nil, the type is Params.
	// The function Given checks such parameters in a plan. If Given is nil, a plan does not check
	// them.
	GivenType reflect.Type
	Given     func(params json.RawMessage) error
	// ByName starts a job of the mapper by the mapper's name, see mapper.Mapper.WithStarter. If it
	// is nil, such a start takes parameters of the type Params.
	ByName any

	Concurrency int // how many calls of the function run at once in a page; 0: one
	BatchSize   int // maximum number of entities in a call of PrepareBatch's function

	Backoff fault.Backoff // the attempts and waits of the mapper's jobs; zero fields have their defaults

	// Canonical checks the parameters of a start. It returns their canonical encoding, in which
	// equal parameters have equal text.
	Canonical func(params json.RawMessage) (json.RawMessage, error)

	// OnDone calls the finalizer of a job, which runs in the transaction that ends the job. The
	// job's totals are sum. OnDone is nil if the mapper has no finalizer.
	OnDone func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Forget calls the function from mapper.Mapper.Forget, before the transaction that ends a job.
	// If it is nil, the mapper's jobs keep their records.
	Forget func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Prepare decodes a job's parameters, and returns the mapper's function for single entities.
	Prepare func(params json.RawMessage, keysOnly bool) (Func, error)

	// PrepareBatch decodes a job's parameters, and returns the mapper's function for batches:
	// several entities of a page. It is nil if the mapper has no such function.
	PrepareBatch func(params json.RawMessage, keysOnly bool) (BatchFunc, error)

	// PrepareKeys decodes a job's parameters, and returns the function that says which other
	// entities the mapper's function will read. It is nil if the mapper has no such function.
	PrepareKeys func(params json.RawMessage, keysOnly bool) (Keys, error)

	// PreparePage decodes a job's parameters, and returns the function over the values that were
	// collected in a page. It is nil if the mapper has no such function.
	PreparePage func(params json.RawMessage) (PageFunc, error)
}

// Functions are the functions of a mapper, with a job's parameters filled in.
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

// A Job holds facts about a job that the mapper's function needs.
type Job struct {
	Ref   record.Ref
	Range *datastore.Key // the record of the page's range; nil: the function runs outside a page
	// whether the database supports property masks, so that an update can leave other properties
	// unchanged
	Masks bool

	Others Others // reads other entities for the function; nil: the function runs outside a page

	Calls *Announced // records the announced calls of services; nil: the function runs outside a page

	Rehearses bool // whether the job is a rehearsal, so that nothing is written
}

// Others reads entities for a function besides its own.
type Others interface {
	// Look returns entities in the states that the function must see. If an earlier entity of the
	// page writes an entity, that is the state after this write. Otherwise it is the state in the
	// database. If somebody changes such an entity before the page commits, the function runs
	// again.
	Look(ctx context.Context, keys []*datastore.Key) ([]Seen, error)

	// Known returns the state of an entity if it is known without a call of the database.
	Known(key *datastore.Key) (s Seen, ok bool)
}

// A Seen is another entity in the state that a function has read.
type Seen struct {
	Key *datastore.Key
	wire.Stamp
	OfPage bool // whether an earlier entity of the same page has written this entity
}

// A Keys is a function that says which other entities the mapper's function will read for an
// entity. They can then be read for many entities in one call.
type Keys func(key *datastore.Key, stored *pb.Entity) ([]*datastore.Key, error)

// A Func runs the mapper's function on one entity, and returns its effect. It does not panic, and
// does not change stored, which is nil if the job reads only keys.
type Func func(ctx context.Context, j Job, key *datastore.Key, stored *pb.Entity) (*Effect, error)

// A Subject is one entity of a batch. Stored is nil if the job reads only keys.
type Subject struct {
	Job    Job
	Key    *datastore.Key
	Stored *pb.Entity
}

// An Answer is the outcome for one entity after a call of the function with a batch.
type Answer struct {
	Effect *Effect // what the function asks for; nil: it has failed on the entity
	Err    error
}

// A BatchFunc runs the mapper's function once, on all entities of a batch. If it returns an error,
// the whole batch has failed, and there are no answers. It does not panic.
type BatchFunc func(ctx context.Context, batch []Subject) ([]Answer, error)

// A PageFunc runs the mapper's page function on the values that were collected from the entities of
// a page. It does not panic.
type PageFunc func(ctx context.Context, a *Attempt, name string, collected []any) error
