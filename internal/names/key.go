package names

import (
	"fmt"

	"cloud.google.com/go/datastore"
)

// Path returns a key's path as text, in which names, IDs and the ends of elements can't be
// confused.
func Path(k *datastore.Key) string {
	parent := ""
	if k.Parent != nil {
		parent = Path(k.Parent)
	}
	if k.Name != "" {
		return fmt.Sprintf("%s/%s,%q", parent, k.Kind, k.Name)
	}
	return fmt.Sprintf("%s/%s,%d", parent, k.Kind, k.ID)
}

// Key returns a key's path as text, with its namespace if it has one.
func Key(k *datastore.Key) string {
	switch {
	case k == nil:
		return ""
	case k.Namespace == "":
		return Path(k)
	}
	return "[" + k.Namespace + "]" + Path(k)
}
