package value

import (
	"cmp"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Foreign is a key in another project or database than the entity that contains it. The client's
// type for keys has neither, so the client would take it for a key in the entity's own project.
type Foreign struct {
	Key               *datastore.Key
	Project, Database string
}

// A ForeignEntity is a nested entity whose key is in another project or database. Its field Key is
// this key, and the Key of its Entity is nil.
type ForeignEntity struct {
	Key    Foreign
	Entity *datastore.Entity
}

// Go converts a value inside the entity "of" to the client's form. A key in another project or
// database becomes a [Foreign], at any depth. A nested entity with such a key becomes a
// [ForeignEntity].
func Go(of *pb.Entity, v *pb.Value) any {
	switch x := v.GetValueType().(type) {
	case *pb.Value_ArrayValue:
		all := make([]any, len(x.ArrayValue.GetValues()))
		for i, el := range x.ArrayValue.GetValues() {
			all[i] = Go(of, el)
		}
		return all
	case *pb.Value_EntityValue:
		e := new(datastore.Entity)
		for name, p := range x.EntityValue.GetProperties() {
			e.Properties = append(e.Properties, datastore.Property{Name: name, Value: Go(of, p),
				NoIndex: p.GetExcludeFromIndexes()})
		}
		slices.SortFunc(e.Properties, func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
		if k, foreign := keyOf(of, x.EntityValue.GetKey()).(Foreign); foreign {
			return ForeignEntity{k, e}
		}
		e.Key = pbkey.Of(x.EntityValue.GetKey())
		return e
	case *pb.Value_KeyValue:
		return keyOf(of, x.KeyValue)
	}
	return pbvalue.Go(v)
}

// keyOf converts a key inside the entity "of" to a *datastore.Key, or to a [Foreign] if it is in
// another project or database.
func keyOf(of *pb.Entity, k *pb.Key) any {
	at, own := k.GetPartitionId(), of.GetKey().GetPartitionId()
	if len(k.GetPath()) > 0 && at.GetProjectId() != "" && own.GetProjectId() != "" &&
		(at.ProjectId != own.ProjectId || at.DatabaseId != own.DatabaseId) {
		return Foreign{pbkey.Of(k), at.ProjectId, at.DatabaseId}
	}
	return pbkey.Of(k)
}

// compareForeign compares two keys. At least one of them is a [Foreign]. Keys in the entity's own
// project come first.
func compareForeign(a, b any) int {
	p, foreign := a.(Foreign)
	q, both := b.(Foreign)
	switch {
	case !foreign:
		return -1
	case !both:
		return 1
	}
	return cmp.Or(strings.Compare(p.Project, q.Project), strings.Compare(p.Database, q.Database),
		CompareKeys(p.Key, q.Key))
}
