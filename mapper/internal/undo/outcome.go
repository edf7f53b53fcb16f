package undo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A change is what an entity becomes: an image, or nothing, if it has a version still; 0: if it is
// not there.
type change struct {
	key     *datastore.Key
	image   *pb.Entity
	version int64
}

func (c change) size() int { return proto.Size(c.image) + keyspace.KeySize(c.key) }

// An outcome is what an attempt on a page comes to.
type outcome struct {
	job  function.Job
	page string // the ID of its range

	changing          map[string]bool // what changes, by key
	changes           []change        // which take effect with the commit of the page
	restored, removed int64           // by batches, of this attempt and of those before it
	batches           map[string]bool // by their names: they are counted
	done              map[string]bool // what is in them, by key

	left []undolog.Left
	kept int64 // as many entities are left
}

// leave notes that n entities stay as they are.
func (o *outcome) leave(key *datastore.Key, n int64, why string) {
	o.left = append(o.left, undolog.Left{Key: key, Why: why})
	o.kept += n
}

// ask asks for all that takes effect with the commit of the page.
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
	for name, n := range map[string]int64{"restored": restored, "removed": removed, "left": o.kept} {
		if n > 0 {
			a.Count(name, n)
		}
	}
}

// smaller returns an image for a rehearsal, which writes nothing, and counts what it would: nil
// stays nil.
func smaller(image *pb.Entity) *pb.Entity {
	if image == nil {
		return nil
	}
	return &pb.Entity{Key: image.Key}
}

// together is how many bytes of images the commit of a page of the undo takes, well below the 10
// MiB that one can have.
const together = 4 << 20

// batchAttempts is how often a page is looked at anew whose batch met another commit.
const batchAttempts = 3

// maxBatch is how many entities a batch has at most.
const maxBatch = 500

// errMoved says that a batch was not committed, perhaps, as an entity has changed since it was
// looked at.
var errMoved = errors.New("an entity was changed while its page was undone")

// commitApart commits changes that the commit of the page can't hold before it, in batches.
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

// commitBatch commits a batch: unless an entity has changed, or the job has ended meanwhile, whose
// own undo may have begun.
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
	case errors.Is(err, datastore.ErrConcurrentTransaction):
		return fmt.Errorf("%w: %w", errMoved, err)
	case err != nil:
		return err
	}
	o.count(key, batch, keys)
	return nil
}

// count counts a batch that has taken effect, once.
func (o *outcome) count(key *datastore.Key, b *record.Batch, keys []*datastore.Key) {
	if o.batches[key.Name] {
		return
	}
	o.batches[key.Name] = true
	o.restored, o.removed = o.restored+b.Restored, o.removed+b.Removed
	for _, key := range keys {
		o.done[key.Encode()] = true
	}
}

// readBatches takes over the batches that attempts on the page have committed. One that commits
// later changes an entity that was looked at before: so of its changes and those of this attempt
// one takes effect.
func (u undoer) readBatches(ctx context.Context, o *outcome) error {
	if o.job.Rehearses {
		return nil
	}
	q := store.Batches(o.job.Ref, o.page, o.page+"g") // the name goes on with a dot
	return store.EachBatch(ctx, store.New(u.client), q, func(key *datastore.Key, b *record.Batch) error {
		w, err := undolog.Decode(b.Wrote)
		if err != nil {
			return fault.Permanent(err)
		}
		o.count(key, b, w.Others)
		return nil
	})
}

// batchesOf returns the batches of pages of an undo, as the commits that they are. Those of the
// pages that a range of that undo is over are found with it, whatever became of it, as a page may
// have failed or was abandoned behind them; its children for single entities have none.
func (u undoer) batchesOf(ctx context.Context, r *record.Range) (all []commit, err error) {
	if u.query.Kind != record.RangeKind || r.Alone {
		return nil, nil
	}
	prefix := u.query.Start.Name[:len(u.query.Start.Name)-1] // see Records
	from, to := pageNames(prefix, r.Start, ""), pageNames(prefix, r.End, "g")
	if from >= to {
		return nil, nil
	}
	ctx, results := wire.Reading(ctx)
	err = store.EachBatch(ctx, store.New(u.client), store.Batches(u.undone(), from, to),
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

// pageNames returns where a boundary of an undo's range is among the names of the pages that the
// undo is over, which follow the prefix. A nil boundary is at the default. A range that was cut at
// the middle of the key space may end outside all of them.
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
