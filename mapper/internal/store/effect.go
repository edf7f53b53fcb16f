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
	conditional := make(map[string]bool) // by key
	for i, m := range e.Mutations {
		all[i] = m.Mutation
		if m.On != (wire.Condition{}) {
			conditional[m.Key.Encode()] = true
		}
	}
	deleted := make(map[string]bool) // of one key the client sends the first deletion alone
	for _, m := range e.Mutations {
		if len(conditional) == 0 || m.Key.Incomplete() {
			continue
		}
		key := m.Key.Encode()
		if conditional[key] && (!m.Deletes || !deleted[key]) {
			v.Require(m.Key, m.On)
		}
		deleted[key] = deleted[key] || m.Deletes
	}
	_, err := tx.Mutate(all...)
	return err
}
