package mapper

import (
	"errors"
	"reflect"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// An Entity is one entity in the hands of a mapper's function. It belongs to
// one attempt of the function: after that has returned, Count, Put and Delete
// panic, and changes of Value are lost. Its methods can be called
// concurrently.
type Entity[T any] struct {
	// Key is the entity's key.
	Key *datastore.Key

	// Value is the entity. An [Update] saves it.
	Value T

	attempt *function.Attempt
	stored  *pb.Entity // nil: it was not read
}

// Count adds n to the job's counter of a name. It takes effect together with the entity's changes,
// exactly once. A name has up to 100 bytes, and a job up to 40,000 of them, which take up to 640
// KiB with their numbers, compressed: 10,000 groups that have four each. The sum under a name fits
// an int64, and so does that over each page. A job that counts more fails, and [Job.Resume] goes on
// without counters: there is never a wrong number. What has more names, such as one for each
// customer, the function of an [Update] can put as entities of their own, for an aggregation query
// to add up. An entity that the function does not change counts as it was when it was read, see
// [ClientOption].
func (e *Entity[T]) Count(name string, n int64) { e.attempt.Count(name, n) }

// CountMin has the job's counter "min(name)" be the least of all numbers that its function gives
// under a name, and [Entity.CountMax] has "max(name)" be the greatest. They are exact as those of
// [Entity.Count] are, and of the same limits; a counter that no entity has given a number is not
// there. So a group has a count, a sum, a minimum and a maximum under names of its own, such as
// "orders/AT", "cents/AT", "min(cents/AT)" and "max(cents/AT)".
func (e *Entity[T]) CountMin(name string, n int64) { e.attempt.Min(name, n) }

// MinCounter returns the name of the counter that [Entity.CountMin] makes of a name, as
// [Status].Counters has it.
func MinCounter(name string) string { return tally.Min(name) }

// MaxCounter returns the name of the counter that [Entity.CountMax] makes of a name.
func MaxCounter(name string) string { return tally.Max(name) }

// CountMax is like [Entity.CountMin].
func (e *Entity[T]) CountMax(name string, n int64) { e.attempt.Max(name, n) }

// Put saves another entity in the commit of an [Update]'s page: a struct pointer or a
// datastore.PropertyLoadSaver. It overwrites what is there, also what others have written since.
// [Entity.Insert] refuses an entity that is there; if what the function puts depends on what is
// there, read that by [Entity.Get] first. The key may be incomplete. To change the entity itself,
// change Value. Of several of one entity the last one counts, Delete included. Putting an entity
// that the job has yet to visit ends the page before it, so a function that puts its neighbours
// makes many small pages, one after the other. What can't be saved is an error of the entity, as if
// the function had returned it, marked by [Permanent].
func (e *Entity[T]) Put(key *datastore.Key, src any) { e.attempt.Put(key, src) }

// Delete deletes an entity in the commit of an [Update]'s page: this one, or another one, whether
// that is there or not.
func (e *Entity[T]) Delete(key *datastore.Key) { e.attempt.Delete(key) }

// Touch has the entity be written also if nothing of it differs, exactly as it is stored: for an
// index that was added since, say, or a time-to-live policy.
func (e *Entity[T]) Touch() { e.attempt.Touch() }

// Resave has all that T declares be stored as the client's Put of Value stores it, whether the
// function has changed it or not: for a tag that says noindex or does not any more, and for what
// T's Load makes of older entities. What T does not declare stays. An entity that is stored so
// already is not written.
func (e *Entity[T]) Resave() { e.attempt.Resave() }

// Stored returns the entity as the database has it, in the protocol's form, which says more than a
// Go type does: the meaning of each value, and whether it is indexed; keys with their projects. It
// is the caller's own. It is nil if the job's query is KeysOnly.
func (e *Entity[T]) Stored() *pb.Entity { return pbvalue.Clone(e.stored) }

// PutStored saves another entity as [Entity.Put] does, in the protocol's form, byte for byte: a
// copy of what [Entity.Stored] has returned, say. The key, which must be complete, takes the place
// of the entity's own. The caller must not change the entity any more.
func (e *Entity[T]) PutStored(key *datastore.Key, entity *pb.Entity) {
	e.attempt.PutStored(key, entity)
}

// IdempotencyKey returns a string that is the same for every attempt of one job
// on one entity, and different for all others: also for a later job of the same ID.
func (e *Entity[T]) IdempotencyKey() string { return e.attempt.IdempotencyKey() }

// Skip is what the function of an [Update] returns, by itself or wrapped, to leave its entity as it
// is stored, whatever it lacks and whatever the function has changed of its Value. It is no error:
// the entity counts as processed, and what the function has counted, put and deleted takes effect,
// its own entity included. Joined with an error ([errors.Join]) it is that error. For a [Visit] it
// says no more than nil.
//
//nolint:revive,staticcheck // it is no error, as fs.SkipDir is none
var Skip = errors.New("the function skips the entity")

// Permanent marks an error of a mapper's function that another attempt would
// only repeat: its entity is recorded as a failure at once. It does not end the
// job, unless too much of a page fails: see [Update].
func Permanent(err error) error { return fault.Permanent(err) }

// RetryAfter marks an error of a mapper's function: the next attempt is to be no
// sooner than after d, at most a week. It is an attempt as any, see [RetryPolicy]. If
// so much of a page fails that the page is tried again as a whole, it waits for the
// longest of them.
func RetryAfter(err error, d time.Duration) error { return fault.RetryAfter(err, d) }

// apply runs a function on an entity once. A panic of the user's code becomes
// an error.
func apply[T any](
	m function.Mode, keysOnly bool, j function.Job, key *datastore.Key, stored *pb.Entity, fn func(*Entity[T]) error,
) (_ *function.Effect, err error) {
	defer function.Recovered(&err)
	a := function.NewAttempt(j.Ref, m, key)
	a.Among(j.Others)
	e := &Entity[T]{Key: key, attempt: a, stored: stored}
	var was *property.Original[T]
	switch {
	case keysOnly:
	case m == function.Update:
		was, err = property.LoadOriginal(key, stored, &e.Value)
	default:
		err = property.LoadStored(key, stored, &e.Value)
	}
	if err != nil {
		return nil, fault.Permanent(err)
	}
	skips := false
	if err := a.Run(func() error {
		err := fn(e)
		if skips = fault.IsOnly(err, Skip); skips {
			return nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	switch {
	case m != function.Update || a.Deleted || skips:
		return a.Effect()
	case keysOnly && !reflect.ValueOf(&e.Value).Elem().IsZero():
		return nil, fault.Permanent(errKeysOnly)
	case keysOnly:
		return a.Effect()
	}
	whole, changed, err := was.Changes(&e.Value, a.Resaved)
	if err != nil {
		return nil, fault.Permanent(err)
	}
	if len(changed) > 0 || a.Touched {
		a.Save(whole, changed, j.Masks)
	}
	return a.Effect()
}

// errKeysOnly says that a function has changed what it does not know.
var errKeysOnly = errors.New("the function has changed the entity's Value, and the job's query is KeysOnly: the " +
	"entity was not read, and can only be deleted")
