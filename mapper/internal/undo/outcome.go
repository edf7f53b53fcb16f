package undo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A change restores an entity: the entity gets the state image, or is deleted if image is nil. The
// change takes effect only if the entity still has the given version. Version 0 means that the
// entity must not exist.
type change struct {
	key     *datastore.Key
	image   *pb.Entity
	version int64
}

func (c change) size() int { return proto.Size(c.image) + keyspace.KeySize(c.key) }

// An outcome is the result of one attempt to undo a page: what it restores, and what it does not
// restore.
type outcome struct {
	job  function.Job
	page string // the ID of the range whose page is undone

	changing map[string]bool // keys of the entities in changes
	changes  []change        // changes for the final commit of the attempt
	// numbers of entities that batches have restored and removed, in this attempt and earlier
	// attempts
	restored, removed int64
	batches           map[string]bool  // the names of the batches that are included in the numbers
	batched           []*datastore.Key // keys of the entities in these batches
	done              map[string]bool  // the same keys, encoded

	left []undolog.Left // entities that are not restored, each with the reason
	kept int64          // number of entities that are not restored
	// number of entities without anything to restore: they already have their state from before the
	// job, or the page's write did not change them
	already int64
}

func newOutcome(j function.Job, page string) *outcome {
	return &outcome{job: j, page: page, batches: make(map[string]bool), done: make(map[string]bool),
		changing: make(map[string]bool)}
}

// leave adds n entities that are not restored, for the reason why. key is nil if it is unknown, or
// for several entities.
func (o *outcome) leave(key *datastore.Key, n int64, why string) {
	o.left = append(o.left, undolog.Left{Key: key, Why: why})
	o.kept += n
}

// ask passes the outcome to the job's framework: the changes to commit, and the list of entities
// that are not restored.
func (o *outcome) ask(a *function.Attempt) {
	restored, removed := o.restored, o.removed
	for _, c := range o.changes {
		if c.image == nil {
			removed++
		} else {
			restored++
		}
		if o.job.Rehearses {
			c.image = smaller(c.image)
		}
		a.Restore(c.key, c.image, c.version)
	}
	for _, l := range o.left {
		a.Leave(l.Key, l.Why)
	}
	for name, n := range map[string]int64{
		"restored": restored, "removed": removed, "left": o.kept, "already": o.already,
	} {
		if n > 0 {
			a.Count(name, n)
		}
	}
}

// smaller returns an image without its properties. A rehearsal only counts writes, so it does not
// need the properties. For nil it returns nil.
func smaller(image *pb.Entity) *pb.Entity {
	if image == nil {
		return nil
	}
	return &pb.Entity{Key: image.Key}
}

// together is the largest size of the images in the final commit of an undo's page, in bytes. A
// commit may have 10 MiB.
const together = 4 << 20

// batchAttempts is the largest number of attempts to undo a page, if one of its batches conflicts
// with another commit.
const batchAttempts = 3

// maxBatch is the largest number of entities in a batch.
const maxBatch = 500

// errMoved says that a batch was not committed, because one of its entities has changed since it
// was read.
var errMoved = errors.New("an entity was changed while its page was undone")

// commitApart commits some changes in batches, until the remaining changes fit in the final commit
// of the undo's page.
func (u undoer) commitApart(ctx context.Context, o *outcome) error {
	size := 0
	for _, c := range o.changes {
		size += c.size()
	}
	for !o.job.Rehearses && size > u.most {
		n, bytes, keys := 0, 0, 0
		for _, c := range o.changes {
			if n > 0 && (bytes+c.size() > u.most/2 || keys+keyspace.KeySize(c.key) > record.MaxBatchKeys ||
				n == maxBatch) {
				break
			}
			n, bytes, keys = n+1, bytes+c.size(), keys+keyspace.KeySize(c.key)
		}
		if err := u.commitBatch(ctx, o, o.changes[:n]); err != nil {
			return fmt.Errorf("restore a part of a page: %w", err)
		}
		o.changes, size = o.changes[n:], size-bytes
	}
	return nil
}

// commitBatch commits one batch of changes. It returns an error if one of the entities has changed.
// It also returns an error if the undo has ended, because another job may already undo the undo.
// Nor does it commit if another delivery has ended the undo's range, because that delivery may have
// listed the entities as not restored.
func (u undoer) commitBatch(ctx context.Context, o *outcome, some []change) error {
	keys := make([]*datastore.Key, len(some))
	var restored, removed int64
	for i, c := range some {
		keys[i] = c.key
		if c.image == nil {
			removed++
		} else {
			restored++
		}
	}
	key, batch := record.NewBatch(o.job.Ref, o.page, keys, restored, removed)
	noting, versions := wire.Noting(ctx)
	_, err := u.client.RunInTransaction(noting, func(tx *datastore.Transaction) error {
		job, err := store.GetJob(tx, o.job.Ref)
		if err != nil {
			return err
		}
		if !job.Unfinished() {
			return fmt.Errorf("%w: the undo is %s", record.ErrState, job.State)
		}
		if err := pending(tx, o.job.Range); err != nil {
			return err
		}
		all := make([]wire.Mutation, 0, len(some)+1)
		for _, c := range some {
			m := wire.Mutation{Condition: wire.Condition{Version: c.version, Writes: c.image}}
			if c.image == nil {
				m.Deletes = c.key
			} else {
				m.Mutation = function.Restoring(c.key, c.image, c.version)
			}
			all = append(all, m)
		}
		all = append(all, wire.Mutation{Mutation: datastore.NewInsert(key, batch)})
		versions.Send(all)
		return store.Write(tx, wire.Put(all)...)
	}, datastore.MaxAttempts(1))
	switch {
	case errors.Is(err, datastore.ErrConcurrentTransaction), status.Code(err) == codes.FailedPrecondition:
		return fmt.Errorf("%w: %w", errMoved, err)
	case err != nil:
		return err
	}
	o.count(key, batch, keys)
	return nil
}

// pending returns an error unless the range with this key is pending. A nil key stands for no
// range, and is no error.
func pending(tx *datastore.Transaction, key *datastore.Key) error {
	if key == nil {
		return nil
	}
	var r record.Range
	if err := property.IgnoreUndeclared(tx.Get(key, &r)); err != nil {
		return fmt.Errorf("the undo's range: %w", err)
	}
	if r.State != record.Pending {
		return fmt.Errorf("%w: the undo's range is %s", record.ErrState, r.State)
	}
	return nil
}

// count adds the numbers of a committed batch to the outcome, unless they are already included.
func (o *outcome) count(key *datastore.Key, b *record.Batch, keys []*datastore.Key) {
	if o.batches[key.Name] {
		return
	}
	o.batches[key.Name] = true
	o.restored, o.removed = o.restored+b.Restored, o.removed+b.Removed
	o.batched = append(o.batched, keys...)
	for _, key := range keys {
		o.done[key.Encode()] = true
	}
}

// readBatches adds the numbers of batches that earlier attempts on the page have committed. If an
// earlier attempt still commits a batch later, the batch changes an entity that this attempt has
// read. So only one of them takes effect: the batch, or this attempt's change.
func (u undoer) readBatches(ctx context.Context, o *outcome) error {
	if o.job.Rehearses {
		return nil
	}
	q := store.Batches(o.job.Ref, o.page, o.page+"g") // in a batch's name, a dot follows the page's ID
	return store.New(u.client).EachBatch(ctx, q, func(key *datastore.Key, b *record.Batch) error {
		w, err := undolog.Decode(b.Wrote)
		if err != nil {
			return fault.Permanent(err)
		}
		o.count(key, b, w.Others)
		return nil
	})
}

// batchesOf returns the batches that a range of an undone undo has committed, as commits. For a job
// that is no undo, it returns none. The range r covers pages, and each may have batches. The state
// of r does not matter: batches may be committed although the page then failed or was abandoned.
// Ranges of single entities have no batches.
func (u undoer) batchesOf(ctx context.Context, r *record.Range) (all []commit, err error) {
	if u.query.Kind != record.RangeKind || r.Alone {
		return nil, nil
	}
	prefix := u.query.Start.Name[:len(u.query.Start.Name)-1] // without the "0" that Records appends
	from, to := pageNames(prefix, r.Start, ""), pageNames(prefix, r.End, "g")
	ctx, results := wire.Reading(ctx)
	err = store.New(u.client).EachBatch(ctx, store.Batches(u.undone(), from, to),
		func(key *datastore.Key, b *record.Batch) error {
			w, err := undolog.Decode(b.Wrote)
			stored := results.Of(key)
			switch {
			case err != nil:
				return fault.Permanent(err)
			case w == nil:
				return fault.Permanent(errOld)
			case stored.GetVersion() == 0:
				return fault.Permanent(errNoVersions)
			}
			all = append(all, commit{version: stored.Version, at: stored.UpdateTime.AsTime(), record: key, wrote: w})
			return nil
		})
	return slices.Clip(all), err
}

// pageNames returns the page ID at which an undo's range starts or ends. The undo's range is over
// range records, whose names are the prefix and an ID. If at is nil, the result is byDefault. at
// may be outside of the job's records, if a range was cut at a key without a record. Then the
// result is a text below or above all IDs.
func pageNames(prefix string, at *keyspace.Position, byDefault string) string {
	if at == nil {
		return byDefault
	}
	name, ok := strings.CutPrefix(at.Key.Name, prefix)
	switch {
	case ok:
		return name
	case at.Key.Name < prefix:
		return "0"
	}
	return "g"
}
