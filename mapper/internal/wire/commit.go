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

// A Condition says which version the entity of a mutation must still have. It may also have the
// entity to write, in place of the client's.
type Condition struct {
	Version int64      // the version that the entity must have; 0: any
	Writes  *pb.Entity // the entity to write, byte for byte; nil: the client sends its own
	Free    bool       // whether there is no condition: the entity may have any version, or not exist

	Mask *pb.PropertyMask // the properties that are written; nil: the client's mask
}

// Unsent returns a value for the client to put if a Condition has the entity to write. It is
// replaced before it is sent. If it were ever sent, every database would refuse it, so nothing
// would be written.
func Unsent() *datastore.PropertyList {
	return &datastore.PropertyList{{Name: "__unsent__"}}
}

// on returns a copy of a mutation to which the condition is added. The client keeps the original,
// and a later commit may send it with another condition.
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

// A Mutation is one mutation of a commit, which may have a condition.
type Mutation struct {
	*datastore.Mutation // the client's mutation; nil: the entity is deleted
	// Deletes is the key to delete, in place of a deletion by the client. The client would send
	// only one deletion for two keys with the same text.
	Deletes *datastore.Key
	Condition
}

// errConditions says that the client's request does not have the mutations that the client was
// given.
var errConditions = errors.New("the client sends other mutations than it was given")

// Put returns the mutations to give to the client. It leaves out deletions, which are added to the
// commit's request later.
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
// the new versions of the entities. After an error the commit may have taken effect, because the
// answer may be lost.
//
// The client's connection must have the interceptor; it has, if it returned versions before.
// Without it, the client would commit each mutation that it can, without conditions.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	v := &Versions{sends: all, alone: true}
	_, err := client.Mutate(intercept.With(ctx, v), Put(all)...)
	return v, err
}

// Send sets the mutations that the transaction's next commit sends. They replace the mutations that
// the client was given, which must be the result of [Put].
func (v *Versions) Send(all []Mutation) { v.sends, v.sent = all, false }

// Request replaces the client's mutations in a commit's request.
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

// Refused returns the error of a commit for the client. If a condition fails because its entity
// exists or is missing, the database has other codes than for a wrong version. Refused replaces all
// of these by ABORTED.
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
