package wire

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Condition is on what a mutation's entity is like still, and may say what the mutation writes.
type Condition struct {
	Version int64      // that the entity has to have; 0 is none
	Writes  *pb.Entity // byte for byte, in place of what the client would send; nil: nothing
	Free    bool       // there is none but that: the entity may be there or not, at any version
}

// Unsent is what the client is given to send where a condition writes something else. No database
// takes it: so it is refused, and not written, if it were sent.
func Unsent() *datastore.PropertyList {
	return &datastore.PropertyList{{Name: "__unsent__"}}
}

// on returns a mutation on the condition. The client keeps its own, which a later commit may send
// on another one.
func (c Condition) on(m *pb.Mutation) *pb.Mutation {
	on := &pb.Mutation{
		Operation: m.Operation, PropertyMask: m.PropertyMask, PropertyTransforms: m.PropertyTransforms,
	}
	if c.Version != 0 {
		on.ConflictDetectionStrategy = &pb.Mutation_BaseVersion{BaseVersion: c.Version}
		on.ConflictResolutionStrategy = pb.Mutation_FAIL
	}
	if c.Writes == nil {
		return on
	}
	switch m.Operation.(type) {
	case *pb.Mutation_Insert:
		on.Operation = &pb.Mutation_Insert{Insert: c.Writes}
	case *pb.Mutation_Update:
		on.Operation = &pb.Mutation_Update{Update: c.Writes}
	case *pb.Mutation_Upsert:
		on.Operation = &pb.Mutation_Upsert{Upsert: c.Writes}
	}
	return on
}

// A Mutation of a commit may have a condition.
type Mutation struct {
	*datastore.Mutation // nil: a deletion
	// what it deletes. The client would send one deletion for two keys whose texts are the same.
	Deletes *datastore.Key
	Condition
}

// errConditions says that a request is not the one that its conditions were made for.
var errConditions = errors.New("the client sends other mutations than it was given")

// Put returns those of some mutations that the client is given: all but deletions.
func Put(all []Mutation) []*datastore.Mutation {
	put := make([]*datastore.Mutation, 0, len(all))
	for _, m := range all {
		if m.Deletes == nil {
			put = append(put, m.Mutation)
		}
	}
	return put
}

// Commit commits mutations, all or none: none if the condition of one of them does not hold any
// more. It returns the versions that the entities have then. An error may mean any of the two, as
// the answer may have been lost.
//
// The client's connection must have the interceptor, which it has if versions were noted: without
// it the client would commit what it can.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	v := &Versions{sends: all, alone: true}
	_, err := client.Mutate(intercept.With(ctx, v), Put(all)...)
	return v, err
}

// Send has the next commit, which is a transaction's, send mutations in place of those that the
// client is given, which are those that [Put] returns.
func (v *Versions) Send(all []Mutation) { v.sends = all }

// Request has a commit send the mutations that it is to.
func (v *Versions) Request(req any) error {
	r, ok := req.(*pb.CommitRequest)
	if !ok || v.sends == nil {
		return nil
	}
	given := r.Mutations
	if len(given) == len(v.sends) && v.sent { // the client sends it again
		return nil
	}
	r.Mutations = make([]*pb.Mutation, len(v.sends))
	for i, m := range v.sends {
		of := &pb.Mutation{}
		switch {
		case m.Deletes != nil:
			of.Operation = &pb.Mutation_Delete{Delete: pbvalue.Key(m.Deletes)}
		case len(given) == 0:
			return fmt.Errorf("%w: %d of %d", errConditions, len(r.Mutations), len(v.sends))
		default:
			of, given = given[0], given[1:]
		}
		r.Mutations[i] = m.on(of)
	}
	if len(given) > 0 {
		return fmt.Errorf("%w: %d more than %d", errConditions, len(given), len(v.sends))
	}
	v.sent = true
	if v.alone {
		r.Mode = pb.CommitRequest_TRANSACTIONAL
		r.TransactionSelector = &pb.CommitRequest_SingleUseTransaction{SingleUseTransaction: &pb.TransactionOptions{
			Mode: &pb.TransactionOptions_ReadWrite_{ReadWrite: new(pb.TransactionOptions_ReadWrite)},
		}}
	}
	return nil
}

// Refused returns what an error is to the client. That an entity is there, or is not, breaks a
// condition as another version does.
func (v *Versions) Refused(err error) error {
	conditional := false
	for _, m := range v.sends {
		conditional = conditional || m.Condition != (Condition{}) && !m.Free
	}
	if code := status.Code(err); !v.alone && conditional && (code == codes.AlreadyExists || code == codes.NotFound) {
		return status.Error(codes.Aborted, err.Error())
	}
	return err
}
