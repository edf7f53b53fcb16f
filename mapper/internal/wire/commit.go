package wire

import (
	"cmp"
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

// A Condition is the condition under which a mutation takes effect: the version that the entity
// must still have. It may also hold the entity to write, which replaces the Go client's.
type Condition struct {
	Version int64      // the version that the entity must have; 0: the version does not matter
	Writes  *pb.Entity // the entity to write, byte for byte; nil: the client sends its own
	Free    bool       // whether there is no condition: the entity may also be missing

	Mask *pb.PropertyMask // the properties that are written; nil: as the client says
}

// Unsent returns a value to give to the Go client if a Condition holds the entity to write. The
// interceptor replaces it in the request. Every database would refuse this value, so if it were
// sent by mistake, nothing would be written.
func Unsent() *datastore.PropertyList {
	return &datastore.PropertyList{{Name: "__unsent__"}}
}

// on returns a copy of a mutation with the condition. The client keeps the original, and may send
// it in a later commit with another condition.
func (c Condition) on(m *pb.Mutation) *pb.Mutation {
	on := &pb.Mutation{
		Operation: m.Operation, PropertyMask: cmp.Or(c.Mask, m.PropertyMask), PropertyTransforms: m.PropertyTransforms,
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

// A Mutation is one mutation of a commit, with an optional condition.
type Mutation struct {
	*datastore.Mutation // the client's mutation; nil: Deletes is set
	// Deletes is the key of an entity to delete. The client does not get such deletions, because of
	// two keys with the same text it would delete only one.
	Deletes *datastore.Key
	Condition
}

// errConditions says that the client's request has other mutations than the caller has given to the
// client.
var errConditions = errors.New("the client sends other mutations than it was given")

// Put returns the mutations that the caller must give to the Go client. It leaves out deletions,
// which are later added to the request.
func Put(all []Mutation) []*datastore.Mutation {
	put := make([]*datastore.Mutation, 0, len(all))
	for _, m := range all {
		if m.Deletes == nil {
			put = append(put, m.Mutation)
		}
	}
	return put
}

// Commit commits all of the mutations, or none if one of their conditions does not hold. It returns
// the new versions of the entities. After an error the commit may still have taken effect, if the
// answer was lost.
//
// The client's connection must have the interceptor. If it has returned versions before, it has.
// Without the interceptor, the client would commit the mutations without their conditions.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	v := &Versions{sends: all, alone: true}
	_, err := client.Mutate(intercept.With(ctx, v), Put(all)...)
	return v, err
}

// Send sets the mutations that the transaction's next commit sends. The caller must give [Put] of
// them to the Go client. In the request they are replaced by the mutations with conditions.
func (v *Versions) Send(all []Mutation) { v.sends, v.sent = all, false }

// Request puts the mutations with their conditions into the request of a commit, in place of the Go
// client's.
func (v *Versions) Request(req any) error {
	r, ok := req.(*pb.CommitRequest)
	if !ok || v.sends == nil {
		return nil
	}
	if v.sent { // the client retries the request
		return nil
	}
	given := r.Mutations
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

// Refused replaces the code of a failed commit by ABORTED if a condition has failed. The database
// has other codes if an entity with a condition exists or is missing. The client then handles all
// failed conditions as conflicts.
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
