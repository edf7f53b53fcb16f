package undo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Is reports whether a mapper of that name undoes jobs, or is a rehearsal of that.
func Is(name string) bool { return record.IsUndo(name) }

// Name returns the name of the mapper that undoes the jobs of another one. What one of those has done it undoes itself.
func Name(mapper string) string {
	if Is(mapper) {
		return mapper
	}
	return record.UndoPrefix + mapper
}

// ID returns the ID that the undo of a job has by default: "undo-" and that of the job; or, if another job has that, or one that was
// aborted, with a part of the incarnation behind it, or a number.
func ID(ctx context.Context, st store.Store, job *record.Job, params json.RawMessage) (string, error) {
	const prefix, most, tries = "undo-", 100, 20
	id := prefix + job.ID
	if len(id) > most-24 {
		h := sha256.Sum256([]byte(job.ID))
		id = id[:most-24-9] + "-" + hex.EncodeToString(h[:4])
	}
	for n := range tries {
		some := id
		if n > 0 {
			some = fmt.Sprintf("%s-%s-%d", id, job.Incarnation[:8], n)
		}
		other, err := st.LoadJob(ctx, record.Ref{ID: some})
		switch {
		case errors.Is(err, record.ErrNoSuchJob):
			return some, nil
		case err != nil:
			return "", err
		case other.Mapper == Name(job.Mapper) && bytes.Equal(other.Params, params) && other.State != record.Aborted:
			return some, nil
		}
	}
	return "", fmt.Errorf("%w: %d jobs have the IDs that its undo might have: give it another one", record.ErrState, tries)
}

// PageSize is how many pages of up to 1,000 entities one of an undo takes back, by default: its commit has at most 10 MiB, and its record
// room for their keys.
const PageSize = 4

// Params say which job is undone.
type Params struct {
	Job         string          `json:"job"`
	Incarnation string          `json:"incarnation"`
	Query       json.RawMessage `json:"query"` // of that job
	Times       bool            `json:"times,omitempty"`
}

// Of returns the parameters of the undo of a job.
func Of(j *record.Job) Params {
	return Params{j.ID, j.Incarnation, json.RawMessage(j.Query), j.Times}
}

// Records returns the query that the undo of a job is over: of the records of its ranges.
func Records(j *record.Job) query.Query {
	prefix := record.RangePrefix(j.Ref())
	return query.Query{
		Kind: record.RangeKind, KeysOnly: true, // the function reads a record when it needs it
		Start: datastore.NameKey(record.RangeKind, prefix+"0", nil), End: datastore.NameKey(record.RangeKind, prefix+"g", nil), // hexadecimal digits are between
	}
}

// Mapper returns the mapper that undoes the jobs of another one, with a client that notes versions.
func Mapper(of *function.Definition, client *datastore.Client, log *slog.Logger) *function.Definition {
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
			u := undoer{client: client, source: source.New(client, log)}
			if err := function.DecodeParams(encoded, &u.params); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(u.params.Query, &u.query); err != nil {
				return nil, fmt.Errorf("params: query: %w", err)
			}
			u.query.Times = u.params.Times
			return func(ctx context.Context, j function.Job, key *datastore.Key, _ []datastore.Property) (_ *function.Effect, err error) {
				defer function.Recovered(&err)
				a := function.NewAttempt(j.Ref, function.Update, key)
				err = a.Run(func() error { return u.page(ctx, a, key, j.Rehearses) })
				if fault.IsFatal(err) { // of this page: others may be younger
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

// Check returns an error if a job can't be undone: because the client notes no versions, or the database does not serve any more what was
// there when the job's first page was committed.
func Check(ctx context.Context, client *datastore.Client, job *record.Job) error {
	u := undoer{client: client, source: source.New(client, nil)}
	r, stored, err := u.record(ctx, record.RangeKey(job.Ref(), job.Root()))
	if err == nil && r.State == record.Done {
		c := commit{at: stored.UpdateTime.AsTime()}
		_, err = u.lookup(ctx, []*datastore.Key{r.Key()}, c.before())
		if fault.IsFatal(err) && time.Since(c.at) > exactly {
			_, err = u.lookup(ctx, []*datastore.Key{r.Key()}, c.minute())
		}
	}
	if fault.IsPermanent(err) || fault.IsFatal(err) {
		return fmt.Errorf("%w: of the job's first page: %w", record.ErrState, err)
	}
	return err
}

// An undoer undoes pages of a job.
type undoer struct {
	client *datastore.Client
	source source.Source
	params Params
	query  query.Query
}

// Errors of pages that can't be undone.
var (
	errGone       = errors.New("the page's record is gone: its job was cleaned up meanwhile")
	errOld        = errors.New("an older build has done the page, and has not recorded what it wrote")
	errNoVersions = errors.New("the client of the engine was made without mapper.WithVersions")
	errNoTime     = errors.New("the database does not say when an entity was written, as Google's Datastore emulator does not")
	errChanged    = errors.New("the page's record was changed since its commit, so that is not known, or the database does not serve what was there before")
)

// page undoes the page of a range.
func (u undoer) page(ctx context.Context, a *function.Attempt, key *datastore.Key, rehearses bool) error {
	r, stored, err := u.record(ctx, key)
	if err != nil {
		return err
	}
	if r.State != record.Done || r.Failed != "" {
		return nil // nothing was written
	}
	w, err := record.DecodeWrote(r.Wrote)
	switch {
	case err != nil:
		return fault.Permanent(err)
	case w == nil:
		return fault.Permanent(errOld)
	}
	c := commit{version: stored.Version, at: stored.UpdateTime.AsTime(), page: key, wrote: w}
	if err := u.undo(ctx, a, r, c, rehearses); err != nil {
		return err
	}
	if w.Lost > 0 {
		a.Leave(nil, fmt.Sprintf("the page has put or deleted %d other entities that its record had no room for", w.Lost))
		a.Count("left", w.Lost)
	}
	return nil
}

// A commit is that of a page.
type commit struct {
	version int64
	at      time.Time
	page    *datastore.Key // of its record
	wrote   *record.Wrote
}

// before returns the last time at which nothing of it was there.
func (c commit) before() time.Time { return c.at.Add(-time.Microsecond) }

// undo undoes a commit: from what was there just before it, or if it is too old for that, a whole minute before.
func (u undoer) undo(ctx context.Context, a *function.Attempt, r *record.Range, c commit, rehearses bool) error {
	keys, err := u.own(ctx, r, c, c.before())
	if fault.IsFatal(err) && time.Since(c.at) > exactly {
		return u.undoByMinute(ctx, a, r, c, rehearses)
	}
	if err != nil {
		return err
	}
	keys = append(keys, c.wrote.Others...)
	before, err := u.lookup(ctx, append(slices.Clip(keys), c.page), c.before())
	if fault.IsFatal(err) && time.Since(c.at) > exactly {
		return u.undoByMinute(ctx, a, r, c, rehearses)
	}
	if err != nil {
		return err
	}
	var asked *wire.Results // as the commit has left them
	return u.entities(ctx, a, keys, before, c, rehearses, func(key *datastore.Key) (*pb.EntityResult, error) {
		if asked == nil {
			found, err := u.lookup(ctx, keys, c.at)
			if err != nil {
				return nil, err
			}
			asked = found
		}
		return asked.Of(key), nil
	})
}

// record reads the record of a page.
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

// own returns the keys of what the page of a range has written of its own entities, which are found by the job's query, as it was at a time.
func (u undoer) own(ctx context.Context, r *record.Range, c commit, at time.Time) (keys []*datastore.Key, err error) {
	switch {
	case !c.wrote.Own.Any():
		return nil, nil
	case r.Alone:
		return []*datastore.Key{r.Start.Key}, nil
	}
	q := u.query
	if q.Many() && r.Kind != "" {
		q = q.In(r.Space())
	}
	q.KeysOnly, q.ReadTime = true, at
	stream := source.NewStream(ctx, u.source.Of(ctx, q), q, r.Start, r.End, false)
	defer stream.Close()
	found, err := stream.Peek(math.MaxInt)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(keyspace.Keys(found), func(key *datastore.Key) bool { return !c.wrote.Own.Has(key) }), nil
}

// entities restores those entities that have been left alone since a commit, of which it is known what was before it. With returns what an
// entity was as the commit has left it.
func (u undoer) entities(ctx context.Context, a *function.Attempt, keys []*datastore.Key, before *wire.Results, c commit, rehearses bool, with func(*datastore.Key) (*pb.EntityResult, error)) error {
	if state := before.Of(c.page).GetEntity().GetProperties()["state"]; state.GetStringValue() == record.Done {
		return fault.Permanent(errChanged)
	}
	now, err := u.lookup(ctx, keys, time.Time{})
	if err != nil {
		return err
	}
	var changes []change
	for _, key := range keys {
		was, is := before.Of(key), now.Of(key)
		var failed error
		does := decide(c.version, was, is, func() (r *pb.EntityResult) {
			r, failed = with(key)
			return r
		})
		if failed != nil {
			return failed
		}
		switch does {
		case restore:
			changes = append(changes, change{key, was.Entity, is.GetVersion()})
			a.Count("restored", 1)
		case remove:
			changes = append(changes, change{key, nil, is.Version})
			a.Count("removed", 1)
		case leave:
			why := "it was changed since"
			if is == nil {
				why = "it was deleted since"
			}
			a.Leave(key, why)
			a.Count("left", 1)
		}
	}
	return u.change(ctx, a, changes, rehearses)
}

// A change is what an entity becomes: an image, or nothing, if it has a version still; 0: if it is not there.
type change struct {
	key     *datastore.Key
	image   *pb.Entity
	version int64
}

// together is how many bytes of images the commit of a page of the undo takes, well below the 10 MiB that one can have.
const together = 4 << 20

// change has changes take effect with the commit of the page. What that can't hold takes effect before it: should the page be tried again
// after that, these entities are what they were already.
func (u undoer) change(ctx context.Context, a *function.Attempt, changes []change, rehearses bool) error {
	size := 0
	for _, c := range changes {
		size += proto.Size(c.image) + keyspace.KeySize(c.key)
	}
	for !rehearses && size > together {
		var some []wire.Mutation
		bytes := 0
		for len(changes) > 0 && (len(some) == 0 || bytes+proto.Size(changes[0].image) < together/2) && len(some) < 500 {
			c := changes[0]
			bytes += proto.Size(c.image) + keyspace.KeySize(c.key)
			some, changes = append(some, wire.Mutation{Mutation: function.Restoring(c.key, c.image, c.version), Condition: wire.Condition{Version: c.version, Writes: c.image}}), changes[1:]
		}
		if _, err := wire.Commit(ctx, u.client, some); err != nil {
			return fmt.Errorf("restore a part of a page: %w", err)
		}
		a.Apart(len(some))
		size -= bytes
	}
	for _, c := range changes {
		if rehearses {
			c.image = smaller(c.image)
		}
		a.Restore(c.key, c.image, c.version)
	}
	return nil
}

// smaller returns an image for a rehearsal, which writes nothing, and counts what it would: nil stays nil.
func smaller(image *pb.Entity) *pb.Entity {
	if image == nil {
		return nil
	}
	return &pb.Entity{Key: image.Key}
}

// lookup reads entities as they were at a time; as they are, if that is zero.
func (u undoer) lookup(ctx context.Context, keys []*datastore.Key, at time.Time) (*wire.Results, error) {
	ctx, results := wire.Reading(ctx)
	get := u.source.Of(ctx, query.Query{ReadTime: at}).Get(ctx)
	for _, space := range bySpace(keys) {
		for some := range slices.Chunk(space, record.MaxPageSize) {
			if _, err := source.Lookup(get, some, source.Into(make([]datastore.PropertyList, len(some)))); err != nil {
				return nil, err
			}
		}
	}
	return results, nil
}

// bySpace groups keys by their namespaces: a lookup has one.
func bySpace(keys []*datastore.Key) map[string][]*datastore.Key {
	all := make(map[string][]*datastore.Key)
	for _, key := range keys {
		all[key.Namespace] = append(all[key.Namespace], key)
	}
	return all
}
