package names

import (
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/datastore"
)

// Path returns a key's path as one line of text. Different paths have different texts, because
// names are quoted. A kind is quoted, too, if it has a character that could end the kind or the
// line.
func Path(k *datastore.Key) string {
	parent := ""
	if k.Parent != nil {
		parent = Path(k.Parent)
	}
	kind := k.Kind
	if quoted := strconv.Quote(kind); strings.ContainsAny(kind, "/,") || quoted[1:len(quoted)-1] != kind {
		kind = quoted
	}
	if k.Name != "" {
		return fmt.Sprintf("%s/%s,%q", parent, kind, k.Name)
	}
	return fmt.Sprintf("%s/%s,%d", parent, kind, k.ID)
}

// Key returns a key's path as a text, with its namespace if it has one.
func Key(k *datastore.Key) string {
	switch {
	case k == nil:
		return ""
	case k.Namespace == "":
		return Path(k)
	}
	return "[" + k.Namespace + "]" + Path(k)
}
