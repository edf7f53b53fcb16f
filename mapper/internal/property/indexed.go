package property

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// Indexed returns the values by which the index of a property has an entity, in the client's types.
// See [value.Indexed].
func Indexed(e *pb.Entity, name string) (values []any) {
	for _, v := range value.Indexed(e, name) {
		values = append(values, pbvalue.Go(v))
	}
	return values
}
