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
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Several pages of a job may write one entity. The entity's state just before the last of these
// pages is another page's result, and must not be restored. So an undo follows the entity's writes
// back: from the last page that wrote it, through earlier pages of the job, to the state before the
// first of them.
//
// The undo of the last page that wrote the entity restores that state. The undo of an earlier page
// skips the entity. Another client may have written the entity between two pages of the job. Then
// the undo of the later page restores this client's state, and the undo of the earlier page lists
// the entity as not restored.
//
// The time of a write shows who made it. A page's commit also ends its range: the range is open
// just before the commit, and not after it. So only ranges that ended at that time can be the
// writer. Each of their records says which entities its page wrote. Datastore serves states of the
// last hour at any microsecond.

// Reasons why an undo does not restore an entity.
const (
	whyChanged = "it was changed after the job wrote it"
	whyDeleted = "it was deleted after the job wrote it"
	whyUnkept  = "it was changed while the job ran, perhaps by another page of the job: that can't be found out, " +
		"as after an hour only whole minutes are kept"
	whyTwice = "another page of the job had deleted it, too, and that page's undo has restored it"
	whyOpen  = "it was changed while the job ran, perhaps by another page of the job: that can't be found out, " +
		"as too many ranges were open then"
)

const (
	maxWrites = 1000 // the largest number of writes of one entity by the job that are followed back
	maxOpen   = 5000 // the largest number of ranges that may have been open when an entity was written
	maxLooks  = 100  // the largest number of reads of an entity's past to find one write
)

// whyOften is the reason not to restore an entity that was written by more than maxWrites pages.
var whyOften = fmt.Sprintf("more than %d pages of the job wrote it, one after the other: the undo does not search "+
	"further back", maxWrites)

// A history caches when a job has written, so that its past is read only once. The job is the
// undone one, or the undo itself.
type history struct {
	turn *semaphore.Weighted // guards the fields up to closers
	job  *record.Job         // the job whose writes these are
	// when the job's record was created, by the database's clock: the clocks of processes may be
	// wrong
	begun   time.Time
	ended   time.Time // shortly before the job ended, by the database's clock; zero: not looked for
	closers map[time.Time]*closers

	mu       sync.Mutex           // guards restores
	restores map[string]restoring // the latest restores of entities, by the entity's key
}

func newHistory() *history {
	return &history{turn: semaphore.NewWeighted(1), closers: make(map[time.Time]*closers),
		restores: make(map[string]restoring)}
}

// A past reads Datastore's past states to find out when the job has written an entity.
type past struct{ undoer }

// A restoring is the decision of one page's undo to restore an entity, and the state that it gets.
type restoring struct {
	page  string
	image *pb.Entity
}

// taken reports whether the undo of another page already restores the entity to the same state, in
// the same delivery. This happens if several pages have deleted the entity, and it is unknown which
// was the last. The undo of each page would restore it, but a commit may write it only once.
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

// A closers has the ranges of a job whose pages committed at the same time.
type closers struct {
	turn *semaphore.Weighted
	read bool
	all  []closer
	why  string // why the ranges are unknown; empty: they are known
}

// A closer is a range whose page committed at a certain time, with its present record.
type closer struct {
	*record.Range
	at    time.Time // when the record was last changed
	wrote *undolog.Wrote
}

// load returns the record of the job, and when it was created. It reads the record from the
// database once.
func (u past) load(ctx context.Context) (job *record.Job, begun time.Time, err error) {
	h := u.history
	if err := h.turn.Acquire(ctx, 1); err != nil {
		return nil, begun, err
	}
	defer h.turn.Release(1)
	if h.job == nil {
		reading, results := wire.Reading(ctx)
		job, err := store.New(u.client).LoadJob(reading, u.undone())
		if errors.Is(err, record.ErrNoSuchJob) {
			return nil, begun, fault.Permanent(errGone)
		}
		if err != nil {
			return nil, begun, err
		}
		created := results.Of(record.JobKey(job.ID)).GetCreateTime()
		if !created.IsValid() {
			return nil, begun, fault.Permanent(errNoTime)
		}
		h.job, h.begun = job, created.AsTime()
	}
	return h.job, h.begun, nil
}

// beforeJob reports whether a time is before all commits of the job.
func (u past) beforeJob(ctx context.Context, t time.Time) (bool, error) {
	_, begun, err := u.load(ctx)
	return !t.After(begun), err
}

func timeOf(e *pb.EntityResult) time.Time { return e.GetUpdateTime().AsTime() }

// at returns the state of an entity at a time. A zero time means now.
func (u past) at(ctx context.Context, key *datastore.Key, at time.Time) (*pb.EntityResult, error) {
	found, err := u.lookup(ctx, []*datastore.Key{key}, at)
	if err != nil {
		return nil, err
	}
	return found.Of(key), nil
}

// wrote reports whether the job has written an entity at the time at. If this is unknown, why is
// the reason.
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

// closersOf returns the ranges whose pages committed at the time at. The first caller reads them
// from the database, and later callers get the same result.
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

// closedAt reads the ranges whose pages committed at the time at. If this is not possible, why is
// the reason.
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

// openAt returns the record keys of the ranges that were open at the time at. It returns at most
// maxOpen+1.
func (u past) openAt(ctx context.Context, at time.Time) ([]*datastore.Key, error) {
	q := store.Marked("open", u.undone(), "").KeysOnly().Limit(maxOpen + 1)
	q, err := u.source.Of(ctx, query.Query{ReadTime: at}).At.Query(q)
	if err != nil {
		return nil, err
	}
	return u.client.GetAll(ctx, q, nil)
}

// has reports whether the range's page wrote an entity. The page committed at the time at. If it is
// unknown, has returns true: then the undo may leave the entity, but does not restore a wrong
// state.
func (c closer) has(key *datastore.Key, at time.Time, sharded bool) bool {
	switch {
	case !c.at.Equal(at): // the record was changed later, so it is unknown what the page wrote
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
	return c.wrote.Own.Has(key) && (sharded || c.Contains(&keyspace.Position{Key: key}))
}
