package wire

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Versions collects the stamps of the entities that queries return, in their order. A stamp is
// the entity's version and the time when it was written. After a commit, it has the stamps of the
// commit's mutations instead. A Versions may be used by only one goroutine.
type Versions struct {
	Of []Stamp

	// takes says whether the Versions keeps the entities of queries, and the client gets only their
	// keys.
	takes bool
	Taken Taken // the entities of lookups that the caller wants to keep

	sends []Mutation // the mutations that the next commit sends; nil: the mutations of the client
	alone bool       // whether the commit is not part of a transaction
	sent  bool       // whether these mutations were already put into a request
}

// A Stamp is an entity as it was read, with its version and the time when it was last written.
type Stamp struct {
	Version int64 // the version; 0: unknown
	At      int64 // time of the last write, in microseconds after 1970; 0: unknown

	Entity *pb.Entity // the entity; nil: it was not read, or does not exist
	Gone   bool       // whether the entity does not exist
}

// stampOf returns the stamp of the query result r, with the entity e. The entity may be nil.
func stampOf(r *pb.EntityResult, e *pb.Entity) Stamp {
	s := Stamp{Version: r.GetVersion(), Entity: e}
	if t := r.GetUpdateTime(); t.IsValid() {
		s.At = t.AsTime().UnixMicro()
	}
	return s
}

// Same reports whether the entity is unchanged between the stamp s and the later stamp now. It
// compares the versions. If the database returns no versions, it compares the contents.
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

// Noting returns a context and a new Versions. Calls of the database with this context record the
// versions of entities in the Versions.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return intercept.With(ctx, v), v
}

// Taking does the same as [Noting], but the Versions also keeps the entities that queries return.
// The client gets only their keys, which saves the time to convert properties.
func Taking(ctx context.Context) (context.Context, *Versions) {
	ctx, v := Noting(ctx)
	v.takes = true
	return ctx, v
}

// Answer records the [Stamp] of each entity in a response of the database. If v was made by
// [Taking], Answer also moves the entities of a query out of the response into v. The interceptor
// calls it for each response.
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

// narrow removes the results of deletions that the Go client was not given ([Mutation.Deletes])
// from a commit's answer. The client expects exactly one result for each of its own mutations.
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

// take returns the entity of a query result, and removes all of it except the key from the result.
func take(r *pb.EntityResult) *pb.Entity {
	e := r.GetEntity()
	if e.Properties == nil { // a stamp's entity always has a map, so it differs from none
		e.Properties = make(map[string]*pb.Value)
	}
	r.Entity = &pb.Entity{Key: e.Key}
	return e
}

// Last returns the new version of the n-th mutation from the end of the last commit; Last(1) is the
// last mutation's. It returns 0 if the version is unknown.
func (v *Versions) Last(n int) int64 {
	if n < 1 || n > len(v.Of) {
		return 0
	}
	return v.Of[len(v.Of)-n].Version
}

// A Taken keeps the entities that lookups find and that a caller wants. The client gets only their
// keys. Several goroutines may look up the same entities.
type Taken struct {
	mu  sync.Mutex
	all map[string]*taken // the wanted entities, by key
}

type taken struct {
	wanted int // number of calls of Want without a call of Take
	// stays says that the client gets the entity. The Taken keeps only its version.
	stays bool
	stamp Stamp
}

// TakenBy returns a context and a new Taken. Lookups with this context put the entities that they
// find into the Taken, if [Taken.Want] was called for their keys.
func TakenBy(ctx context.Context) (context.Context, *Taken) {
	t := new(Taken)
	return intercept.With(ctx, t), t
}

// Want makes the Taken keep the entities with these keys that the next lookups find. The Go client
// then gets only their keys. The first entities, as many as stay says, are an exception: the client
// gets them, and the Taken keeps only their versions. Call [Taken.Take] after the lookup.
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
// call of [Taken.Want] with these keys. The last call removes the stamps from the Taken.
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

// Request does nothing. It is here because the interceptor calls Request, Answer and Refused.
func (t *Taken) Request(any) error { return nil }

// Refused returns the error unchanged.
func (t *Taken) Refused(err error) error { return err }

// Answer moves the wanted entities out of the answer of a lookup. The interceptor calls it for each
// answer.
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

// A Results collects the entities that queries and lookups return, as messages of the Datastore
// API.
type Results struct {
	mu  sync.Mutex
	all map[string]*pb.EntityResult // the results, by key
	at  time.Time                   // the read time of the last lookup
}

// Reading returns a context and a new Results. Queries and lookups with this context record the
// entities that they return in the Results.
func Reading(ctx context.Context) (context.Context, *Results) {
	r := &Results{all: make(map[string]*pb.EntityResult)}
	return intercept.With(ctx, r), r
}

// Request does nothing. It is here because the interceptor calls Request, Answer and Refused.
func (r *Results) Request(any) error { return nil }

// Refused returns the error unchanged.
func (r *Results) Refused(err error) error { return err }

// Answer records the entities in an answer of the database. The interceptor calls it for each
// answer.
func (r *Results) Answer(resp any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var results []*pb.EntityResult
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		results = resp.GetBatch().GetEntityResults()
	case *pb.LookupResponse:
		results, r.at = resp.GetFound(), resp.GetReadTime().AsTime()
	}
	for _, result := range results {
		r.all[pbkey.TextOf(result.GetEntity().GetKey())] = result
	}
}

// ReadTime returns the time of the last lookup, by the database's clock.
func (r *Results) ReadTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// Of returns the entity with this key as it was read, or nil if it was not read.
func (r *Results) Of(key *datastore.Key) *pb.EntityResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[pbkey.Text(key)]
}
