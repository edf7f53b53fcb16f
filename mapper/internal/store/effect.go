package store

import (
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// Mutate adds an entity's mutations to a transaction: all, or none if one of
// them is invalid.
func Mutate(tx *datastore.Transaction, e *function.Effect) error {
	keys := make([]*datastore.Key, len(e.Mutations))
	for i, m := range e.Mutations {
		keys[i] = m.Key
	}
	groups := source.Apart(keys)
	if len(groups) > 1 {
		// The client would drop one of two deletes. See lookup.
		return fmt.Errorf("%d of the keys that the function puts or deletes can't be told apart by the client", len(groups))
	}
	all := make([]*datastore.Mutation, len(e.Mutations))
	for i, m := range e.Mutations {
		all[i] = m.Mutation
	}
	_, err := tx.Mutate(all...)
	return err
}
