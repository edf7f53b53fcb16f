package names

import (
	"fmt"

	"cloud.google.com/go/datastore"
)

// Path writes a key's path so that names, IDs and the ends of elements can't be confused.
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

// Key writes a key, with its namespace if it has one.
func Key(k *datastore.Key) string {
	switch {
	case k == nil:
		return ""
	case k.Namespace == "":
		return Path(k)
	}
	return "[" + k.Namespace + "]" + Path(k)
}
