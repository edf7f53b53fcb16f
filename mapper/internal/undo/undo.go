package undo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Is reports whether the mapper of this name undoes jobs, or rehearses an undo.
func Is(name string) bool { return record.IsUndo(name) }

// Name returns the name of the mapper that undoes the jobs of a mapper. For the mapper of an undo
// it returns the same name.
func Name(mapper string) string {
	if Is(mapper) {
		return mapper
	}
	return record.UndoPrefix + mapper
}

// PageSize is the default page size of an undo. It is the number of the undone job's pages, each
// with up to 1,000 entities, that one commit of the undo takes back. A commit has at most 10 MiB,
// and the record of the undo's page must have room for these entities' keys.
const PageSize = 4

// Params are the parameters of an undo. They name the undone job.
type Params struct {
	Job         string          `json:"job"`
	Incarnation string          `json:"incarnation"`
	Query       json.RawMessage `json:"query"` // the query of the undone job
	Times       bool            `json:"times,omitempty"`
}

// Of returns the parameters of the undo of job j.
func Of(j *record.Job) Params {
	return Params{j.ID, j.Incarnation, json.RawMessage(j.Query), j.Times}
}

// Records returns the query over which the undo of job j runs. It finds the keys of the records of
// j's ranges.
func Records(j *record.Job) query.Query {
	prefix := record.RangePrefix(j.Ref())
	return query.Query{
		// only keys, because the function reads each record itself, when it needs it
		Kind: record.RangeKind, KeysOnly: true,
		// names end in hexadecimal digits, so all are between these bounds
		Start: datastore.NameKey(record.RangeKind, prefix+"0", nil),
		End:   datastore.NameKey(record.RangeKind, prefix+"g", nil),
	}
}

// Mapper returns the mapper that undoes the jobs of another mapper. The client must be made with
// mapper.ClientOption. most is the largest size of the images in a commit, in bytes. If most is 0,
// it is the constant together.
func Mapper(
	of *function.Definition, client *datastore.Client, log *slog.Logger, most *atomic.Int64,
) *function.Definition {
	return &function.Definition{
		Name: Name(of.Name), Mode: function.Update, Queue: of.Queue,
		Canonical: func(encoded json.RawMessage) (json.RawMessage, error) {
			var params Params
			if err := function.DecodeParams(encoded, &params); err != nil {
				return nil, err
			}
			return function.EncodeParams(params)
		},
		Prepare: func(encoded json.RawMessage, _ bool) (function.Func, error) {
			u := undoer{client: client, source: source.New(client, log), most: cmp.Or(int(most.Load()), together),
				history: newHistory(), undoes: newHistory()}
			if err := function.DecodeParams(encoded, &u.params); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(u.params.Query, &u.query); err != nil {
				return nil, fmt.Errorf("params: query: %w", err)
			}
			u.query.Times = u.params.Times
			return func(ctx context.Context, j function.Job, key *datastore.Key, _ *pb.Entity) (_ *function.Effect,
				err error) {
				defer function.Recovered(&err)
				a := function.NewAttempt(j.Ref, function.Update, key)
				err = a.Run(func() error { return u.page(ctx, a, j, key) })
				// This page's past is gone, but other pages may be younger, so the error must not
				// end the job.
				if fault.IsFatal(err) {
					err = fault.Permanent(err)
				}
				if err != nil {
					return nil, err
				}
				return a.Effect()
			}, nil
		},
	}
}

// Check returns an error if a job can't be undone. This is so if the database returns no versions,
// or no longer serves the state before the job's first commit.
func Check(ctx context.Context, client *datastore.Client, job *record.Job) error {
	u := undoer{client: client, source: source.New(client, nil)}
	r, stored, err := u.record(ctx, record.RangeKey(job.Ref(), job.Root()))
	if err == nil && r.State == record.Done {
		c := commit{at: stored.UpdateTime.AsTime()}
		_, err = u.lookup(ctx, []*datastore.Key{r.Key()}, c.before())
		if fault.IsFatal(err) {
			_, err = u.lookup(ctx, []*datastore.Key{r.Key()}, c.minute())
		}
	}
	if fault.IsPermanent(err) || fault.IsFatal(err) {
		return fmt.Errorf("%w: its first page can't be undone: %w", record.ErrState, err)
	}
	return err
}

// An undoer undoes the pages of a job.
type undoer struct {
	client  *datastore.Client
	source  source.Source
	params  Params
	query   query.Query
	most    int      // the largest size of the images in a commit, in bytes
	history *history // the writes of the undone job
	undoes  *history // the writes of the undo itself
}

// undone returns the ID and incarnation of the undone job.
func (u undoer) undone() record.Ref {
	return record.Ref{ID: u.params.Job, Incarnation: u.params.Incarnation}
}

// Errors for pages of the job that can't be undone.
var (
	errGone       = errors.New("the page's record is gone: its job was cleaned up meanwhile")
	errOld        = errors.New("an older build has done the page, and did not record what it wrote")
	errNoVersions = errors.New("the database does not say which versions entities have")
	errNoTime     = errors.New("the database does not say when an entity was written (Google's Datastore emulator " +
		"never does)")
	errChanged = errors.New("the page's record was changed after its commit, so the time of the commit is not known; " +
		"or the database no longer has the state before it")
)

// page undoes the page whose record has the given key. It takes back everything that the page's
// commits wrote.
func (u undoer) page(ctx context.Context, a *function.Attempt, j function.Job, key *datastore.Key) error {
	r, stored, err := u.record(ctx, key)
	if err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		o := newOutcome(j, r.ID)
		err := u.commits(ctx, o, r, stored)
		switch {
		case err == nil:
			o.ask(a)
			return nil
		case tries == batchAttempts || !errors.Is(err, errMoved):
			return err
		}
	}
}

// commits undoes all commits of a page. These are the page's own commit and, if the undone job is
// an undo itself, the page's batches.
func (u undoer) commits(ctx context.Context, o *outcome, r *record.Range, stored *pb.EntityResult) error {
	all, err := u.batchesOf(ctx, r)
	if err != nil {
		return err
	}
	if r.State == record.Done && r.Failed == "" { // a pending or failed range has written nothing by its own commit
		w, err := undolog.Decode(r.Wrote)
		switch {
		case err != nil:
			return fault.Permanent(err)
		case w == nil:
			return fault.Permanent(errOld)
		}
		all = append(all, commit{version: stored.Version, at: stored.UpdateTime.AsTime(), record: r.Key(), wrote: w})
	}
	for _, c := range all {
		if err := u.undo(ctx, o, r, c); err != nil {
			return err
		}
		if c.wrote.Lost > 0 {
			o.leave(nil, c.wrote.Lost,
				fmt.Sprintf("the page has put or deleted %d other entities that its record had no room for",
					c.wrote.Lost))
		}
	}
	return nil
}

// A commit is a commit of the undone job, by a page or for a batch.
type commit struct {
	version int64
	at      time.Time
	record  *datastore.Key // the key of the record that the commit wrote
	wrote   *undolog.Wrote
}

// before returns the time just before the commit, to the microsecond.
func (c commit) before() time.Time { return c.at.Add(-time.Microsecond) }

// unlike reports whether the commit is only a later change of the page's record: just before it,
// the record was already done.
func (c commit) unlike(before *wire.Results) bool {
	was := before.Of(c.record)
	return was != nil && was.GetEntity().GetProperties()["state"].GetStringValue() != string(record.Pending)
}

// undo undoes a commit. It reads the states just before the commit, or at the last whole minute
// before it if the commit is too old.
func (u undoer) undo(ctx context.Context, o *outcome, r *record.Range, c commit) error {
	all, err := u.undoExactly(ctx, o, r, c)
	if fault.IsFatal(err) {
		all, err = u.undoByMinute(ctx, o, r, c)
	}
	if err != nil {
		return err
	}
	return u.take(ctx, o, all)
}

// whyUnfound is the reason not to restore entities that the job's query no longer found just before
// the commit.
const whyUnfound = "just before its commit, the job's query no longer found %d entities of the page: others had " +
	"changed or deleted them"

// undoExactly decides what happens to the entities that a commit wrote, from their states just
// before the commit. It returns these entities.
func (u undoer) undoExactly(ctx context.Context, o *outcome, r *record.Range, c commit) ([]*entity, error) {
	own, err := u.ownOf(ctx, r, c, c.before())
	if err != nil {
		return nil, err
	}
	keys := append(slices.Clip(own.keys), c.wrote.Others...)
	before, err := u.lookup(ctx, append(slices.Clip(keys), c.record), c.before())
	if err != nil {
		return nil, err
	}
	var asked *wire.Results // states just after the commit, once they are needed
	all, err := u.look(ctx, o, keys, before, c, own, func(key *datastore.Key) (*pb.EntityResult, error) {
		if asked == nil {
			found, err := u.lookup(ctx, keys, c.at)
			if err != nil {
				return nil, err
			}
			asked = found
		}
		return asked.Of(key), nil
	})
	if err != nil {
		return nil, err
	}
	// If the job did not read its entities, they may not have existed, so none can be missing.
	if !u.query.Unread(true) {
		if n := own.unfound(c.wrote); n > 0 {
			o.leave(nil, n, fmt.Sprintf(whyUnfound, n))
		}
	}
	if err := u.lookAgain(ctx, o, c, all); err != nil {
		return nil, err
	}
	if err := settle(ctx, past{u}, u.itself(o), c, all); err != nil {
		return nil, err
	}
	for _, e := range all {
		switch {
		case !e.again || e.why != "":
		case e.becomes == nil:
			e.why = whyTwice
		default:
			e.passed = pbvalue.SameEntity(e.becomes, e.now.Entity)
		}
	}
	return all, nil
}

// record reads the record of a page. It returns the decoded record, and the stored entity with its
// version.
func (u undoer) record(ctx context.Context, key *datastore.Key) (*record.Range, *pb.EntityResult, error) {
	ctx, results := wire.Reading(ctx)
	r := new(record.Range)
	err := property.IgnoreUndeclared(u.client.Get(ctx, key, r))
	stored := results.Of(key)
	switch {
	case errors.Is(err, datastore.ErrNoSuchEntity):
		return nil, nil, fault.Permanent(errGone)
	case err != nil:
		return nil, nil, err
	case stored.GetVersion() == 0:
		return nil, nil, fault.Permanent(errNoVersions)
	case !stored.GetUpdateTime().IsValid():
		return nil, nil, fault.Permanent(errNoTime)
	}
	return r, stored, nil
}

// An entity is one that a commit may have written. It has its states at several times, and the
// undo's decision.
type entity struct {
	key *datastore.Key
	// the entity's states just before the commit, and now; nil: the entity does not exist
	before, now *pb.EntityResult
	deleted     bool             // whether the commit deleted the entity
	changed     bool             // whether the entity was changed after the commit
	shown       *pb.EntityResult // for a deleted entity, a later state in which it existed again
	// whether another page of the undo has restored the entity, so that it exists again
	again bool

	becomes *pb.Entity // the state to restore; nil: the entity is deleted
	why     string     // why the entity is not restored; empty: it is restored
	passed  bool       // whether the entity is left to the undo of another page, which restores or lists it
	already bool       // whether the entity already has its state from before the job
}

// look returns the entities that a commit wrote, with their states before it and now. It omits
// entities that the commit did not change, and entities that an earlier attempt has restored. The
// page's own entities come first. The argument with returns an entity's state just after the
// commit.
func (u undoer) look(
	ctx context.Context, o *outcome, keys []*datastore.Key, before *wire.Results, c commit, own owned,
	with func(*datastore.Key) (*pb.EntityResult, error),
) (all []*entity, err error) {
	if c.unlike(before) {
		return nil, fault.Permanent(errChanged)
	}
	now, err := u.lookup(ctx, keys, time.Time{})
	if err != nil {
		return nil, err
	}
	// This comes after the lookup, so that a batch which commits in between is in both.
	if err := u.readBatches(ctx, o); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(keys))
	for i, key := range keys {
		name := key.Encode()
		if seen[name] || o.done[name] {
			continue
		}
		seen[name] = true
		e := &entity{key: key, before: before.Of(key), now: now.Of(key)}
		var failed error
		does := decide(c.version, e.before, e.now, func() (r *pb.EntityResult) {
			r, failed = with(key)
			e.deleted = r == nil
			return r
		})
		if failed != nil {
			return nil, failed
		}
		if does == nothing {
			if i < len(own.keys) && own.sure(c.wrote) {
				o.already++
			}
			continue
		}
		e.becomes, e.changed = e.before.GetEntity(), does == changed
		all = append(all, e)
	}
	return all, u.lookBetween(ctx, c, all, now.ReadTime())
}

// take adds entities to the outcome, by the undo's decision on each: those to restore as changes,
// and the others as not restored.
func (u undoer) take(ctx context.Context, o *outcome, all []*entity) error {
	for _, e := range all {
		switch {
		case e.already:
			o.already++
		case e.passed || e.why == "" && e.becomes == nil && e.now == nil:
		case e.why != "":
			o.leave(e.key, 1, e.why)
		case e.now == nil && u.history.taken(e.key, o.page, e.becomes):
		case o.changing[e.key.Encode()]: // another commit of the same page already changes it
			o.leave(e.key, 1, whyTwice)
		default:
			o.changing[e.key.Encode()] = true
			o.changes = append(o.changes, change{e.key, e.becomes, e.now.GetVersion()})
		}
	}
	return u.commitApart(ctx, o)
}

// lookup reads entities as of the time at. A zero time means now.
func (u undoer) lookup(ctx context.Context, keys []*datastore.Key, at time.Time) (*wire.Results, error) {
	ctx, results := wire.Reading(ctx)
	get := u.source.Of(ctx, query.Query{ReadTime: at}).Get(ctx)
	for _, space := range bySpace(keys) {
		for some := range slices.Chunk(space, record.MaxPageSize) {
			if _, err := source.Lookup(get, some, source.Into(len(some))); err != nil {
				return nil, err
			}
		}
	}
	return results, nil
}

// bySpace groups keys by namespace, because one lookup can't read several namespaces.
func bySpace(keys []*datastore.Key) map[string][]*datastore.Key {
	all := make(map[string][]*datastore.Key)
	for _, key := range keys {
		all[key.Namespace] = append(all[key.Namespace], key)
	}
	return all
}
