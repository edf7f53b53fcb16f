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
	kind := quoteKind(k.Kind)
	if k.Name != "" {
		return fmt.Sprintf("%s/%s,%q", parent, kind, k.Name)
	}
	return fmt.Sprintf("%s/%s,%d", parent, kind, k.ID)
}

func quoteKind(kind string) string {
	if quoted := strconv.Quote(kind); strings.ContainsAny(kind, "/,") || quoted[1:len(quoted)-1] != kind {
		return quoted
	}
	return kind
}

// Key returns a key's path as a text, with its namespace if it has one.
func Key(k *datastore.Key) string {
	if k == nil {
		return ""
	}
	return within(k.Namespace, Path(k))
}

// Kind returns a kind in a namespace as a text, in the notation of [Key].
func Kind(namespace, kind string) string { return within(namespace, "/"+quoteKind(kind)) }

func within(namespace, text string) string {
	if namespace == "" {
		return text
	}
	return "[" + namespace + "]" + text
}
