package property

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/value"
)

// Indexed returns the values of a property that indexes have: see [value.Indexed].
func Indexed(properties []datastore.Property, name string) []any {
	return value.Indexed(properties, name)
}
