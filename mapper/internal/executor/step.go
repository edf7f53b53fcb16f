package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A step is what a delivery commits: a change of the range's record, and other mutations. The
// method apply commits it.
type step struct {
	// put changes a copy of the range's record, and returns the range's new children. It is called
	// for each attempt.
	put func(r *record.Range) ([]*record.Range, error)

	with   func() []wire.Mutation // returns the other mutations; nil: there are none
	guards func() []page.Guard    // returns the entities that must be unchanged at the commit; nil: there are none
	// again runs the function again on entities that other clients have changed
	again func(ctx context.Context, moved []page.Moved, inTransaction bool) error
	// locks makes apply retry a refused commit in a transaction. It is for databases in which
	// transactions lock the entities that they read.
	locks bool
}

// apply commits a step in one call, on the condition that nobody has changed the range's record or
// the guarded entities since they were read. If somebody has, the database refuses the whole call,
// and does not say what has changed. Then apply reads all of them again, runs the function again on
// changed entities, and retries.
//
// A call can have conditions only for entities that it writes. If the step guards other entities,
// apply reads and commits in a transaction. It also does so if the database returns no versions.
//
// If the answer to a commit is lost, the error can be any. Then the record decides. If it is done
// at a time that this delivery has tried to commit, its own commit took effect. If another delivery
// has done or cut the range, this delivery takes over the record that it finds.
func (d *delivery) apply(ctx context.Context, s step) (standing, error) {
	refused := false
	for idle, tries := 0, 0; ; {
		if refused && s.locks { // wait for a while, because the other client may finish meanwhile
			if tries++; tries > 1 {
				_ = backOff(ctx, tries)
			}
		}
		t := try{d: d, step: s}
		guards, err := t.send(ctx, refused && s.locks)
		if err == nil {
			t.adopt()
			return ours, nil
		}
		found, moved, lookup := d.lookAfter(ctx, err, guards)
		if lookup != nil {
			return ours, lookup
		}
		if found.standing != ours {
			d.takeOver(found)
			return found.standing, nil
		}
		if err := final(err); err != nil {
			return ours, err
		}
		if len(moved) > 0 {
			if err := s.again(ctx, moved, false); err != nil {
				return ours, err
			}
		}
		if refused = true; len(moved) == 0 && !t.moved && d.record.Version == found.record.Version {
			if idle++; idle == store.Attempts {
				return ours, fault.AsCommitRefusal(err)
			}
			_ = backOff(ctx, idle)
		}
		d.record = found.record
	}
}

// lookAfter reads the range's record and the guarded entities after a commit has failed with the
// error failed. It returns what it has found, and the guarded entities that other clients have
// changed. If a transaction has already read the record, lookAfter reads nothing.
func (d *delivery) lookAfter(
	ctx context.Context, failed error, guards []page.Guard,
) (now finding, moved []page.Moved, err error) {
	if fenced := (fencedError{}); errors.As(failed, &fenced) {
		return fenced.finding, nil, nil
	}
	now, moved, err = d.look(source.New(d.x.client, nil).StoredInParts(ctx), guards)
	if err != nil {
		err = fmt.Errorf("%w, after a commit that has failed: %s", err, failed.Error())
	}
	return now, moved, err
}

// change commits a change of only the range's record. f changes the record, and returns the range's
// new children.
func (d *delivery) change(ctx context.Context, f func(r *record.Range) ([]*record.Range, error)) (standing, error) {
	return d.apply(ctx, step{put: f})
}

// conflicts reports whether a commit was refused because of other clients: they have changed or
// locked the same entities.
func conflicts(err error) bool {
	switch status.Code(err) {
	case codes.Aborted, codes.FailedPrecondition, codes.AlreadyExists, codes.NotFound:
		return true
	}
	return fault.Contended(err)
}

// backOff waits before the n-th retry after a conflict. The database does not say how long to wait.
// The wait is a random time between half of a limit and the limit, as in the client library. The
// limit is 10 ms, doubled n times, but at most a second. If the context ends meanwhile, the
// caller's retry fails.
func backOff(ctx context.Context, n int) error {
	most := min(10*time.Millisecond<<n, time.Second)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(most/2 + rand.N(most/2)):
		return nil
	}
}

// A try is one attempt to commit a step. A retry makes a new one.
type try struct {
	d *delivery
	step

	record   *record.Range // the changed record, which the try writes
	children []*record.Range
	versions *wire.Versions // the versions that the commit has returned
	moved    bool           // whether a guarded entity was changed by another client
}

// A finalError is a try's error that is no refusal by the database. A retry would not help.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// guarded returns the entities that must be unchanged at the commit. If all is false, it returns
// only those that the step does not write, because their condition can't be part of a mutation.
func (t *try) guarded(all bool) (guards []page.Guard) {
	if t.guards != nil {
		guards = t.guards()
	}
	if !all {
		guards = slices.DeleteFunc(guards, func(g page.Guard) bool { return !g.Free })
	}
	return guards
}

// send commits the step. It uses one call if mutations can carry all conditions: each requires the
// version with which its entity was read. If not, or if the parameter locks is true, it uses a
// transaction that first reads the entities. It returns the entities that the caller must read
// again if the commit fails. There are none if the transaction has read all.
func (t *try) send(ctx context.Context, locks bool) (guards []page.Guard, err error) {
	guards = t.guarded(true)
	unversioned := func(g page.Guard) bool { return g.Was.Version == 0 && !g.Was.Gone }
	switch {
	case t.d.record.Version == 0 || locks || slices.ContainsFunc(guards, unversioned):
		return nil, t.inTransaction(ctx, true)
	case slices.ContainsFunc(guards, func(g page.Guard) bool { return g.Free }):
		err = t.inTransaction(ctx, false)
		return t.guarded(true), err
	}
	known := t.d.record.Version
	all, err := t.prepare(t.d.record)
	if err != nil {
		return guards, err
	}
	all[len(all)-1].Version = known
	t.versions, err = wire.Commit(ctx, t.d.x.client, all)
	return guards, err
}

// ofRead returns the error of a read in a transaction. It is final unless other clients caused it.
// It is no refusal, because no entity is at fault.
func ofRead(err error) error {
	if conflicts(err) {
		return err
	}
	return finalError{err}
}

// final returns the error of a failed try if a retry would not help. If other clients caused the
// failure, it returns nil.
func final(err error) error {
	if e := (finalError{}); errors.As(err, &e) {
		return e.error
	}
	if conflicts(err) {
		return nil
	}
	return fault.AsCommitRefusal(err)
}

// prepare applies the step to a copy of the record, and returns the mutations of the commit. The
// mutation of the record comes last, after its new children's mutations. adopt and send rely on
// this order.
func (t *try) prepare(r *record.Range) (all []wire.Mutation, err error) {
	t.record = r.Clone()
	if t.children, err = t.put(t.record); err != nil {
		return nil, finalError{err}
	}
	if t.with != nil {
		all = t.with()
	}
	for _, child := range t.children {
		all = append(all, wire.Mutation{Mutation: child.Insert()})
	}
	return append(all, wire.Mutation{Mutation: t.record.Update()}), nil
}

// inTransaction commits the step in a transaction. The transaction reads the range's record and
// guarded entities: all of these, or only those that the step does not write. If other clients have
// changed some of them, it first runs the function on these again.
//
// The database checks that everything that the transaction has read is unchanged at the commit. So
// if the transaction reads all, the mutations need no conditions.
func (t *try) inTransaction(ctx context.Context, all bool) error {
	noting, versions := wire.Noting(ctx)
	t.versions = versions
	_, err := t.d.x.client.RunInTransaction(noting, func(tx *datastore.Transaction) error {
		now, moved, err := t.d.look(source.InTransaction(tx, &versions.Taken), t.guarded(all))
		for now.standing == ours && len(moved) > 0 { // after an error, both are zero
			t.moved = true
			if err := t.again(ctx, moved, true); err != nil {
				return finalError{err}
			}
			// the function may have read other entities in this run
			now, moved, err = t.d.look(source.InTransaction(tx, &versions.Taken), t.guarded(all))
		}
		if err != nil {
			return ofRead(err)
		}
		if now.standing != ours {
			return fencedError{now}
		}
		mutations, err := t.prepare(now.record)
		if err != nil {
			return err
		}
		for i := range mutations {
			if all {
				mutations[i].Version = 0
			}
		}
		versions.Send(mutations)
		_, err = tx.Mutate(wire.Put(mutations)...)
		return err
	}, datastore.MaxAttempts(1))
	return err
}

// adopt makes the committed record the delivery's record. It stores the versions that the commit
// has returned, in the record and in the new children.
func (t *try) adopt() {
	t.d.record, t.record.Version = t.record, t.versions.Last(1)
	for i, child := range t.children {
		child.Version = t.versions.Last(1 + len(t.children) - i)
	}
}

// look reads, with get, the range's record and the guarded entities. It returns the record with its
// standing, and the entities that other clients have changed.
func (d *delivery) look(get source.Get, guards []page.Guard) (_ finding, moved []page.Moved, err error) {
	r := new(record.Range)
	keys := []*datastore.Key{d.record.Key()}
	places := make(map[string]int, len(guards))
	for _, g := range guards {
		if name := g.Key.Encode(); places[name] == 0 {
			places[name] = len(keys)
			keys = append(keys, g.Key)
		}
	}
	found := make([]wire.Stamp, 0, len(keys))
	for some := range slices.Chunk(keys, record.MaxPageSize) {
		var records []any
		if len(found) == 0 {
			records = []any{r}
		}
		stamps, err := get(some, records...)
		if err != nil {
			return finding{}, nil, err
		}
		found = append(found, stamps...)
	}
	r.Version = found[0].Version
	for _, g := range guards {
		if now := found[places[g.Key.Encode()]]; !g.Was.Same(now) {
			moved = append(moved, page.Moved{Guard: g, Now: now})
		}
	}
	return finding{d.check(r), r}, moved, nil // the record is empty if it was deleted
}

// errHot is the failure of an entity that other clients have changed or locked in each attempt.
var errHot = errors.New("other clients change the entity, or hold its lock, all the time: in no attempt was it left " +
	"alone from its read to the commit")

// hot returns errHot. If the function's last call for the only entity of a page has failed, the
// text has its error, too. It is not wrapped, because it may be of a state that never existed, and
// so it must not be permanent.
func hot(o *page.Results) error {
	if len(o.Failures) == 0 {
		return errHot
	}
	return fmt.Errorf("%w; the function's last call failed: %s", errHot, fault.Text(o.Failures[0].Err))
}
