package function

import (
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

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// An Attempt collects what one run of the function asks for besides the change
// of its entity.
type Attempt struct {
	job    record.Ref
	mode   Mode
	key    *datastore.Key // of its entity; nil: it is on a page
	others Others         // nil: there are none
	lost   []func(context.Context)

	mu      sync.Mutex
	over    bool
	err     error // the first misuse
	effect  Effect
	Deleted bool // the entity itself
	Touched bool // likewise
	Resaved bool // likewise
}

// NewAttempt returns an attempt of a job on an entity.
func NewAttempt(job record.Ref, m Mode, key *datastore.Key) *Attempt {
	return &Attempt{job: job, mode: m, key: key}
}

// Among has the attempt read other entities.
func (a *Attempt) Among(o Others) { a.others = o }

// Job returns what tells the attempt's job from all others.
func (a *Attempt) Job() string { return a.job.String() }

// IdempotencyKey returns a string that is the same for all attempts of the job on the entity, and
// different for all others.
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

// Count adds to a counter of the job.
func (a *Attempt) Count(name string, n int64) { a.count(name, name, n) }

// Min lowers a minimum of the job to a number, if that is less, and Max raises a maximum.
func (a *Attempt) Min(name string, n int64) { a.count(name, tally.Min(name), n) }

// Max is like Min.
func (a *Attempt) Max(name string, n int64) { a.count(name, tally.Max(name), n) }

func (a *Attempt) count(name, counter string, n int64) {
	a.do(func() error {
		if err := tally.CheckName(name); err != nil {
			return err
		}
		a.effect.Counters.Add(counter, n) // too many of them are the job's error, and not the entity's
		return nil
	})
}

// Collect hands a value to the function over the page.
func (a *Attempt) Collect(v any) {
	a.do(func() error {
		a.effect.Collected = append(a.effect.Collected, v)
		return nil
	})
}

// Put saves another entity. The key may be incomplete.
func (a *Attempt) Put(key *datastore.Key, src any) { a.write("Put", key, false, declared(key, src)) }

// Insert saves another entity that must not be there.
func (a *Attempt) Insert(key *datastore.Key, src any) {
	a.write("Insert", key, true, declared(key, src))
}

// PutStored saves another entity as the protocol has it, under a complete key.
func (a *Attempt) PutStored(key *datastore.Key, stored *pb.Entity) {
	a.write("PutStored", key, false, asStored(key, stored))
}

// InsertStored is PutStored of an entity that must not be there.
func (a *Attempt) InsertStored(key *datastore.Key, stored *pb.Entity) {
	a.write("InsertStored", key, true, asStored(key, stored))
}

// write saves another entity, for the method that is named.
func (a *Attempt) write(method string, key *datastore.Key, inserts bool, content func() (mutation, error)) {
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

// absent returns an error if it is known already that an entity is there.
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

// declared returns what writes an entity as the client saves a value of Go.
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

// asStored returns what writes an entity as the protocol has it.
func asStored(key *datastore.Key, stored *pb.Entity) func() (mutation, error) {
	return func() (mutation, error) {
		switch {
		case stored == nil:
			return mutation{}, errors.New("there is no entity: the query of the job is KeysOnly")
		case key.Incomplete():
			return mutation{}, errors.New("the key is incomplete")
		}
		whole := &pb.Entity{Key: pbvalue.Key(key), Properties: stored.GetProperties()}
		if of := stored.GetKey().GetPartitionId(); of != nil { // the project and database are the client's
			whole.Key.PartitionId = &pb.PartitionId{ProjectId: of.ProjectId, DatabaseId: of.DatabaseId,
				NamespaceId: key.Namespace}
		}
		return mutation{
			Mutation: datastore.NewUpsert(key, wire.Unsent()), Key: key, On: wire.Condition{Writes: whole, Free: true},
		}, property.CheckText(whole)
	}
}

// Get reads other entities, into what load is given for each of those that are there. It returns
// which are not.
func (a *Attempt) Get(
	ctx context.Context, keys []*datastore.Key, load func(i int, stored *pb.Entity) error,
) (missing []bool, err error) {
	others := a.others
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
	if a.over { // the function has not waited for it
		return nil, errors.New("Get: the function has returned meanwhile")
	}
	a.effect.Seen = append(a.effect.Seen, seen...)
	return missing, err
}

// Delete deletes an entity: another one, or the attempt's own.
func (a *Attempt) Delete(key *datastore.Key) {
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Delete is for the function of an Update")
		}
		if err := keyspace.CheckKey(key); err != nil {
			return fmt.Errorf("Delete: %w", err)
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

// Touch has the entity itself be written although nothing of it has changed.
func (a *Attempt) Touch() {
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Touch is for the function of an Update")
		}
		a.Touched = true
		return nil
	})
}

// Resave has all that the type declares of the entity itself be saved, whether it has changed or
// not.
func (a *Attempt) Resave() {
	a.do(func() error {
		if a.mode != Update {
			return errors.New("Resave is for the function of an Update")
		}
		a.Resaved = true
		return nil
	})
}

// Restore has an entity be as the database had it, or be deleted if that is nil, on the condition
// that it has a version still; 0: that it does not exist.
func (a *Attempt) Restore(key *datastore.Key, image *pb.Entity, version int64) {
	a.add(Restoring(key, image, version),
		mutation{Key: key, Deletes: image == nil, On: wire.Condition{Version: version, Writes: image}})
}

// Restoring returns the mutation that [Attempt.Restore] makes: its condition has what it writes.
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

// Leave notes that an undo leaves an entity as it is.
func (a *Attempt) Leave(key *datastore.Key, why string) {
	a.effect.Left = append(a.effect.Left, undolog.Left{Key: key, Why: why})
}

// Save saves the entity itself: only the changed properties if masks can name them, and all of it
// otherwise.
func (a *Attempt) Save(whole *pb.Entity, changed []string, masks bool) {
	m, saved := datastore.NewUpdate(a.key, wire.Unsent()), whole
	if masks && len(changed) > 0 && property.Maskable(changed) {
		// What the mask does not name needs not be sent.
		some := &pb.Entity{Key: whole.GetKey(), Properties: make(map[string]*pb.Value, len(changed))}
		for _, name := range changed {
			if v := whole.GetProperties()[name]; v != nil {
				some.Properties[name] = v
			}
		}
		m, whole = m.WithPropertyMask(changed...), some
	}
	a.add(m, mutation{Key: a.key, Changed: changed, Whole: saved, On: wire.Condition{Writes: whole, Free: true}})
}

// add adds a mutation. Of several of one entity the last one counts.
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

// OnLost has f called if what the attempt asks for will never take effect.
func (a *Attempt) OnLost(f func(context.Context)) {
	a.do(func() error {
		a.lost = append(a.lost, f)
		return nil
	})
}

// Lose calls what is to be called if the attempt has no effect, in the reverse order.
func (a *Attempt) Lose(ctx context.Context) {
	for _, f := range slices.Backward(a.lost) {
		f(ctx)
	}
}

// Run runs the function and closes the attempt, however the function ends.
func (a *Attempt) Run(fn func() error) error {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.over = true
	}()
	if err := fn(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Recovered makes a panic of the user's code an error. It is to be deferred.
func Recovered(err *error) {
	if r := recover(); r != nil {
		*err = fault.Panicked(fmt.Sprintf("panic: %v%s", r, panicked(debug.Stack())))
	}
}

// panicked returns where a panic comes from: the first frames of its stack,
// which a record has room for.
func panicked(stack []byte) string {
	const frames, lines = 4, 2 // a frame is a line with the function, and one with the file
	_, after, found := strings.Cut(string(stack), "\npanic(")
	if !found {
		return ""
	}
	where := strings.SplitN(after, "\n", (frames+1)*lines+1) // those of panic itself are the first
	if len(where) <= lines {
		return ""
	}
	return "\n" + strings.Join(where[lines:min(len(where), (frames+1)*lines)], "\n")
}

// maxEffectBytes is what the function can write for one entity: the 10 MiB of a
// commit, less what estimates and the job's own records may need.
const maxEffectBytes = 8 << 20

// Effect returns what the attempt asks for, if a commit can hold it.
func (a *Attempt) Effect() (*Effect, error) {
	if a.effect.Bytes > maxEffectBytes {
		return nil, fault.Permanent(fmt.Errorf("the function writes about %d bytes for one entity, above the maximum "+
			"of %d", a.effect.Bytes, maxEffectBytes))
	}
	return &a.effect, nil
}
