package wire

import (
	"context"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbkey"
)

// Versions are those of the results of queries, one after the other, or of the mutations of the last commit. They are
// for the goroutine that makes the calls.
type Versions struct {
	Of []Stamp

	takes   bool                   // the entities of queries, which the client then gets empty
	Taken   Taken                  // likewise, those of lookups that want them
	on      map[string][]Condition // what the next commit requires, by key
	updated map[string]int64       // when entities that lookups have found were written, by key
}

// A Stamp is what the database says of an entity besides its properties; 0 is unknown.
type Stamp struct {
	Version int64
	At      int64 // when it was written, in microseconds behind 1970

	Entity *pb.Entity // of a query whose entities are taken
}

// microsOf returns when the entity of a result was written; 0 is unknown.
func microsOf(r *pb.EntityResult) int64 {
	if t := r.GetUpdateTime(); t.IsValid() {
		return t.AsTime().UnixMicro()
	}
	return 0
}

// Updated returns when an entity was written that a lookup has found; 0 is unknown.
func (v *Versions) Updated(key *datastore.Key) int64 { return v.updated[pbkey.Text(key)] }

// Noting returns a context whose calls note versions.
func Noting(ctx context.Context) (context.Context, *Versions) {
	v := new(Versions)
	return intercept.With(ctx, v), v
}

// Taking is [Noting], and takes the entities that queries find from the client: it gets their keys, and makes nothing of
// properties that nobody would look at.
func Taking(ctx context.Context) (context.Context, *Versions) {
	ctx, v := Noting(ctx)
	v.takes = true
	return ctx, v
}

// Answer notes what an answer says.
func (v *Versions) Answer(resp any) {
	switch resp := resp.(type) {
	case *pb.RunQueryResponse:
		for _, r := range resp.GetBatch().GetEntityResults() {
			s := Stamp{Version: r.Version, At: microsOf(r)}
			if v.takes {
				s.Entity = take(r)
			}
			v.Of = append(v.Of, s)
		}
	case *pb.LookupResponse:
		if v.updated == nil {
			v.updated = make(map[string]int64)
		}
		for _, r := range resp.GetFound() {
			v.updated[pbkey.TextOf(r.GetEntity().GetKey())] = microsOf(r)
		}
		v.Taken.Answer(resp)
	case *pb.CommitResponse:
		v.Of = v.Of[:0]
		for _, r := range resp.MutationResults {
			v.Of = append(v.Of, Stamp{Version: r.Version})
		}
	}
}

// take takes a result's entity, and leaves one with its key.
func take(r *pb.EntityResult) *pb.Entity {
	e := r.GetEntity()
	if e.Properties == nil { // where there is none is nothing to take, too
		e.Properties = make(map[string]*pb.Value)
	}
	r.Entity = &pb.Entity{Key: e.Key}
	return e
}

// Last returns the version of the n-th mutation from the end of the last commit, counted from 1; 0 is unknown.
func (v *Versions) Last(n int) int64 {
	if n < 1 || n > len(v.Of) {
		return 0
	}
	return v.Of[len(v.Of)-n].Version
}
