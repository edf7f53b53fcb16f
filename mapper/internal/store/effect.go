package store

import (
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// Mutate adds mutations without conditions to a transaction: all, or none if one of them is
// invalid.
func Mutate(tx *datastore.Transaction, e *function.Effect) error {
	if groups := source.Apart(e.Keys()); len(groups) > 1 {
		// The client would drop one of two deletions. See lookup.
		return fmt.Errorf("%d of the keys that the function puts or deletes can't be told apart by the client",
			len(groups))
	}
	all := make([]*datastore.Mutation, len(e.Mutations))
	for i, m := range e.Mutations {
		all[i] = m.Mutation
	}
	return Write(tx, all...)
}
