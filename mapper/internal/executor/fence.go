package executor

import (
	"context"
	"errors"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A standing is how a range stands to a delivery of its task.
type standing int

const (
	ours       standing = iota // as the delivery knows it; of a transaction: it has taken effect, unless there is an error
	changed                    // pending, but it, or its job, has changed: it has to be planned anew
	done                       // another delivery has done it, or this one, and the answer was lost
	superseded                 // it has another task, or is gone
	stopped                    // its job does not run any more
)

// A claim is a range in the hands of a delivery.
type claim struct {
	client *datastore.Client
	store  store.Store

	job        *record.Job
	record     *record.Range  // as the delivery knows it; transactions read it anew
	generation int64          // that the task names
	finished   []time.Time    // when its commits have done the range, if they took effect
	beaten     bool           // another delivery has done the range meanwhile
	versions   *wire.Versions // of the transaction under way
}

// check returns how a record of the range, as it was just read, stands to the delivery. The range is its
// own only if it is still pending, at the generation that the task names, and as it was when the delivery
// looked at it.
func (c *claim) check(r *record.Range) standing {
	known := c.record
	switch {
	case r.State == record.Done:
		return done
	case r.State != record.Pending || r.Generation != c.generation:
		return superseded
	case r.Cut != known.Cut || r.Children != known.Children:
		return changed
	}
	return ours
}

// A fencedError ends a transaction on a range that is not the delivery's own, or not as it knows it.
type fencedError struct {
	standing standing
	found    *record.Range
}

func (fencedError) Error() string { return "the range is not as this delivery knows it" }

// fence returns an error if a record that a transaction has read is not the delivery's own.
func (c *claim) fence(r *record.Range) error {
	if s := c.check(r); s != ours {
		return fencedError{s, r}
	}
	return nil
}

// get reads the record of the range in a transaction, and returns an error if it is not the delivery's own.
func (c *claim) get(tx *datastore.Transaction, r *record.Range) error {
	err := property.IgnoreUndeclared(tx.Get(c.record.Key(), r))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return fencedError{standing: superseded} // the job's records were deleted
	}
	if err != nil {
		return err
	}
	return c.fence(r)
}

// transact runs a transaction on the range, which writes its record and those of new children last. A commit whose
// answer was lost shows as any error; what the record says since counts. A range that was found done, or cut by
// another delivery, is what the claim knows from then on.
func (c *claim) transact(ctx context.Context, attempts int, f func(*datastore.Transaction) (*record.Range, []*record.Range, error)) (standing, error) {
	var r *record.Range
	var children []*record.Range
	noting, versions := wire.Noting(ctx)
	c.versions = versions
	_, err := c.client.RunInTransaction(noting, func(tx *datastore.Transaction) (err error) {
		versions.Anew()
		if r, children, err = f(tx); err != nil {
			return err
		}
		_, err = tx.Mutate(mutationsOf(r, children)...)
		return err
	}, datastore.MaxAttempts(attempts))
	if err == nil {
		c.committed(r, children, versions)
		return ours, nil
	}
	var fenced fencedError
	if !errors.As(err, &fenced) {
		r, lookup := c.store.LoadRange(ctx, c.job.Ref(), c.record.ID)
		if lookup != nil {
			return ours, err
		}
		if fenced = (fencedError{c.check(r), r}); fenced.standing == ours {
			return ours, err
		}
	}
	if fenced.standing == done || fenced.standing == changed {
		c.record = fenced.found
	}
	c.beaten = fenced.standing == done && !slices.ContainsFunc(c.finished, c.record.Done.Equal)
	return fenced.standing, nil
}

// mutationsOf returns what writes a range's record, and before that those of its new children.
func mutationsOf(r *record.Range, children []*record.Range) []*datastore.Mutation {
	all := make([]*datastore.Mutation, 0, len(children)+1)
	for _, child := range children {
		all = append(all, child.Insert())
	}
	return append(all, r.Update())
}

// committed takes over what was committed, with the versions of what was written last.
func (c *claim) committed(r *record.Range, children []*record.Range, versions *wire.Versions) {
	c.record, r.Version = r, versions.Last(1)
	for i, child := range children {
		child.Version = versions.Last(1 + len(children) - i)
	}
}

// change changes the range, and returns its new children: in one call, if nobody has changed it since it was read,
// and otherwise in a transaction of its own.
func (c *claim) change(ctx context.Context, f func(r *record.Range) ([]*record.Range, error)) (standing, error) {
	return c.changeWith(ctx, new(function.Effect), f)
}

// changeWith is change, together with what else is to be written.
func (c *claim) changeWith(ctx context.Context, with *function.Effect, f func(r *record.Range) ([]*record.Range, error)) (standing, error) {
	known := make([]wire.Mutation, len(with.Mutations))
	for i, m := range with.Mutations {
		known[i] = wire.Mutation{Mutation: m.Mutation, Condition: m.On}
	}
	if c.changeKnown(ctx, known, f) {
		return ours, nil
	}
	return c.transact(ctx, store.Attempts, func(tx *datastore.Transaction) (*record.Range, []*record.Range, error) {
		r := new(record.Range)
		if err := c.get(tx, r); err != nil {
			return nil, nil, err
		}
		if err := store.Mutate(tx, c.versions, with); err != nil {
			return nil, nil, fault.Permanent(err)
		}
		children, err := f(r)
		return r, children, err
	})
}

// changeKnown changes the range as it was read, together with what else is to be written, and reports whether that has
// taken place: not if somebody has changed one of them since. If it has not, or the answer was lost, a transaction
// tells how the range stands.
func (c *claim) changeKnown(ctx context.Context, with []wire.Mutation, f func(r *record.Range) ([]*record.Range, error)) (changed bool) {
	if c.record.Version == 0 {
		return false
	}
	r := c.record.Clone()
	children, err := f(r)
	if err != nil {
		return false
	}
	all := slices.Clip(with)
	for _, m := range mutationsOf(r, children) {
		all = append(all, wire.Mutation{Mutation: m})
	}
	all[len(all)-1].Version = c.record.Version
	versions, err := wire.Commit(ctx, c.client, all)
	if err != nil {
		c.record.Version = 0
		return false
	}
	c.committed(r, children, versions)
	return true
}
