package store

import (
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// Mutate adds to a transaction the writes that a user's function has asked for. It leaves out their
// conditions, such as required versions. If one of the writes is invalid, it returns an error and
// adds none.
func Mutate(tx *datastore.Transaction, e *function.Effect) error {
	if groups := source.Apart(e.Keys()); len(groups) > 1 {
		// For two keys with the same text, the client sends only one deletion, see source.Lookup.
		return fmt.Errorf("the Datastore client can't tell %d of the keys apart that the function puts or deletes",
			len(groups))
	}
	all := make([]*datastore.Mutation, len(e.Mutations))
	for i, m := range e.Mutations {
		all[i] = m.Mutation
	}
	return Write(tx, all...)
}
