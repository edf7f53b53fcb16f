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
	"github.com/scattermap/scattermap/internal/pbkey"
)

// A Condition is on what a mutation's entity is like still, and may say what the mutation writes.
type Condition struct {
	Version int64      // that the entity has to have; 0 is none
	Writes  *pb.Entity // byte for byte, in place of what the client would send; nil: nothing
	Free    bool       // there is none but that: the entity may be there or not, at any version
}

// Unsent is what the client is given to send where a condition writes something else. No database takes it: so it is
// refused, and not written, if it were sent.
func Unsent() *datastore.PropertyList {
	return &datastore.PropertyList{{Name: "__unsent__"}}
}

// set has a mutation be on the condition.
func (c Condition) set(m *pb.Mutation) {
	if c.Version != 0 {
		m.ConflictDetectionStrategy = &pb.Mutation_BaseVersion{BaseVersion: c.Version}
		m.ConflictResolutionStrategy = pb.Mutation_FAIL
	}
	if c.Writes == nil {
		return
	}
	switch m.Operation.(type) {
	case *pb.Mutation_Insert:
		m.Operation = &pb.Mutation_Insert{Insert: c.Writes}
	case *pb.Mutation_Update:
		m.Operation = &pb.Mutation_Update{Update: c.Writes}
	case *pb.Mutation_Upsert:
		m.Operation = &pb.Mutation_Upsert{Upsert: c.Writes}
	}
}

// A Mutation of a [Commit] may have a condition.
type Mutation struct {
	*datastore.Mutation
	Condition
}

// errConditions says that a request is not the one that its conditions were made for.
var errConditions = errors.New("the client sends other mutations than it was given")

// conditions are those of a commit's mutations, one after the other.
type conditions struct {
	*Versions
	all []Mutation
}

// Request makes a commit one of all mutations or none, on conditions.
func (c conditions) Request(req any) error {
	r, ok := req.(*pb.CommitRequest)
	if !ok || len(r.Mutations) != len(c.all) {
		return fmt.Errorf("%w: %T for %d", errConditions, req, len(c.all))
	}
	r.Mode = pb.CommitRequest_TRANSACTIONAL
	r.TransactionSelector = &pb.CommitRequest_SingleUseTransaction{SingleUseTransaction: &pb.TransactionOptions{
		Mode: &pb.TransactionOptions_ReadWrite_{ReadWrite: new(pb.TransactionOptions_ReadWrite)},
	}}
	for i, m := range c.all {
		m.set(r.Mutations[i])
	}
	return nil
}

// Commit commits mutations, all or none: none if the condition of one of them does not hold any more. It returns the
// versions that the entities have then. An error may mean any of the two, as the answer may have
// been lost.
//
// The client's connection must have the interceptor, which it has if versions were noted: without it the client would commit
// what it can.
func Commit(ctx context.Context, client *datastore.Client, all []Mutation) (*Versions, error) {
	mutations := make([]*datastore.Mutation, len(all))
	for i, m := range all {
		mutations[i] = m.Mutation
	}
	v := new(Versions)
	_, err := client.Mutate(intercept.With(ctx, conditions{v, all}), mutations...)
	return v, err
}

// Require has the next mutation of an entity in the next commit, which is a transaction's, be on a condition. An entity
// that a commit writes several times needs one for each of them, in their order: an empty one is none. One that does not hold then
// aborts the transaction, which the client tries again: the function that it calls begins with [Versions.Anew].
func (v *Versions) Require(key *datastore.Key, c Condition) {
	if v.on == nil {
		v.on = make(map[string][]Condition)
	}
	name := pbkey.Text(key)
	v.on[name] = append(v.on[name], c)
}

// Anew drops what was required.
func (v *Versions) Anew() { clear(v.on) }

// Request sets the conditions of a commit.
func (v *Versions) Request(req any) error {
	r, ok := req.(*pb.CommitRequest)
	if !ok || len(v.on) == 0 {
		return nil
	}
	met := make(map[string]int)
	for _, m := range r.Mutations {
		key := keyOf(m)
		if key == nil {
			continue
		}
		name := pbkey.TextOf(key)
		all, n := v.on[name], met[name]
		if n < len(all) {
			all[n].set(m)
		}
		met[name]++
	}
	for name, all := range v.on {
		if met[name] != len(all) {
			return fmt.Errorf("%w: an entity has %d conditions and %d mutations", errConditions, len(all), met[name])
		}
	}
	return nil
}

// Refused returns what an error is to the client. That an entity is there, or is not, breaks a condition as another
// version does.
func (v *Versions) Refused(err error) error {
	conditional := false
	for _, all := range v.on {
		for _, c := range all {
			conditional = conditional || c != (Condition{}) && !c.Free
		}
	}
	if code := status.Code(err); conditional && (code == codes.AlreadyExists || code == codes.NotFound) {
		return status.Error(codes.Aborted, err.Error())
	}
	return err
}

// keyOf returns the key of a mutation's entity.
func keyOf(m *pb.Mutation) *pb.Key {
	switch o := m.Operation.(type) {
	case *pb.Mutation_Insert:
		return o.Insert.GetKey()
	case *pb.Mutation_Update:
		return o.Update.GetKey()
	case *pb.Mutation_Upsert:
		return o.Upsert.GetKey()
	case *pb.Mutation_Delete:
		return o.Delete
	}
	return nil
}
