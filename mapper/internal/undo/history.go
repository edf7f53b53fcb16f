package undo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// Several pages of a job may write one entity. What was there just before the last of them is then
// what another one has written, and no state to go back to. So an undo follows the writes of an
// entity: back from the page that wrote it last, through those of the job, to what was there before
// the first. That page restores it. A page after which another one of the job wrote it leaves it to
// that one. Where somebody else wrote it in between, the undo of the later pages goes back to his
// state, and that of the earlier ones lists it.
//
// Whose a write was, its time tells. A page's commit also writes the record of its range, which is
// open just before it, and not with it: so the records that were closed at that moment are
// candidates, and what one keeps of its page says whether it wrote the entity. The states of an
// hour ago and less can be read at any microsecond.

// Reasons why an entity stays as it is. Pages of the job may have changed it, too.
const (
	whyChanged = "it was changed after the page wrote it"
	whyDeleted = "it was deleted after the page wrote it"
	whyUnkept  = "it was changed while the job ran, perhaps by another of its pages, which is not known any more: " +
		"more than an hour ago only whole minutes are kept"
	whyTwice = "another page of the job had deleted it, too, and the undo of that has restored it"
	whyOpen  = "it was changed while the job ran, perhaps by another of its pages: too many ranges were open then " +
		"to find out"
)

const (
	maxWrites = 1000 // pages of the job that wrote an entity one after the other
	maxOpen   = 5000 // ranges that were open when an entity was written
	maxLooks  = 100  // at the past of an entity, to find one write
)

// whyOften is for an entity that more than maxWrites pages wrote.
var whyOften = fmt.Sprintf("more than %d pages of the job wrote it, one after the other: what was there before the "+
	"first is not looked for", maxWrites)

// skew is by how much the clocks of a process and of the database may differ.
const skew = 2 * time.Minute

// A history is what is known of when a job wrote.
type history struct {
	turn *semaphore.Weighted // of who uses the rest, and may read it
	job  *record.Job         // that is undone
	// when it was recorded, by the database's clock, or a little earlier; zero: not asked yet
	begun   time.Time
	kept    bool // what was there then can be read
	closers map[time.Time]*closers

	mu       sync.Mutex
	restores map[string]restoring // by key
}

func newHistory() *history {
	return &history{turn: semaphore.NewWeighted(1), closers: make(map[time.Time]*closers),
		restores: make(map[string]restoring)}
}

// A past is what is asked of when the job wrote.
type past struct{ undoer }

// A restoring is a page that has something be there again.
type restoring struct {
	page  string
	image *pb.Entity
}

// taken reports whether the undo of another page, in this delivery, has an entity be the same
// again, which several have deleted and which is not there: nothing tells which of them was the
// last, and one commit writes it once.
func (h *history) taken(key *datastore.Key, page string, image *pb.Entity) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	other, ok := h.restores[key.Encode()]
	if ok && other.page != page {
		return pbvalue.SameEntity(other.image, image)
	}
	h.restores[key.Encode()] = restoring{page, image}
	return false
}

// closers are the records of ranges that were closed at a time.
type closers struct {
	turn *semaphore.Weighted
	read bool
	all  []closer
	why  string // they are not known
}

// A closer is the record of a range as it is.
type closer struct {
	*record.Range
	at    time.Time // of its last change
	wrote *undolog.Wrote
}

// load reads the record of the job.
func (u past) load(ctx context.Context) (*record.Job, error) {
	h := u.history
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer h.turn.Release(1)
	if h.job == nil {
		job, err := store.New(u.client).LoadJob(ctx, u.undone())
		if errors.Is(err, record.ErrNoSuchJob) {
			return nil, fault.Permanent(errGone)
		}
		if err != nil {
			return nil, err
		}
		h.job = job
	}
	return h.job, nil
}

// beforeJob reports whether a time is before all that the job has written.
func (u past) beforeJob(ctx context.Context, t time.Time) (bool, error) {
	job, err := u.load(ctx)
	if err != nil {
		return false, err
	}
	if !t.After(job.Created.Add(-skew)) {
		return true, nil
	}
	begun, err := u.begun(ctx, job)
	return !t.After(begun), err
}

// begun returns when the job was recorded: it follows the record of its root back to its first
// write. If that can't be read any more it is the time by the clock of the process that started the
// job, less what that may be wrong by.
func (u past) begun(ctx context.Context, job *record.Job) (time.Time, error) {
	h := u.history
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return time.Time{}, err
	}
	defer h.turn.Release(1)
	if !h.begun.IsZero() {
		return h.begun, nil
	}
	root, at := record.RangeKey(job.Ref(), job.Root()), time.Time{} // as it is
	begun := job.Created.Add(-skew)
	for range maxLooks {
		stored, err := u.at(ctx, root, at)
		if fault.IsFatal(err) {
			break
		}
		if err != nil {
			return begun, err
		}
		if stored == nil {
			if !at.IsZero() {
				begun, h.kept = at.Add(time.Microsecond), true
			}
			break
		}
		at = timeOf(stored).Add(-time.Microsecond)
	}
	h.begun = begun
	return begun, nil
}

// timeOf returns when an entity was written.
func timeOf(e *pb.EntityResult) time.Time { return e.GetUpdateTime().AsTime() }

// at returns an entity as it was at a time, or as it is if that is zero.
func (u past) at(ctx context.Context, key *datastore.Key, at time.Time) (*pb.EntityResult, error) {
	found, err := u.lookup(ctx, []*datastore.Key{key}, at)
	if err != nil {
		return nil, err
	}
	return found.Of(key), nil
}

// wrote reports whether the job has written an entity at a time. If that is not known it says why.
func (u past) wrote(ctx context.Context, key *datastore.Key, at time.Time) (wrote bool, why string, err error) {
	if before, err := u.beforeJob(ctx, at); err != nil || before {
		return false, "", err
	}
	c, err := u.closersOf(ctx, at)
	if err != nil {
		return false, "", err
	}
	for _, r := range c.all {
		if r.has(key, at, u.query.ShardBy != "") {
			return true, "", nil
		}
	}
	return false, c.why, nil
}

// closersOf returns the records of the job's ranges that were closed at a time. Whoever asks for
// them first reads them, for all.
func (u past) closersOf(ctx context.Context, at time.Time) (*closers, error) {
	h := u.history
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	c := h.closers[at]
	if c == nil {
		c = &closers{turn: semaphore.NewWeighted(1)}
		h.closers[at] = c
	}
	h.turn.Release(1)
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.turn.Release(1)
	if c.read {
		return c, nil
	}
	all, why, err := u.closedAt(ctx, at)
	if err == nil {
		c.all, c.why, c.read = all, why, true
	}
	return c, err
}

// closedAt returns the records of the job's ranges that were closed at a time.
func (u past) closedAt(ctx context.Context, at time.Time) (all []closer, why string, err error) {
	before, err := u.openAt(ctx, at.Add(-time.Microsecond))
	var with []*datastore.Key
	if err == nil {
		with, err = u.openAt(ctx, at)
	}
	switch {
	case fault.IsFatal(err):
		return nil, whyUnkept, nil
	case err != nil:
		return nil, "", fmt.Errorf("look for ranges that were open: %w", err)
	}
	if len(before) > maxOpen || len(with) > maxOpen {
		return nil, whyOpen, nil
	}
	still := make(map[string]bool, len(with))
	for _, key := range with {
		still[key.Name] = true
	}
	for _, key := range before {
		if still[key.Name] {
			continue
		}
		r, stored, err := u.record(ctx, key)
		if err != nil {
			return nil, "", err
		}
		w, err := undolog.Decode(r.Wrote)
		if err != nil {
			return nil, "", fault.Permanent(err)
		}
		all = append(all, closer{r, timeOf(stored), w})
	}
	return all, "", nil
}

// openAt returns the keys of the ranges that were open at a time, up to one more than maxOpen.
func (u past) openAt(ctx context.Context, at time.Time) ([]*datastore.Key, error) {
	q := store.Marked("open", u.undone(), "").KeysOnly().Limit(maxOpen + 1)
	q, err := u.source.Of(ctx, query.Query{ReadTime: at}).At.Query(q)
	if err != nil {
		return nil, err
	}
	return u.client.GetAll(ctx, q, nil)
}

// has reports whether the commit that closed a range at a time has written an entity.
func (c closer) has(key *datastore.Key, at time.Time, sharded bool) bool {
	switch {
	case !c.at.Equal(at): // another program has changed the record: better no state of another page than one
		return true
	case c.State != record.Done || c.Failed != "":
		return false
	case c.wrote == nil || c.wrote.Lost > 0:
		return true
	}
	for _, other := range c.wrote.Others {
		if other.Equal(key) {
			return true
		}
	}
	return c.wrote.Own.Any() && c.wrote.Own.Has(key) && (sharded || c.Contains(&keyspace.Position{Key: key}))
}
