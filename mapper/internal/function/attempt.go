package function

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// An Attempt is one run of the user's function on one entity. It collects what the function asks
// for besides the change of its own entity: counters, writes of other entities, errors. Calls after
// the function has returned panic.
type Attempt struct {
	job    record.Ref
	mode   Mode
	key    *datastore.Key // the key of the attempt's own entity; nil: the function runs on a page
	others Others         // reads other entities for the function; nil: it can't read any
	calls  *Announced     // records the announced calls of services; nil: the attempt is not part of a page
	lost   []func(context.Context)

	mu      sync.Mutex
	over    bool
	err     error // the first error because the function has called a method wrongly
	failed  error // the first error passed to Fail
	effect  Effect
	Deleted bool // whether the function has deleted its own entity
	Touched bool // whether the function has called Touch
	Resaved bool // whether the function has called Resave
}

// NewAttempt returns an attempt for one run of the function on the entity with this key.
func NewAttempt(job record.Ref, m Mode, key *datastore.Key) *Attempt {
	return &Attempt{job: job, mode: m, key: key}
}

// Among sets what reads other entities for the attempt.
func (a *Attempt) Among(o Others) { a.others = o }

// Announce sets what records the attempt's announced calls of services.
func (a *Attempt) Announce(c *Announced) { a.calls = c }

// Job returns a string that identifies the attempt's job.
func (a *Attempt) Job() string { return a.job.String() }

// IdempotencyKey returns a string that identifies the job and the entity. It is the same in all
// attempts on the entity, so a service can recognize a repeated call.
func (a *Attempt) IdempotencyKey() string {
	h := sha256.Sum256([]byte(a.job.String() + "\x00" + a.key.Encode()))
	return hex.EncodeToString(h[:16])
}

func (a *Attempt) do(f func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		panic("mapper: an Entity was used after its function had returned")
	}
	if err := f(); err != nil && a.err == nil {
		a.err = fault.Permanent(err)
	}
}

// Count adds n to a counter of the job.
func (a *Attempt) Count(name string, n int64) { a.count(name, name, n) }

// Min lowers the job's minimum with this name to n, if n is less.
func (a *Attempt) Min(name string, n int64) { a.count(name, tally.Min(name), n) }

// Max raises the job's maximum with this name to n, if n is greater.
func (a *Attempt) Max(name string, n int64) { a.count(name, tally.Max(name), n) }

func (a *Attempt) count(name, counter string, n int64) {
	a.do(func() error {
		if err := tally.CheckName(name); err != nil {
			return err
		}
		a.effect.Counters.Add(counter, n) // too many counters fail the job, not the entity
		return nil
	})
}

// Collect adds a value for the mapper's second function, which runs once over the values that were
// collected in a page. A page is the group of entities that commit together.
func (a *Attempt) Collect(v any) {
	a.do(func() error {
		a.effect.Collected = append(a.effect.Collected, v)
		return nil
	})
}

// Put saves another entity. The key may be incomplete.
func (a *Attempt) Put(key *datastore.Key, src any) {
	key = value.CloneKey(key) // the function may change it
	a.write("Put", key, false, src, declared(key, src))
}

// Insert saves another entity, which must not exist yet.
func (a *Attempt) Insert(key *datastore.Key, src any) {
	key = value.CloneKey(key)
	a.write("Insert", key, true, src, declared(key, src))
}

// PutStored saves another entity in its protobuf form. The key must be complete.
func (a *Attempt) PutStored(key *datastore.Key, stored *pb.Entity) {
	key = value.CloneKey(key)
	a.write("PutStored", key, false, nil, asStored(key, stored))
}

// InsertStored saves another entity in its protobuf form. The entity must not exist yet, and the
// key must be complete.
func (a *Attempt) InsertStored(key *datastore.Key, stored *pb.Entity) {
	key = value.CloneKey(key)
	a.write("InsertStored", key, true, nil, asStored(key, stored))
}

// write saves another entity. The text method is the name of the caller's method, for errors.
// inserts says that the entity must not exist yet. The function content makes the mutation. If the
// content comes from a Go value, src is that value. Otherwise src is nil.
func (a *Attempt) write(
	method string, key *datastore.Key, inserts bool, src any, content func() (mutation, error),
) {
	a.do(func() error {
		switch {
		case a.mode != Update:
			return fmt.Errorf("%s is for the function of an Update", method)
		case key == nil || a.key == nil || !key.Equal(a.key):
		case inserts:
			return fmt.Errorf("%s of the entity itself, %v, which is there", method, key)
		default:
			return fmt.Errorf("%s of the entity itself: change its Value, or Touch it", method)
		}
		if err := keyspace.CheckKey(key); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		if _, own := src.(names.Record); !own {
			if err := names.CheckOthers(key); err != nil {
				return fmt.Errorf("%s of %v: %w", method, key, err)
			}
		}
		if inserts && key.Incomplete() {
			return fmt.Errorf("%s: the key is incomplete: Put gives it an ID that no entity has", method)
		}
		m, err := content()
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		if inserts {
			if err := a.absent(key); err != nil {
				return err
			}
			m.insert()
		}
		a.add(m.Mutation, m)
		return nil
	})
}

// absent returns an error if the entity with this key is already known to exist. It makes no call
// of the database. If nothing is known of the entity, the commit finds out.
func (a *Attempt) absent(key *datastore.Key) error {
	if a.others == nil {
		return nil
	}
	seen, ok := a.others.Known(key)
	switch {
	case !ok || seen.Gone:
		return nil
	case seen.OfPage:
		return fmt.Errorf("%v inserts %v, which is there: an entity before it, of the same page, has put it", a.key,
			key)
	}
	return fmt.Errorf("%v inserts %v, which is there", a.key, key)
}

// declared returns a function that makes a mutation which saves the Go value src as the Go client's
// Put would save it.
func declared(key *datastore.Key, src any) func() (mutation, error) {
	return func() (mutation, error) {
		properties, err := property.Save(src)
		if err == nil {
			err = property.CheckSendable(properties)
		}
		list := datastore.PropertyList(properties)
		return mutation{Mutation: datastore.NewUpsert(key, &list), Key: key, Properties: list}, err
	}
}

// asStored returns a function that makes the mutation which writes an entity in its protobuf form.
func asStored(key *datastore.Key, stored *pb.Entity) func() (mutation, error) {
	return func() (mutation, error) {
		switch {
		case stored == nil:
			return mutation{}, errors.New("there is no entity: the query of the job is KeysOnly")
		case key.Incomplete():
			return mutation{}, errors.New("the key is incomplete")
		}
		whole := &pb.Entity{Key: pbvalue.Key(key), Properties: stored.GetProperties()}
		if of := stored.GetKey().GetPartitionId(); of != nil { // the project and the database are the client's
			whole.Key.PartitionId = &pb.PartitionId{ProjectId: of.ProjectId, DatabaseId: of.DatabaseId,
				NamespaceId: key.Namespace}
		}
		return mutation{
			Mutation: datastore.NewUpsert(key, wire.Unsent()), Key: key, On: wire.Condition{Writes: whole, Free: true},
		}, property.CheckText(whole)
	}
}

// Get reads other entities, and calls load for each that exists. The result says for each key
// whether its entity is missing.
func (a *Attempt) Get(
	ctx context.Context, keys []*datastore.Key, load func(i int, stored *pb.Entity) error,
) (missing []bool, err error) {
	others := a.others
	keys = slices.Clone(keys)
	for i, key := range keys {
		keys[i] = value.CloneKey(key)
	}
	a.do(func() error {
		switch {
		case a.mode != Update:
			err = errors.New("Get is for the function of an Update: read by a client")
		case others == nil:
			err = errors.New("Get: there is no database: test the function by mappertest.Run")
		}
		for i, key := range keys {
			if wrong := keyspace.CheckKey(key); wrong != nil {
				err = errors.Join(err, fmt.Errorf("Get: key %d: %w", i+1, wrong))
			} else if wrong := names.CheckOthers(key); wrong != nil {
				err = errors.Join(err, fmt.Errorf("Get: key %d: %w", i+1, wrong))
			} else if key.Incomplete() {
				err = errors.Join(err, fmt.Errorf("Get: key %d: %v is incomplete", i+1, key))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fault.Permanent(err)
	}
	seen, err := others.Look(ctx, keys)
	if err != nil {
		return nil, err
	}
	missing = make([]bool, len(keys))
	for i, s := range seen {
		if missing[i] = s.Gone; !s.Gone {
			err = errors.Join(err, load(i, s.Entity))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over { // the function has returned during this call of Get
		return nil, errors.New("Get: the function has returned meanwhile")
	}
	a.effect.Seen = append(a.effect.Seen, seen...)
	return missing, err
}

// Delete deletes an entity: the attempt's own entity or another one.
func (a *Attempt) Delete(key *datastore.Key) {
	key = value.CloneKey(key)
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Delete is for the function of an Update")
		}
		if err := keyspace.CheckKey(key); err != nil {
			return fmt.Errorf("Delete: %w", err)
		}
		if err := names.CheckOthers(key); err != nil {
			return fmt.Errorf("Delete of %v: %w", key, err)
		}
		if key.Incomplete() {
			return errors.New("Delete: the key is incomplete")
		}
		if slices.ContainsFunc(a.effect.Mutations, func(m mutation) bool { return m.Inserts && m.Key.Equal(key) }) {
			return fmt.Errorf("Delete of %v, which the function inserts", key)
		}
		a.Deleted = a.Deleted || a.key != nil && key.Equal(a.key)
		a.add(datastore.NewDelete(key), mutation{Key: key, Deletes: true})
		return nil
	})
}

// Touch makes the attempt write its own entity even if nothing in it has changed.
func (a *Attempt) Touch() {
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Touch is for the function of an Update")
		}
		a.Touched = true
		return nil
	})
}

// Resave makes the attempt save all properties of its own entity that the Go type declares, even if
// they have not changed.
func (a *Attempt) Resave() {
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Resave is for the function of an Update")
		}
		a.Resaved = true
		return nil
	})
}

// Restore makes the commit write the entity image, or delete the entity with the key if image is
// nil. The commit takes effect only if the entity still has the given version. Version 0 means that
// it must not exist.
func (a *Attempt) Restore(key *datastore.Key, image *pb.Entity, version int64) {
	a.add(Restoring(key, image, version),
		mutation{Key: key, Deletes: image == nil, On: wire.Condition{Version: version, Writes: image}})
}

// Restoring returns the Go client's mutation for [Attempt.Restore]. It is empty, because the client
// would not send the entity byte for byte. A [wire.Condition] has the entity instead.
func Restoring(key *datastore.Key, image *pb.Entity, version int64) *datastore.Mutation {
	var nothing datastore.PropertyList
	switch {
	case image == nil:
		return datastore.NewDelete(key)
	case version == 0:
		return datastore.NewInsert(key, &nothing)
	}
	return datastore.NewUpdate(key, &nothing)
}

// Leave records that an undo does not change an entity, and why.
func (a *Attempt) Leave(key *datastore.Key, why string) {
	a.effect.Left = append(a.effect.Left, undolog.Left{Key: key, Why: why})
}

// Save saves the attempt's own entity. If masks says that the database supports property masks, and
// a mask can name all changed properties, it sends only these. Otherwise it sends the whole entity.
func (a *Attempt) Save(edit property.Edit, masks bool) {
	on := wire.Condition{Free: true}
	if masks && len(edit.Changed) > 0 && property.Maskable(edit.Changed) {
		// The commit need not send properties that the mask does not name.
		on.Writes, on.Mask = edit.Parts(), &pb.PropertyMask{Paths: edit.Changed}
	} else {
		on.Writes = edit.Whole()
	}
	a.add(unsentUpdate, mutation{Key: a.key, Edit: edit, On: on})
}

// unsentUpdate is given to the client for each update whose entity is in a condition, see
// wire.Unsent. All updates share it, because making one takes about as long as loading an entity.
var unsentUpdate = datastore.NewUpdate(datastore.NameKey("__unsent__", "update", nil), wire.Unsent())

// add adds a mutation to the attempt's effect. It replaces an earlier mutation of the same entity.
func (a *Attempt) add(m *datastore.Mutation, added mutation) {
	added.Mutation = m
	added.bytes = keyspace.KeySize(added.Key) + keyspace.PropertiesSize(added.Properties) + keyspace.EntitySize(
		added.On.Writes)
	a.effect.Bytes += added.bytes
	if !added.Key.Incomplete() {
		if i := slices.IndexFunc(a.effect.Mutations, func(o mutation) bool { return o.Key.Equal(added.Key) }); i >= 0 {
			if a.effect.Mutations[i].Inserts && !added.Inserts {
				added.insert()
			}
			a.effect.Bytes -= a.effect.Mutations[i].bytes
			a.effect.Mutations[i] = added
			return
		}
	}
	a.effect.Mutations = append(a.effect.Mutations, added)
}

// OnLost adds a function for [Attempt.Lose] to call if the attempt's changes will never be
// committed.
func (a *Attempt) OnLost(f func(context.Context)) {
	a.do(func() error {
		a.lost = append(a.lost, f)
		return nil
	})
}

// Lose calls the functions added by OnLost, the last one first. If some of them panic, it calls the
// others, and returns the first panic as an error.
func (a *Attempt) Lose(ctx context.Context) (failed error) {
	for _, f := range slices.Backward(a.lost) {
		failed = cmp.Or(failed, func() (err error) {
			defer Recovered(&err)
			f(ctx)
			return nil
		}())
	}
	return failed
}

// Fail makes the attempt fail with an error. If it is called several times, the first error counts.
func (a *Attempt) Fail(err error) {
	err = readable(err)
	a.do(func() error {
		a.failed = cmp.Or(a.failed, err)
		return nil
	})
}

// Failed returns the error that was passed to Fail, or nil.
func (a *Attempt) Failed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// Misused returns the error of the function's first invalid call of an Attempt's method, or nil if
// all calls were valid.
func (a *Attempt) Misused() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Run runs fn, which calls the user's function. It then closes the attempt, even if fn panics or
// ends its goroutine: the attempt accepts no more calls. Run returns the error of fn, or else the
// error from Misused.
func (a *Attempt) Run(fn func() error) error {
	defer a.close()
	if err := fn(); err != nil {
		return err
	}
	return a.Misused()
}

func (a *Attempt) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// RunBatch runs fn, which calls the user's function for a batch of entities. It then closes their
// attempts, as Run does.
func RunBatch(attempts []*Attempt, fn func() error) error {
	defer func() {
		for _, a := range attempts {
			a.close()
		}
	}()
	return fn()
}

// Recovered is called by defer, in a function that runs the user's code. If that code has panicked,
// Recovered sets *err to an error about the panic. If it has not, Recovered calls the methods of
// *err, which also are the user's code. If one of them panics, that panic becomes the error.
func Recovered(err *error) {
	if r := recover(); r != nil {
		*err = panicOf(r)
		return
	}
	*err = readable(*err)
}

// readable returns err if all of its methods can be called. If one of them panics, such as Error on
// a nil pointer, readable returns an error about the panic.
func readable(err error) (is error) {
	if err == nil {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			is = panicOf(r)
		}
	}()
	fault.Read(err)
	return err
}

// panicOf returns an error for the recovered value r of a panic. Call it in the function that has
// recovered r, because it takes the stack from there.
func panicOf(r any) error {
	return fault.Panicked(fmt.Sprintf("panic: %v%s", r, panicked(debug.Stack())))
}

// panicked describes the place of a panic for a record: the first frames of its stack.
func panicked(stack []byte) string {
	const frames, lines = 4, 2 // each frame has a line for the function and a line for the file
	_, after, found := strings.Cut(string(stack), "\npanic(")
	if !found {
		return ""
	}
	where := strings.SplitN(after, "\n", (frames+1)*lines+1) // the first frame is the call of panic
	if len(where) <= lines {
		return ""
	}
	return "\n" + strings.Join(where[lines:min(len(where), (frames+1)*lines)], "\n")
}

// maxEffectBytes is the largest size of the function's writes for one entity, in bytes. A commit
// has up to 10 MiB. The rest is for scattermap's own records, and because sizes are estimated.
const maxEffectBytes = 8 << 20

// Effect returns everything that the attempt asks for. It returns an error if this is too large for
// a commit.
func (a *Attempt) Effect() (*Effect, error) {
	if a.effect.Bytes > maxEffectBytes {
		return nil, fault.Permanent(fmt.Errorf("the function writes about %d bytes for one entity, above the maximum "+
			"of %d", a.effect.Bytes, maxEffectBytes))
	}
	return &a.effect, nil
}
