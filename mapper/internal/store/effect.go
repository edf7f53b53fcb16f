package store

import (
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Mutate adds an entity's mutations to a transaction: all, or none if one of
// them is invalid. Their conditions are on its commit, which notes versions; without conditions it need not.
func Mutate(tx *datastore.Transaction, v *wire.Versions, e *function.Effect) error {
	groups := source.Apart(e.Keys())
	if len(groups) > 1 {
		// The client would drop one of two deletes. See lookup.
		return fmt.Errorf("%d of the keys that the function puts or deletes can't be told apart by the client", len(groups))
	}
	all := make([]*datastore.Mutation, len(e.Mutations))
	deleted := make(map[string]bool) // of one key the client sends the first deletion alone
	for i, m := range e.Mutations {
		all[i] = m.Mutation
		if v == nil || m.Key.Incomplete() {
			continue
		}
		if m.Deletes {
			key := m.Key.Encode()
			if deleted[key] {
				continue
			}
			deleted[key] = true
		}
		v.Require(m.Key, m.On) // each has one: a later effect may write the entity once more
	}
	_, err := tx.Mutate(all...)
	return err
}
