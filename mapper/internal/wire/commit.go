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

// A Condition says when a mutation takes effect: only if the entity still has a certain version. It
// may also hold the entity to write, which is then sent in place of the Go client's.
type Condition struct {
	Version int64      // the version that the entity must have; 0: the version does not matter
	Writes  *pb.Entity // the entity to write, byte for byte; nil: the client sends its own
	Free    bool       // whether there is no condition, so that the entity may also be missing

	Mask *pb.PropertyMask // the properties to write; nil: the mask of the client's own mutation
}

// Unsent returns a placeholder to give to the Go client if a [Condition] holds the entity to write.
// The interceptor of the client's connection replaces it in the request. If it were sent by
// mistake, every database would refuse it, because its property has a reserved name.
func Unsent() *datastore.PropertyList {
	return &datastore.PropertyList{{Name: "__unsent__"}}
}

// on returns a copy of the mutation m with the condition added. The original stays unchanged,
// because the client may send it in a later commit with another condition.
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
	*datastore.Mutation // the client's mutation; nil if Deletes is set
	// Deletes is the key of an entity to delete. Such deletions are not given to the client. It
	// identifies keys by their texts, so of two keys with the same text it would delete only one.
	Deletes *datastore.Key
	Condition
}

// errConditions says that the client's request does not have the mutations that the caller has
// given to the client.
var errConditions = errors.New("the client sends other mutations than it was given")

// Put returns the part of the mutations that the caller must give to the Go client: all except
// deletions. The interceptor adds the deletions to the client's request.
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
// the new versions of the entities. After an error, the commit may still have taken effect, because
// only its answer may be lost.
//
// The client's connection must have this package's interceptor, as every connection has that has
// returned versions. Otherwise the client would commit the mutations without their conditions.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	v := &Versions{sends: all, alone: true}
	_, err := client.Mutate(intercept.With(ctx, v), Put(all)...)
	return v, err
}

// Send sets the mutations that the next commit of a transaction sends. The caller must give the
// result of [Put] for them to the Go client. In the request, the interceptor replaces these by the
// mutations with conditions.
func (v *Versions) Send(all []Mutation) { v.sends, v.sent = all, false }

// Request replaces the mutations in the request of a commit by the ones that the caller has set,
// which have conditions. The interceptor calls it before it sends a request.
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

// Refused returns the error ABORTED for a commit that failed because a condition did not hold. The
// database returns other codes, such as NOT_FOUND, if the entity of a condition is missing or
// exists. With ABORTED, the client handles all failed conditions as conflicts.
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
