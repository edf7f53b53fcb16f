package property

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// Indexed returns the values under which an index on a property lists the entity. It does the same
// as [value.Indexed], but returns values in the Go client's types.
func Indexed(e *pb.Entity, name string) (values []any) {
	for _, v := range value.Indexed(e, name) {
		values = append(values, pbvalue.Go(v))
	}
	return values
}
