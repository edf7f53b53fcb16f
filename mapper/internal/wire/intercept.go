package wire

import (
	"context"
	"sync"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Versions collects the stamps of the results of queries, in order: each entity's version and
// time of write. After a commit it has the stamps of the commit's mutations instead. Only the
// goroutine that makes the calls may use it.
type Versions struct {
	Of []Stamp

	takes bool  // whether to keep the entities of queries, and to give the client only their keys
	Taken Taken // the entities of lookups that the caller wants to keep

	sends []Mutation // the mutations that the next commit sends; nil: the client's own
	alone bool       // whether the commit is not part of a transaction
	sent  bool       // whether a request was replaced already
}

// A Stamp is an entity as it was read, with its version and the time when it was last written.
type Stamp struct {
	Version int64 // the version; 0: unknown
	At      int64 // time of the last write, in microseconds after 1970; 0: unknown

	Entity *pb.Entity // the entity; nil: it was not read, or does not exist
	Gone   bool       // whether the entity does not exist
}

// stampOf returns the stamp of the result r, with the entity e.
func stampOf(r *pb.EntityResult, e *pb.Entity) Stamp {
	s := Stamp{Version: r.GetVersion(), Entity: e}
	if t := r.GetUpdateTime(); t.IsValid() {
		s.At = t.AsTime().UnixMicro()
	}
	return s
}

// Same reports whether the entity is unchanged in the later stamp now. It compares the versions. If
// the database returns no versions, it compares the contents.
func (s Stamp) Same(now Stamp) bool {
	switch {
	case s.Gone != now.Gone:
		return false
	case s.Gone:
		return true
	case s.Version != 0 && now.Version != 0:
		return s.Version == now.Version
	}
	return s.Entity != nil && pbvalue.SameEntity(s.Entity, now.Entity)
}

// Noting returns a context and a Versions. Calls with this context record the versions of entities
// in it.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return intercept.With(ctx, v), v
}

// Taking does the same as [Noting], but the Versions also keeps the entities that queries return.
// The client gets only their keys, and so does not spend time on converting properties.
func Taking(ctx context.Context) (context.Context, *Versions) {
	ctx, v := Noting(ctx)
	v.takes = true
	return ctx, v
}

// Answer records the stamps in an answer of the database, and moves the wanted entities out of it.
// The interceptor calls it.
func (v *Versions) Answer(resp any) {
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		for _, r := range resp.GetBatch().GetEntityResults() {
			var e *pb.Entity
			if v.takes {
				e = take(r)
			}
			v.Of = append(v.Of, stampOf(r, e))
		}
	case *pb.LookupResponse:
		v.Taken.Answer(resp)
	case *pb.CommitResponse:
		v.Of = v.Of[:0]
		for _, r := range resp.MutationResults {
			v.Of = append(v.Of, Stamp{Version: r.Version})
		}
		v.narrow(resp)
	}
}

// narrow reduces a commit's answer to the results of the mutations that the Go client was given,
// because the client expects one result for each.
func (v *Versions) narrow(resp *pb.CommitResponse) {
	if len(v.sends) != len(resp.MutationResults) {
		return
	}
	var given []*pb.MutationResult
	for i, m := range v.sends {
		if m.Deletes == nil {
			given = append(given, resp.MutationResults[i])
		}
	}
	resp.MutationResults = given
}

// take returns the entity of a result. In the result, it leaves an entity with only the key.
func take(r *pb.EntityResult) *pb.Entity {
	e := r.GetEntity()
	if e.Properties == nil { // so that a stamp's entity always has properties
		e.Properties = make(map[string]*pb.Value)
	}
	r.Entity = &pb.Entity{Key: e.Key}
	return e
}

// Last returns the new version of the n-th last mutation of the last commit; Last(1) is for the
// last one. The version 0 means unknown.
func (v *Versions) Last(n int) int64 {
	if n < 1 || n > len(v.Of) {
		return 0
	}
	return v.Of[len(v.Of)-n].Version
}

// A Taken keeps the entities that lookups find and the caller wants. The client gets only their
// keys. Several goroutines may look up the same entities.
type Taken struct {
	mu  sync.Mutex
	all map[string]*taken // the wanted entities, by key
}

type taken struct {
	wanted int  // number of callers that have not taken the entity yet
	stays  bool // whether the client gets the entity, and only the version is kept
	stamp  Stamp
}

// TakenBy returns a context and a Taken. The Taken keeps the entities that lookups with this
// context find, if [Taken.Want] has named them.
func TakenBy(ctx context.Context) (context.Context, *Taken) {
	t := new(Taken)
	return intercept.With(ctx, t), t
}

// Want makes the Taken keep the entities with these keys that the next lookups find. The Go client
// then gets only their keys. For the first stay keys, the client gets the entities, and the Taken
// keeps only their versions. Call [Taken.Take] after the lookup.
func (t *Taken) Want(keys []*datastore.Key, stay int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[string]*taken, len(keys))
	}
	for i, key := range keys {
		text := pbkey.Text(key)
		if t.all[text] == nil {
			t.all[text] = &taken{stays: i < stay, stamp: Stamp{Gone: true}}
		}
		t.all[text].wanted++
	}
}

// Take returns the stamps of the entities with these keys, in the same order. Call it once for each
// call of [Taken.Want] with these keys: the last call removes the stamps from the Taken.
func (t *Taken) Take(keys []*datastore.Key) []Stamp {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamps := make([]Stamp, len(keys))
	for i, key := range keys {
		text := pbkey.Text(key)
		found := t.all[text]
		if found == nil {
			continue
		}
		stamps[i] = found.stamp
		if found.wanted--; found.wanted == 0 {
			delete(t.all, text)
		}
	}
	return stamps
}

// Request does nothing. The interceptor's interface needs it.
func (t *Taken) Request(any) error { return nil }

// Refused returns the error unchanged.
func (t *Taken) Refused(err error) error { return err }

// Answer moves the wanted entities out of an answer of the database. The interceptor calls it.
func (t *Taken) Answer(resp any) {
	lookup, _ := resp.(*pb.LookupResponse)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range lookup.GetFound() {
		found := t.all[pbkey.TextOf(r.GetEntity().GetKey())]
		if found == nil {
			continue
		}
		var e *pb.Entity
		if !found.stays {
			e = take(r)
		}
		found.stamp = stampOf(r, e)
	}
}

// A Results collects the entities that queries and lookups return, as protocol messages.
type Results struct {
	mu  sync.Mutex
	all map[string]*pb.EntityResult // the results, by key
}

// Reading returns a context and a Results. Queries and lookups with this context record their
// results in it.
func Reading(ctx context.Context) (context.Context, *Results) {
	r := &Results{all: make(map[string]*pb.EntityResult)}
	return intercept.With(ctx, r), r
}

// Request does nothing. The interceptor's interface needs it.
func (r *Results) Request(any) error { return nil }

// Refused returns the error unchanged.
func (r *Results) Refused(err error) error { return err }

// Answer records the entities in an answer of the database. The interceptor calls it.
func (r *Results) Answer(resp any) {
	var results []*pb.EntityResult
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		results = resp.GetBatch().GetEntityResults()
	case *pb.LookupResponse:
		results = resp.GetFound()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, result := range results {
		r.all[pbkey.TextOf(result.GetEntity().GetKey())] = result
	}
}

// Of returns the result that was read for a key, or nil if none was.
func (r *Results) Of(key *datastore.Key) *pb.EntityResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[pbkey.Text(key)]
}
