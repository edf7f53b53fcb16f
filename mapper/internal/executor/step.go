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

// A step is what one commit of a delivery does to its range, and beside that.
type step struct {
	// put changes the range's record as it is, and returns its new children. It is called for each
	// attempt.
	put func(r *record.Range) ([]*record.Range, error)

	with   func() []wire.Mutation                    // is what else is written; nil: nothing
	guards func() []page.Guard                       // is what has to be as it was read; nil: nothing
	again  func(context.Context, []page.Moved) error // prepares anew what others have changed
	// once it was refused it looks in a transaction, whose database may have locks
	locks bool
}

// apply commits a step in one call, on the condition that the range's record and what the step
// guards are as they were read. The database refuses it as a whole where they are not, and does not
// say which: so they are looked up, what others have changed is prepared again, and the rest stays
// as it is. What the step guards and does not write has no condition in such a call: then a
// transaction looks, and commits. So it is where the database says no versions.
//
// A commit whose answer was lost shows as any error; what the record says since counts. A range
// that was found done, or cut by another delivery, is what the claim knows from then on.
func (d *delivery) apply(ctx context.Context, s step) (standing, error) {
	refused := false
	for idle, tries := 0, 0; ; {
		if refused && s.locks { // another client that is in the way may be done then
			if tries++; tries > 1 {
				if err := rest(ctx, tries); err != nil {
					return ours, err
				}
			}
		}
		t := try{d: d, step: s}
		guards, err := t.send(ctx, refused && s.locks)
		if err == nil {
			d.adopt(t.record, t.children, t.versions)
			return ours, nil
		}
		stands, moved, lookup := d.found(ctx, err, guards)
		if lookup != nil {
			return ours, lookup
		}
		if stands.standing != ours {
			d.lose(stands)
			return stands.standing, nil
		}
		if err := t.final(err); err != nil {
			return ours, err
		}
		if len(moved) > 0 {
			if err := s.again(ctx, moved); err != nil {
				return ours, err
			}
		}
		if refused = true; len(moved) == 0 && !t.moved && d.record.Version == stands.found.Version {
			if idle++; idle == store.Attempts {
				return ours, fault.AsCommitRefusal(err)
			}
			if err := rest(ctx, idle); err != nil {
				return ours, err
			}
		}
		d.record = stands.found
	}
}

// found reads the records again after a failed commit. It returns how the range stands to this
// delivery, and which guarded entities others have changed.
func (d *delivery) found(
	ctx context.Context, failed error, guards []page.Guard,
) (stands fencedError, moved []page.Moved, err error) {
	if errors.As(failed, &stands) { // a transaction has looked
		return stands, nil, nil
	}
	stands, moved, err = d.look(source.New(d.x.client, nil).Stored(ctx), guards)
	if err != nil {
		err = fmt.Errorf("%w, after a commit that has failed: %s", err, failed.Error())
	}
	return stands, moved, err
}

// lose notes that another delivery has done or changed the range.
func (d *delivery) lose(stands fencedError) {
	if stands.standing == done || stands.standing == changed {
		d.record = stands.found
		d.turn.beaten = stands.standing == done && !slices.ContainsFunc(d.turn.finished, d.record.Done.Equal)
	}
}

// change changes the range, and returns its new children.
func (d *delivery) change(ctx context.Context, f func(r *record.Range) ([]*record.Range, error)) (standing, error) {
	return d.apply(ctx, step{put: f})
}

// unversioned reports whether the database has not said which version of a guarded entity was read.
func unversioned(g page.Guard) bool { return g.Was.Version == 0 && !g.Was.Gone }

// unwritten reports whether nothing is written of a guarded entity, whose condition would say how
// it has to be.
func unwritten(g page.Guard) bool { return g.Free }

// conflicts reports whether a commit was refused because of what others have done, or do.
func conflicts(err error) bool {
	switch status.Code(err) {
	case codes.Aborted, codes.FailedPrecondition, codes.AlreadyExists, codes.NotFound:
		return true
	}
	return errors.Is(err, datastore.ErrConcurrentTransaction) || fault.Contended(err)
}

// rest waits before an attempt that meets others, which do not say for how long: the client's own
// pauses are like that.
func rest(ctx context.Context, n int) error {
	most := min(10*time.Millisecond<<n, time.Second)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(most/2 + rand.N(most/2)):
		return nil
	}
}

// A try is one of committing a step.
type try struct {
	d *delivery
	step

	record     *record.Range // as it is to be
	children   []*record.Range
	versions   *wire.Versions // of what was written
	moved      bool           // others had changed something
	unprepared bool           // preparing it has failed
	unread     bool           // looking has failed
}

// guarded returns which entities of some choice are guarded.
func (t *try) guarded(which func(page.Guard) bool) (guards []page.Guard) {
	if t.guards == nil {
		return nil
	}
	for _, g := range t.guards() {
		if which(g) {
			guards = append(guards, g)
		}
	}
	return guards
}

// send commits the step: in one call if versions guard all of it, and otherwise in a transaction,
// which reads first. It returns the guarded entities that the transaction has not read.
func (t *try) send(ctx context.Context, locks bool) (guards []page.Guard, err error) {
	every := func(page.Guard) bool { return true }
	guards = t.guarded(every)
	all := t.d.record.Version == 0 || locks || slices.ContainsFunc(guards, unversioned)
	switch {
	case all:
		return nil, t.inTransaction(ctx, all, every)
	case slices.ContainsFunc(guards, unwritten):
		err = t.inTransaction(ctx, all, unwritten)
		return t.guarded(every), err
	}
	return guards, t.inOneCall(ctx)
}

// final returns the error if another try would only repeat it. It returns nil if other clients were
// in the way.
func (t *try) final(err error) error {
	switch {
	case t.unprepared:
		return err
	case conflicts(err):
		return nil
	case t.unread:
		return err // nobody's entity is to blame
	}
	return fault.AsCommitRefusal(err)
}

// prepare puts the step into a record, and returns what is written.
func (t *try) prepare(r *record.Range) (all []wire.Mutation, err error) {
	t.record = r.Clone()
	if t.children, err = t.put(t.record); err != nil {
		t.unprepared = true
		return nil, err
	}
	if t.with != nil {
		all = t.with()
	}
	return append(all, mutationsOf(t.record, t.children)...), nil
}

// inOneCall commits the step by the versions that were read.
func (t *try) inOneCall(ctx context.Context) error {
	known := t.d.record.Version
	all, err := t.prepare(t.d.record)
	if err != nil {
		return err
	}
	all[len(all)-1].Version = known
	t.versions, err = wire.Commit(ctx, t.d.x.client, all)
	return err
}

// inTransaction looks at what is guarded, or at a choice of that, has what others have changed be
// prepared again, and commits. If that is all, what is written has no condition any more.
func (t *try) inTransaction(ctx context.Context, all bool, which func(page.Guard) bool) error {
	noting, versions := wire.Noting(ctx)
	t.versions = versions
	_, err := t.d.x.client.RunInTransaction(noting, func(tx *datastore.Transaction) error {
		stands, moved, err := t.d.look(source.InTransaction(tx, &versions.Taken), t.guarded(which))
		for err == nil && stands.standing == ours && len(moved) > 0 {
			t.moved = true
			if err := t.again(ctx, moved); err != nil {
				t.unprepared = true
				return err
			}
			// it may rely on others now
			stands, moved, err = t.d.look(source.InTransaction(tx, &versions.Taken), t.guarded(which))
		}
		if t.unread = err != nil; t.unread {
			return err
		}
		if stands.standing != ours {
			return stands
		}
		mutations, err := t.prepare(stands.found)
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

// look reads the range's record, and what is guarded. It returns how the range stands to the
// delivery, and what others have changed.
func (d *delivery) look(get source.Get, guards []page.Guard) (stands fencedError, moved []page.Moved, err error) {
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
			return stands, nil, err
		}
		found = append(found, stamps...)
	}
	if found[0].Gone {
		return fencedError{standing: superseded}, nil, nil // the job's records were deleted
	}
	r.Version = found[0].Version
	for _, g := range guards {
		if now := found[places[g.Key.Encode()]]; !g.Was.Same(now) {
			moved = append(moved, page.Moved{Guard: g, Now: now})
		}
	}
	return fencedError{d.check(r), r}, moved, nil
}

// errHot is the failure of an entity that others have changed in all attempts.
var errHot = errors.New("other clients change the entity, or hold its lock, all the time: in no attempt was it left " +
	"alone from its read to the commit")
