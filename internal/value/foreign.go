package value

import (
	"cmp"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// A Foreign is a key of another project or database than that of the entity which has it. The client's keys have neither,
// so that to it the key is one of ours.
type Foreign struct {
	Key               *datastore.Key
	Project, Database string
}

// Go returns a value of an entity as the client has it, but for foreign keys: one that the value itself is, or that
// are among those of an array.
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

// compareForeign orders keys of which one at least is foreign: ours come first.
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
