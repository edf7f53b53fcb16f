package undo

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// settle decides about the entities of the commit c that may have other writes, before or after c:
// by other pages of the job, or by other clients. The past u is the undone job's, and itself is the
// undo's.
func settle(ctx context.Context, u, itself past, c commit, all []*entity) error {
	some, first, last, err := unsettled(ctx, u, all)
	if len(some) == 0 {
		return err
	}
	s := settling{past: u, c: c}
	was, err := s.atStart(ctx, first)
	if err != nil {
		return unkept(err, some)
	}
	then, err := s.atEnd(ctx, itself, last)
	if err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	for _, e := range some {
		switch {
		case !e.changed && e.before == nil && was.Of(e.key) == nil: // the entity did not exist when the job started
		case !e.changed:
			group.Go(func() error { return s.goBack(gctx, e) })
		case e.shown != nil:
			group.Go(func() error { return s.lookFurther(gctx, e, e.shown) })
		case then != nil:
			group.Go(func() error { return s.lookFurther(gctx, e, then.Of(e.key)) })
		default:
			group.Go(func() error { return s.lookFurther(gctx, e, e.now) })
		}
	}
	return group.Wait()
}

// unsettled returns the entities that may have other writes than the commit's. It also returns keys
// to look up: at the start of the job (first), and after its end (last).
func unsettled(ctx context.Context, u past, all []*entity) (some []*entity, first, last []*datastore.Key, err error) {
	for _, e := range all {
		before, err := u.beforeJob(ctx, timeOf(e.before))
		switch {
		case err != nil:
			return nil, nil, nil, err
		case !e.changed && before && e.before != nil:
			continue
		case !e.changed && e.before == nil:
			first = append(first, e.key)
		case e.changed:
			last = append(last, e.key)
		}
		some = append(some, e)
	}
	return some, first, last, nil
}

// atStart sets the start of the time in which the job may have written, and returns the states of
// entities at this start. It is the job's start, or the oldest time that the database certainly
// serves.
func (s *settling) atStart(ctx context.Context, keys []*datastore.Key) (was *wire.Results, err error) {
	job, begun, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	s.from = begun
	was, err = s.lookup(ctx, append(slices.Clip(keys), record.JobKey(job.ID)), s.from)
	if fault.IsFatal(err) {
		now, err := s.lookup(ctx, []*datastore.Key{record.JobKey(job.ID)}, time.Time{})
		if err != nil {
			return nil, err
		}
		s.from = now.ReadTime().Add(-exactly).Truncate(time.Microsecond)
		return s.lookup(ctx, keys, s.from)
	}
	return was, err
}

// atEnd sets the end of the time in which the job may have written. It returns the states of
// entities at this end, or nil if they are not needed or not known.
//
// The job's record has the end by the clock of a process, which may be wrong. So atEnd uses this
// time only if the database's record of the job had the end at that time, some minutes later.
// Otherwise it takes the time at which the undo was created.
func (s *settling) atEnd(ctx context.Context, undo past, keys []*datastore.Key) (then *wire.Results, err error) {
	job, _, err := s.load(ctx)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if job.State == record.Succeeded || job.State == record.SucceededWithFailures {
		s.until = job.Ended.Add(skew)
		key := record.JobKey(job.ID)
		then, err = s.lookup(ctx, append(slices.Clip(keys), key), s.until)
		switch {
		case err == nil && endedAt(then.Of(key)).Equal(job.Ended):
			return then, nil
		case err != nil && !fault.IsFatal(err):
			return nil, err
		}
	}
	_, s.until, err = undo.load(ctx)
	return nil, err
}

// endedAt returns the end of a job in its stored record.
func endedAt(job *pb.EntityResult) time.Time {
	return job.GetEntity().GetProperties()["ended"].GetTimestampValue().AsTime()
}

// generationOf returns the generation of a job in its stored record.
func generationOf(job *pb.EntityResult) int64 {
	return job.GetEntity().GetProperties()["generation"].GetIntegerValue()
}

// unkept marks all entities as not restored, if err says that the database no longer serves their
// past. It returns any other error.
func unkept(err error, all []*entity) error {
	if !fault.IsFatal(err) {
		return err
	}
	for _, e := range all {
		e.why = whyUnkept
	}
	return nil
}

// skew is the largest difference that is expected between the clocks of a process and of the
// database. With a larger difference, an undo makes more calls.
const skew = 2 * time.Minute

// A settling decides to which states the undo restores the entities of one commit. For this, it
// reads their past states.
type settling struct {
	past
	c           commit
	from, until time.Time // the time in which the job may have written, as far as the database serves it
}

// goBack sets the state that an entity gets: its state before the job's first write. If another
// client wrote the entity between two writes of the job, it gets this client's state.
func (s settling) goBack(ctx context.Context, e *entity) error {
	image, why, err := s.first(ctx, e.key, s.c.at, e.before)
	if fault.IsFatal(err) {
		why, err = whyUnkept, nil
	}
	e.becomes, e.why = image.GetEntity(), why
	return err
}

// first returns the state of an entity before the job's first write. The job wrote the entity at
// the time at, and before is the state before this write. From there, first follows earlier writes
// back.
func (s settling) first(
	ctx context.Context, key *datastore.Key, at time.Time, before *pb.EntityResult,
) (image *pb.EntityResult, why string, err error) {
	for range maxWrites {
		switch {
		case before != nil:
			at = timeOf(before)
		default:
			deleted, found, err := s.lastDeletion(ctx, key, at)
			if !found {
				return nil, "", err
			}
			at = deleted
		}
		wrote, why, err := s.wrote(ctx, key, at)
		if !wrote {
			return before, why, err
		}
		if before, err = s.at(ctx, key, at.Add(-time.Microsecond)); err != nil {
			return nil, "", err
		}
	}
	return nil, whyOften, nil
}

// lastDeletion returns when an entity was last deleted before the time at, at which it does not
// exist. The entity must have existed at the start of the job. It may have been put and deleted
// several times. lastDeletion then finds the last deletion only if one of its reads of the past
// hits the time before it. If it finds no deletion, it returns at.
func (s settling) lastDeletion(
	ctx context.Context, key *datastore.Key, at time.Time,
) (deleted time.Time, found bool, err error) {
	there, gone := s.from, at.Add(-time.Microsecond)
	was, err := s.at(ctx, key, there)
	if was == nil {
		return at, false, err
	}
	for range maxLooks {
		if deleted, err = s.deletion(ctx, key, there, gone); err != nil {
			return at, false, err
		}
		again, err := s.between(ctx, key, deleted, gone)
		switch {
		case err != nil:
			return at, false, err
		case again.IsZero():
			return deleted, true, nil
		}
		there = again // so it was deleted again after this time
	}
	return deleted, true, nil
}

// deletion returns when an entity was deleted, by a binary search. The parameters are times: at the
// first one, there, the entity existed, and at the second one, gone, it did not exist.
func (s settling) deletion(ctx context.Context, key *datastore.Key, there, gone time.Time) (time.Time, error) {
	for gone.Sub(there) > time.Microsecond {
		middle := there.Add(gone.Sub(there) / 2).Truncate(time.Microsecond)
		was, err := s.at(ctx, key, middle)
		switch {
		case err != nil:
			return gone, err
		case was != nil:
			there = middle
		default:
			gone = middle
		}
	}
	return gone, nil
}

// between returns a time between from and to at which an entity existed. It existed at neither from
// nor to. If none of its reads finds such a time, it returns the zero time. The reads are dense
// near both ends, because other clients are likely to write at the same time as a page. Away from
// the ends, they are wider apart.
func (s settling) between(ctx context.Context, key *datastore.Key, from, to time.Time) (at time.Time, err error) {
	for away := time.Millisecond; away < to.Sub(from); away *= 4 {
		for _, at := range []time.Time{to.Add(-away), from.Add(away)} {
			if was, err := s.at(ctx, key, at); err != nil || was != nil {
				return at, err
			}
		}
	}
	return time.Time{}, nil
}

// lookFurther decides about an entity that was written again after the commit. The parameter then
// is the entity's state after the end of the job.
func (s settling) lookFurther(ctx context.Context, e *entity, then *pb.EntityResult) error {
	next, found, err := s.next(ctx, e, then)
	if found {
		var wrote bool
		if wrote, _, err = s.wrote(ctx, e.key, next); wrote {
			e.passed, err = s.leadsBack(ctx, e, next)
		}
	}
	if err == nil && !e.passed { // the entity may have its state from before the job again
		image, why, failed := s.first(ctx, e.key, s.c.at, e.before)
		err = failed
		e.already = failed == nil && why == "" && same(image, e.now)
	}
	if err != nil && !fault.IsFatal(err) {
		return err
	}
	if e.why = whyChanged; e.now == nil {
		e.why = whyDeleted
	}
	return nil
}

func same(a, b *pb.EntityResult) bool {
	return a == nil && b == nil || a != nil && b != nil && pbvalue.SameEntity(a.Entity, b.Entity)
}

// next returns when an entity was first written after the commit, if this was before the job's end.
// The parameter then is a later state of the entity. next does a binary search between the commit
// and a time at which the entity had this state.
func (s settling) next(ctx context.Context, e *entity, then *pb.EntityResult) (at time.Time, found bool, err error) {
	left := func(is *pb.EntityResult) bool { // whether a state is the one that the commit left
		return e.deleted && is == nil || is.GetVersion() == s.c.version
	}
	if left(then) {
		return at, false, nil
	}
	from, to, jumped := s.c.at, s.until, false
	if then != nil {
		to, jumped = timeOf(then), true
	}
	for range maxLooks {
		if to.Sub(from) <= time.Microsecond {
			return to, true, nil
		}
		middle := from.Add(to.Sub(from) / 2).Truncate(time.Microsecond)
		if jumped { // look just before the write at to: often this write was the next one
			middle = to.Add(-time.Microsecond)
		}
		jumped = !jumped
		is, err := s.at(ctx, e.key, middle)
		switch {
		case err != nil:
			return at, false, err
		case left(is):
			from = middle
		case is != nil:
			to = timeOf(is)
		default:
			to = middle
		}
	}
	return at, false, nil
}

// leadsBack reports whether following the writes back from a later write, at the time from, arrives
// at this commit. If the commit did not delete the entity, it always does. Otherwise, leadsBack
// checks that the last deletion before from was this commit's.
func (s settling) leadsBack(ctx context.Context, e *entity, from time.Time) (bool, error) {
	if !e.deleted {
		return true, nil
	}
	deleted, _, err := s.lastDeletion(ctx, e.key, from)
	return deleted.Equal(s.c.at), err
}
