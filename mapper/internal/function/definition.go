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

// ErrUnknownMapper says that a process does not have a mapper.
var ErrUnknownMapper = errors.New("unknown mapper")

// A Mode is what a function does with entities.
type Mode int

// The modes, as mapper.Update and mapper.Visit define them.
const (
	Update Mode = iota // changes them, in the transaction of their page
	Visit              // has its effects elsewhere
)

// Writes returns how many writes a function usually makes for an entity.
func (m Mode) Writes() float64 {
	if m == Update {
		return 1
	}
	return 0
}

// Longest returns how long the function can take on one entity, in a delivery that ends by a
// deadline.
func (m Mode) Longest(deadline time.Duration) time.Duration {
	if m == Visit {
		return deadline / 2
	}
	return min(MaxInTransaction, deadline/2)
}

// MaxInTransaction is how long a function can take in a transaction, which Datastore's transactions
// page has given up after a minute without a request.
const MaxInTransaction = 30 * time.Second

// A Definition is a mapper without its types.
type Definition struct {
	Name string
	Mode Mode
	Err  error // what is wrong with the definition

	Queue string // that its jobs belong to; empty: the first one

	Params reflect.Type // of its parameters

	Given func(params json.RawMessage) error // what checks parameters that ByName is given; nil: they are not known
	// what starts its jobs by name, see mapper.Mapper.WithStarter; nil: nothing but a start does
	ByName any

	Concurrency int // calls at once in a page of its jobs; 0: one

	Backoff fault.Backoff // of its jobs; what is zero is the default

	// Canonical checks the parameters of a start, and returns them in the one form that equal ones
	// have.
	Canonical func(params json.RawMessage) (json.RawMessage, error)

	// onDone is the finalizer of a job whose records add up to sum, or nil.
	OnDone func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// Forget is called before the transaction that ends a job, behind which its own records are
	// gone; nil: the job keeps them.
	Forget func(ctx context.Context, a *Attempt, j *record.Job, sum record.Totals) error

	// prepare decodes a job's parameters, and returns the function over one
	// entity.
	Prepare func(params json.RawMessage, keysOnly bool) (Func, error)

	// PrepareKeys does so for what says which other entities the function reads; nil: nothing does.
	PrepareKeys func(params json.RawMessage, keysOnly bool) (Keys, error)

	// PreparePage does so for the function over what was collected of a page's entities; nil: there
	// is none.
	PreparePage func(params json.RawMessage) (PageFunc, error)
}

// A Job is what a function has to know of its job.
type Job struct {
	Ref   record.Ref
	Masks bool // the database keeps what a property mask does not name

	Others Others // that the function may read; nil: there is no page

	Rehearses bool // nothing is to be written
}

// Others are the entities besides its own that a function may read.
type Others interface {
	// Look returns entities as the function may see them: as the earlier entities of its page leave
	// them, or as the database has them. The others are guarded: if others change them until the
	// page is committed, the function is run again.
	Look(ctx context.Context, keys []*datastore.Key) ([]Seen, error)

	// Known returns an entity, if it is known without a call how it is.
	Known(key *datastore.Key) (s Seen, ok bool)
}

// A Seen is another entity, as a function has seen it.
type Seen struct {
	Key *datastore.Key
	wire.Stamp
	OfPage bool // an earlier entity of the page has written it
}

// A Keys returns which other entities the function is going to read for an entity.
type Keys func(key *datastore.Key, stored *pb.Entity) ([]*datastore.Key, error)

// A Func runs the mapper's function on one entity, and returns what it
// asks for. It does not panic, and does not change what is stored; nil: it was not read.
type Func func(ctx context.Context, j Job, key *datastore.Key, stored *pb.Entity) (*Effect, error)

// A PageFunc runs the mapper's function on what an attempt has collected of a page's entities. It
// does not panic.
type PageFunc func(ctx context.Context, a *Attempt, name string, collected []any) error
