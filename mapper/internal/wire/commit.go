package wire

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// A Mutation of a [Commit] may have a condition: the version that its entity has to have still. 0 is none.
type Mutation struct {
	*datastore.Mutation
	Version int64
}

// errConditions says that a request is not the one that its conditions were made for.
var errConditions = errors.New("the client sends other mutations than it was given")

// conditions are the versions that the entities of a commit's mutations have to have.
type conditions struct {
	*Versions
	base []int64
}

// request makes a commit one of all mutations or none, on conditions.
func (c conditions) request(req any) error {
	r, ok := req.(*pb.CommitRequest)
	if !ok || len(r.Mutations) != len(c.base) {
		return fmt.Errorf("%w: %T for %d", errConditions, req, len(c.base))
	}
	r.Mode = pb.CommitRequest_TRANSACTIONAL
	r.TransactionSelector = &pb.CommitRequest_SingleUseTransaction{SingleUseTransaction: &pb.TransactionOptions{
		Mode: &pb.TransactionOptions_ReadWrite_{ReadWrite: new(pb.TransactionOptions_ReadWrite)},
	}}
	for i, version := range c.base {
		if version != 0 {
			m := r.Mutations[i]
			m.ConflictDetectionStrategy = &pb.Mutation_BaseVersion{BaseVersion: version}
			m.ConflictResolutionStrategy = pb.Mutation_FAIL
		}
	}
	return nil
}

// Commit commits mutations, all or none: none if an entity has not the version any more that its mutation
// needs. It returns the versions that the entities have then. An error may mean any of the two, as the answer may have
// been lost.
//
// The client's connection must have the interceptor, which it has if versions were noted: without it the client would commit
// what it can.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	mutations, base := make([]*datastore.Mutation, len(all)), make([]int64, len(all))
	for i, m := range all {
		mutations[i], base[i] = m.Mutation, m.Version
	}
	v := new(Versions)
	_, err := client.Mutate(context.WithValue(ctx, callKey{}, conditions{v, base}), mutations...)
	return v, err
}
