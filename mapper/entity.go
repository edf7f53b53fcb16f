package mapper

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// An Entity is one entity in the hands of a mapper's function. It belongs to
// one attempt of the function: after that has returned, Count, Put, Delete and
// Touch panic, and changes of Value are lost. Its methods can be called
// concurrently.
type Entity[T any] struct {
	// Key is the entity's key.
	Key *datastore.Key

	// Value is the entity. An [Update] saves what the function changes of it.
	Value T

	attempt *attempt
}

// Count adds n to the job's counter of a name. It takes effect together with
// the entity's changes, exactly once. A name has up to 100 bytes, and a job up to 10,000 of
// them, which take up to 512 KiB with their numbers. The sum under a name fits an int64, and so
// does that over each page. A job that counts more fails, and [Job.Resume] goes on without counters:
// there is never a wrong number.
func (e *Entity[T]) Count(name string, n int64) { e.attempt.count(name, n) }

// Put saves another entity in the transaction of an [Update]: a struct pointer
// or a datastore.PropertyLoadSaver. The key may be incomplete. To change the
// entity itself, change Value. Of several of one entity the last one counts, Delete
// included. Putting an entity that the job has yet to visit ends the page before
// it, so a function that puts its neighbours makes many small pages, one after the
// other. What can't be saved is an error of the entity, as
// if the function had returned it, marked by [Permanent].
func (e *Entity[T]) Put(key *datastore.Key, src any) { e.attempt.put(key, src) }

// Delete deletes an entity in the transaction of an [Update]: another one, or
// this one.
func (e *Entity[T]) Delete(key *datastore.Key) { e.attempt.delete(key) }

// Touch has an [Update] save the entity though nothing of it changed, with all
// properties that T declares: to add those that are not stored yet, or to index
// it anew.
func (e *Entity[T]) Touch() { e.attempt.do(func() error { e.attempt.touched = true; return nil }) }

// IdempotencyKey returns a string that is the same for every attempt of one job
// on one entity, and different for all others: also for a later job of the same ID.
func (e *Entity[T]) IdempotencyKey() string {
	h := sha256.Sum256([]byte(e.attempt.job.String() + "\x00" + e.Key.Encode()))
	return hex.EncodeToString(h[:16])
}

// Permanent marks an error of a mapper's function that another attempt would
// only repeat: its entity is recorded as a failure at once. It does not end the
// job, unless too much of a page fails: see [Update].
func Permanent(err error) error { return fault.Permanent(err) }

// RetryAfter marks an error of a mapper's function: the next attempt is to be no
// sooner than after d, at most a week. It is one attempt of [MaxAttempts], as any. If
// so much of a page fails that the page is tried again as a whole, it waits for the
// longest of them.
func RetryAfter(err error, d time.Duration) error { return fault.RetryAfter(err, d) }

// An effect is what one attempt asks for, if it succeeds.
type effect struct {
	mutations []mutation
	counters  tally.Counters
	bytes     int // of the mutations, about
}

// A mutation keeps its key, which the client's own hides.
type mutation struct {
	key   *datastore.Key
	bytes int // about

	properties []datastore.Property // what is put
	changed    []string             // names of them, if it is the entity itself
	deletes    bool                 // nothing is: the entity is deleted
	*datastore.Mutation
}

// An attempt collects what one run of the function asks for besides the change
// of its entity.
type attempt struct {
	job  record.Ref
	mode mode
	key  *datastore.Key

	mu      sync.Mutex
	over    bool
	err     error // the first misuse
	effect  effect
	deleted bool // the entity itself
	touched bool
}

func (a *attempt) do(f func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		panic("mapper: an Entity was used after its function had returned")
	}
	if err := f(); err != nil && a.err == nil {
		a.err = fault.Permanent(err)
	}
}

func (a *attempt) count(name string, n int64) {
	a.do(func() error {
		if err := tally.CheckName(name); err != nil {
			return err
		}
		a.effect.counters.Add(name, n) // too many of them are the job's error, and not the entity's
		return nil
	})
}

func (a *attempt) put(key *datastore.Key, src any) {
	a.do(func() error {
		switch {
		case a.mode != update:
			return errors.New("Put is for the function of an Update")
		case key != nil && key.Equal(a.key):
			return errors.New("Put of the entity itself: change its Value")
		}
		if err := keyspace.CheckKey(key); err != nil {
			return fmt.Errorf("Put: %w", err)
		}
		properties, err := property.Save(src)
		if err != nil {
			return fmt.Errorf("Put: %w", err)
		}
		list := datastore.PropertyList(properties)
		a.add(datastore.NewUpsert(key, &list), mutation{key: key, properties: list})
		return nil
	})
}

func (a *attempt) delete(key *datastore.Key) {
	a.do(func() error {
		if a.mode != update {
			return errors.New("Delete is for the function of an Update")
		}
		if err := keyspace.CheckKey(key); err != nil {
			return fmt.Errorf("Delete: %w", err)
		}
		if key.Incomplete() {
			return errors.New("Delete: the key is incomplete")
		}
		a.deleted = a.deleted || key.Equal(a.key)
		a.add(datastore.NewDelete(key), mutation{key: key, deletes: true})
		return nil
	})
}

// add adds a mutation. Of several of one entity the last one counts.
func (a *attempt) add(m *datastore.Mutation, added mutation) {
	added.Mutation = m
	added.bytes = keyspace.KeySize(added.key) + keyspace.PropertiesSize(added.properties)
	a.effect.bytes += added.bytes
	if !added.key.Incomplete() {
		if i := slices.IndexFunc(a.effect.mutations, func(o mutation) bool { return o.key.Equal(added.key) }); i >= 0 {
			a.effect.bytes -= a.effect.mutations[i].bytes
			a.effect.mutations[i] = added
			return
		}
	}
	a.effect.mutations = append(a.effect.mutations, added)
}

// run runs the function and closes the attempt, however the function ends.
func (a *attempt) run(fn func() error) error {
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

// recovered makes a panic of the user's code an error. It is to be deferred.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %v%s", r, panicked(debug.Stack()))
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

// apply runs a function on an entity once. A panic of the user's code becomes
// an error.
func apply[T any](m mode, keysOnly bool, j *record.Job, key *datastore.Key, properties []datastore.Property, fn func(*Entity[T]) error) (_ *effect, err error) {
	defer recovered(&err)
	a := &attempt{job: j.Ref(), mode: m, key: key}
	e := &Entity[T]{Key: key, attempt: a}
	if !keysOnly {
		if err := property.Load(key, properties, &e.Value); err != nil {
			return nil, fault.Permanent(err)
		}
	}
	var was *property.Original[T]
	if m == update && !keysOnly {
		if was, err = property.OriginalOf(&e.Value); err != nil {
			return nil, fault.Permanent(err)
		}
	}
	if err := a.run(func() error { return fn(e) }); err != nil {
		return nil, err
	}
	if m != update || a.deleted {
		return a.bounded()
	}
	if keysOnly {
		if a.touched || !reflect.ValueOf(&e.Value).Elem().IsZero() {
			return nil, fault.Permanent(errKeysOnly)
		}
		return a.bounded()
	}
	before, after, err := was.Changes(&e.Value, a.touched)
	if err != nil {
		return nil, fault.Permanent(err)
	}
	whole, changed, err := property.Merge(properties, before, after, a.touched)
	if err != nil {
		return nil, fault.Permanent(err)
	}
	if len(changed) > 0 || a.touched {
		list := datastore.PropertyList(whole)
		var own *datastore.Mutation
		if j.Masks { // what the mask does not name needs not be sent
			list = slices.DeleteFunc(list, func(p datastore.Property) bool { return !slices.Contains(changed, p.Name) })
			own = datastore.NewUpdate(key, &list).WithPropertyMask(property.MaskPaths(changed)...)
		} else {
			own = datastore.NewUpdate(key, &list)
		}
		a.add(own, mutation{key: key, properties: list, changed: changed})
	}
	return a.bounded()
}

// errKeysOnly says that a function has changed what it does not know.
var errKeysOnly = errors.New("the function has changed the entity's Value, and the job's query is KeysOnly: the entity was not read, and can only be deleted")

// maxEffectBytes is what the function can write for one entity: the 10 MiB of a
// commit, less what estimates and the job's own records may need.
const maxEffectBytes = 8 << 20

// bounded returns what the attempt asks for, if a commit can hold it.
func (a *attempt) bounded() (*effect, error) {
	if a.effect.bytes > maxEffectBytes {
		return nil, fault.Permanent(fmt.Errorf("the function writes about %d bytes for one entity, above the maximum of %d", a.effect.bytes, maxEffectBytes))
	}
	return &a.effect, nil
}
