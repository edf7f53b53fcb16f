package mapper

import (
	"context"
	"errors"
	"reflect"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// An Entity is the entity that a mapper's function gets. It is valid during one call of the
// function. After the function has returned, changes of Value are lost, and all methods except
// Stored and IdempotencyKey panic. Its methods are safe for concurrent use.
//
// Methods that write return no error. After a wrong call the entity is a failure, even if the
// function returns nil. A call is wrong if it writes in a [Visit], or if the key, the source or the
// name of a counter is invalid. For one entity the function can write about 8 MiB, including the
// entity itself.
type Entity[T any] struct {
	// Key is the entity's key. It is a copy: a change of it has no effect on the entity.
	Key *datastore.Key

	// Value is the content of the entity. An [Update] saves its changes.
	Value T

	attempt *function.Attempt
	stored  *pb.Entity // the entity as it was read; nil if the job's query is KeysOnly
}

// Count adds n to one of the job's counters, which [Status].Counters returns. It takes effect
// together with the entity's changes, exactly once.
//
// A name has up to 100 bytes. A job has up to 40,000 names, which together with their numbers take
// up to 640 KiB, compressed. The sums of each page and of the job must fit an int64. A job that
// exceeds a limit fails. [Job.Resume] then continues it without any counters, so that no counter is
// wrong. If you need more names, such as one for each customer, put the numbers as entities in an
// [Update]. An aggregation query then adds them up.
//
// If the function does not change the entity, its counts are of the entity's state when the page
// was read: see [ClientOption].
func (e *Entity[T]) Count(name string, n int64) { e.attempt.Count(name, n) }

// CountMin keeps the least number of all calls of CountMin in the job with the same name.
// [Status].Counters has it under the key "min(name)". It is exact, and has the limits of
// [Entity.Count]. Without a call the counter does not exist.
//
// For example, a report of orders by country may call Count, CountMin and CountMax with the name
// "cents/AT". Its counters are then "cents/AT", "min(cents/AT)" and "max(cents/AT)".
func (e *Entity[T]) CountMin(name string, n int64) { e.attempt.Min(name, n) }

// MinCounter returns the key under which [Status].Counters has the number of [Entity.CountMin]:
// "min(name)".
func MinCounter(name string) string { return tally.Min(name) }

// MaxCounter returns the key under which [Status].Counters has the number of [Entity.CountMax]:
// "max(name)".
func MaxCounter(name string) string { return tally.Max(name) }

// CountMax keeps the greatest number of all calls of CountMax in the job with the same name, under
// the key "max(name)". It is as exact as [Entity.CountMin], and has the same limits.
func (e *Entity[T]) CountMax(name string, n int64) { e.attempt.Max(name, n) }

// Put saves another entity, in the commit of an [Update]'s page. The source is a struct pointer or
// a datastore.PropertyLoadSaver. If the key is incomplete, the entity gets a new ID. To change the
// entity of this call, change Value instead.
//
// Put overwrites the stored entity, even if others have just written it. If the entity must not
// exist yet, use [Entity.Insert]. If the new value depends on the stored one, read that by
// [Entity.Get] first. If a function puts or deletes an entity several times, the last call counts.
//
// If the function puts a later entity of the same page, the page ends before that entity. So a
// function that puts the neighbours of its entities makes many small pages.
func (e *Entity[T]) Put(key *datastore.Key, src any) { e.attempt.Put(key, src) }

// Delete deletes the function's own entity or another one, in the commit of an [Update]'s page. The
// entity need not exist. The key must be complete.
func (e *Entity[T]) Delete(key *datastore.Key) { e.attempt.Delete(key) }

// Touch makes an [Update] write the entity even if nothing differs, exactly as it is stored. Use it
// after you add an index or a time-to-live policy. If the job's query is KeysOnly, the entity is a
// failure.
func (e *Entity[T]) Touch() { e.attempt.Touch() }

// Resave makes an [Update] store all properties that T declares, even if the function has not
// changed them. It stores them as the client's Put of Value does. Use Resave after you changed a
// noindex tag, or if T's Load method changes older entities. Properties that T does not declare
// stay. If the entity is stored in this way already, it is not written. If the job's query is
// KeysOnly, the entity is a failure.
func (e *Entity[T]) Resave() { e.attempt.Resave() }

// Stored returns a copy of the entity in the protocol's form, as it is stored. This form also has
// what a Go type can't hold: the meaning of each value, whether it is indexed, and the projects of
// keys. If the job's query is KeysOnly, Stored returns nil.
func (e *Entity[T]) Stored() *pb.Entity { return pbvalue.Clone(e.stored) }

// PutStored is [Entity.Put] of an entity in the protocol's form, which is saved byte for byte. Use
// it to copy an entity that [Entity.Stored] returned. The key must be complete. It replaces the key
// in the entity. The caller must not change the entity afterwards.
func (e *Entity[T]) PutStored(key *datastore.Key, entity *pb.Entity) {
	e.attempt.PutStored(key, entity)
}

// IdempotencyKey returns 32 hexadecimal digits. They are the same in all attempts of one job on one
// entity. They differ for other entities and jobs, even for a later job with the same ID. Send them
// to a service that recognises repeated calls by such a key.
func (e *Entity[T]) IdempotencyKey() string { return e.attempt.IdempotencyKey() }

// AwaitCall announces a call of an outside service, just before the function makes it, and waits
// until [Rate].CallsPerSecond allows the call. Without that limit it returns at once.
//
//	if err := e.AwaitCall(ctx); err != nil {
//		return err
//	}
//	resp, err := service.Do(ctx, request)
//
// After an error, make no call and return the error. The error has one of two meanings. If the wait
// would be too long, or the job pauses, or the process stops, the attempt does not count and has no
// effect. The page ends before the entity, and the function runs again later. If only ctx has
// ended, the error counts as any other error of the function. So announce a call before the
// function does anything that must not be repeated. The wait is no part of
// StartOptions.EntityTimeout.
//
// There are two exceptions. A run that announces more calls than the rate can give fails its
// entity: see [Rate]. If an entity has waited for the rate for an hour, a run that must stop
// between its calls counts as a failed attempt.
func (e *Entity[T]) AwaitCall(ctx context.Context) error { return e.attempt.AwaitCalls(ctx, 1) }

// AwaitCalls is [Entity.AwaitCall] for n calls, which the function may make at once. The next call
// of the job waits until the rate has caught up, however long that takes. In a batch
// ([UpdateBatches]), one call may serve several entities. Announce it once, with the method of any
// of them.
func (e *Entity[T]) AwaitCalls(ctx context.Context, n int) error { return e.attempt.AwaitCalls(ctx, n) }

// Skip is the error that a function returns if it has no work on its entity. The entity then counts
// as processed, and not as a failure.
//
// In an [Update] the entity stays unchanged, even if the function has changed Value. The call's
// counts, and its puts and deletes of other entities, take effect. In a [Visit], Skip has the
// effect of nil. In a [VisitPages] the function makes no record of the entity.
//
// A wrapped Skip has the same effect. If Skip is joined with another error ([errors.Join]), the
// other error counts.
//
//nolint:revive,staticcheck // it is no error, as fs.SkipDir is none
var Skip = errors.New("the function skips the entity")

// Permanent marks an error of a mapper's function that would occur again in every attempt. The
// entity is recorded as a failure at once, and the job continues. If too many entities of a page
// fail, the job fails: see [Update]. Permanent(nil) is nil.
func Permanent(err error) error { return fault.Permanent(err) }

// RetryAfter marks an error of a mapper's function. Use it if a service refuses a call for now, for
// example with HTTP's 429 or 503. The function runs again on the entity after d or later; d is at
// most a week. Meanwhile the job slows down to the rate that the service accepts. RetryAfter(nil,
// d) is nil.
//
// The function runs up to three times in a row, if the waits are short. If the service refuses all
// these calls, its other answers to this process decide whether the attempt has failed (see
// [RetryPolicy]):
//
//   - If the service accepts most other calls, the attempt has failed.
//   - If the service refuses most other calls, the attempt does not count, and the task waits
//     before this entity. Only one refusal an hour counts as a failed attempt, so a job survives
//     some hours without the service.
//   - If the service has not accepted a call yet, this entity may be the cause. So the task
//     postpones the entity, without a failed attempt, and continues with the page. It waits before
//     the third such entity in a row.
//
// If the function runs again because others have changed the entity, the first refusal makes the
// task wait before this entity.
func RetryAfter(err error, d time.Duration) error { return fault.RetryAfter(err, d) }

// Fail fails the entity in the function of an [UpdateBatches] or [VisitBatches]. It has the effect
// of an error that the function of an [Update] or [Visit] returns. So [Permanent] and [RetryAfter]
// can mark it, and Fail([Skip]) leaves the entity unchanged. If Fail is called several times, the
// first error counts. Fail(nil) does nothing.
func (e *Entity[T]) Fail(err error) {
	if err != nil {
		e.attempt.Fail(err)
	}
}

// apply runs a mapper's function on one entity, and returns its effect. A panic of the user's code
// becomes an error.
func apply[T any](
	m function.Mode, keysOnly bool, j function.Job, key *datastore.Key, stored *pb.Entity, fn func(*Entity[T]) error,
) (_ *function.Effect, err error) {
	defer function.Recovered(&err)
	c, err := loadCall[T](m, keysOnly, function.Subject{Job: j, Key: key, Stored: stored})
	if err != nil {
		return nil, err
	}
	if err := c.attempt.Run(func() error {
		if err := fn(&c.Entity); err != nil {
			return c.unlessSkip(err)
		}
		return c.unlessSkip(c.attempt.Failed())
	}); err != nil {
		return nil, err
	}
	return c.effect()
}

// applyBatch runs a mapper's function once on the entities of a batch, and returns an answer for
// each.
func applyBatch[T any](
	m function.Mode, keysOnly bool, batch []function.Subject, fn func([]*Entity[T]) error,
) (_ []function.Answer, err error) {
	defer function.Recovered(&err)
	answers := make([]function.Answer, len(batch))
	var calls []*call[T]
	var places []int
	var entities []*Entity[T]
	var attempts []*function.Attempt
	for i, s := range batch {
		c, err := loadCall[T](m, keysOnly, s)
		if err != nil {
			answers[i].Err = err
			continue
		}
		calls, places = append(calls, c), append(places, i)
		entities, attempts = append(entities, &c.Entity), append(attempts, c.attempt)
	}
	if len(calls) == 0 {
		return answers, nil
	}
	skips := false
	if err := function.RunBatch(attempts, func() error {
		err := fn(entities)
		if skips = fault.IsOnly(err, Skip); skips {
			return nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	for i, c := range calls {
		c.skips = skips
		answers[places[i]].Effect, answers[places[i]].Err = c.answer()
	}
	return answers, nil
}

// A call holds what is needed for one call of a mapper's function, for one entity.
type call[T any] struct {
	Entity[T]
	mode     function.Mode
	keysOnly bool
	masks    bool
	was      *property.Original[T]
	skips    bool // whether the function has returned Skip, so that the entity stays unchanged
}

// loadCall loads a stored entity into the Go value of a call. A panic of the user's code becomes an
// error.
func loadCall[T any](m function.Mode, keysOnly bool, s function.Subject) (c *call[T], err error) {
	defer function.Recovered(&err)
	a := function.NewAttempt(s.Job.Ref, m, s.Key)
	a.Among(s.Job.Others)
	a.Announce(s.Job.Calls)
	own := value.CloneKey(s.Key) // the function may change it
	c = &call[T]{Entity: Entity[T]{Key: own, attempt: a, stored: s.Stored}, mode: m, keysOnly: keysOnly,
		masks: s.Job.Masks}
	switch {
	case keysOnly:
	case m == function.Update:
		c.was, err = property.LoadOriginal(own, s.Stored, &c.Value)
	default:
		err = property.LoadStored(own, s.Stored, &c.Value)
	}
	if err != nil {
		return nil, fault.Permanent(err)
	}
	return c, nil
}

// unlessSkip returns err. But if err is [Skip], possibly wrapped, unlessSkip sets the field skips
// of the call and returns nil.
func (c *call[T]) unlessSkip(err error) error {
	if fault.IsOnly(err, Skip) {
		c.skips = true
		return nil
	}
	return err
}

// answer returns the effect of a batch's call on one of its entities, or the entity's error. A
// panic of the user's code becomes an error.
func (c *call[T]) answer() (_ *function.Effect, err error) {
	defer function.Recovered(&err)
	if err := c.unlessSkip(c.attempt.Failed()); err != nil {
		return nil, err
	}
	if err := c.attempt.Misused(); err != nil {
		return nil, err
	}
	return c.effect()
}

// effect returns the effect of a successful call: which properties of its entity and which other
// entities it writes.
func (c *call[T]) effect() (*function.Effect, error) {
	a := c.attempt
	switch {
	case c.mode != function.Update || a.Deleted || c.skips:
		return a.Effect()
	case c.keysOnly && !reflect.ValueOf(&c.Value).Elem().IsZero():
		return nil, fault.Permanent(errKeysOnly)
	case c.keysOnly && (a.Touched || a.Resaved):
		return nil, fault.Permanent(errNotRead)
	case c.keysOnly:
		return a.Effect()
	}
	edit, err := c.was.Changes(&c.Value, a.Resaved)
	if err != nil {
		return nil, fault.Permanent(err)
	}
	if len(edit.Changed) > 0 || a.Touched {
		a.Save(edit, c.masks)
	}
	return a.Effect()
}

// errNotRead is the error if the function has called Touch or Resave on an entity that was not
// read, because the job's query is KeysOnly.
var errNotRead = errors.New("the function has called Touch or Resave, and the job's query is KeysOnly: the entity " +
	"was not read, and can only be deleted")

// errKeysOnly is the error if the function has changed the Value of an entity that was not read,
// because the job's query is KeysOnly.
var errKeysOnly = errors.New("the function has changed the entity's Value, and the job's query is KeysOnly: the " +
	"entity was not read, and can only be deleted")
