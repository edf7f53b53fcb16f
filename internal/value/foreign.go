package value

import (
	"cmp"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Foreign is a key of another project or database than its entity's. The client's keys have neither, so the client
// takes it for a key of the own project.
type Foreign struct {
	Key               *datastore.Key
	Project, Database string
}

// Go returns a value of an entity as the client has it, with a [Foreign] for each foreign key: the value itself, or an
// element of an array.
func Go(of *pb.Entity, v *pb.Value) any {
	if list := v.GetArrayValue(); list != nil {
		all := make([]any, len(list.Values))
		for i, el := range list.Values {
			all[i] = Go(of, el)
		}
		return all
	}
	at, own := v.GetKeyValue().GetPartitionId(), of.GetKey().GetPartitionId()
	if at.GetProjectId() != "" && own.GetProjectId() != "" && (at.ProjectId != own.ProjectId || at.DatabaseId != own.DatabaseId) {
		return Foreign{pbkey.Of(v.GetKeyValue()), at.ProjectId, at.DatabaseId}
	}
	return pbvalue.Go(v)
}

// compareForeign orders two keys. At least one is foreign. Own keys come first.
func compareForeign(a, b any) int {
	p, foreign := a.(Foreign)
	q, both := b.(Foreign)
	switch {
	case !foreign:
		return -1
	case !both:
		return 1
	}
	return cmp.Or(strings.Compare(p.Project, q.Project), strings.Compare(p.Database, q.Database), CompareKeys(p.Key, q.Key))
}
