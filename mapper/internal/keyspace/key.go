package keyspace

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
)

// CompareKeys orders keys as Datastore does: by namespace, then element by
// element from the root, an ancestor before its descendants; kinds as bytes,
// ids before names, ids as signed integers, names as UTF-8 bytes.
func CompareKeys(a, b *datastore.Key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return comparePaths(elements(a), elements(b))
}

func comparePaths(a, b []*datastore.Key) int {
	for i := range min(len(a), len(b)) {
		if c := compareElements(a[i], b[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// compareElements compares the last elements of two keys.
func compareElements(a, b *datastore.Key) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	switch {
	case a.Name == "" && b.Name == "":
		return cmp.Compare(a.ID, b.ID)
	case a.Name == "":
		return -1
	case b.Name == "":
		return 1
	}
	return strings.Compare(a.Name, b.Name)
}

// elements returns the elements of a key from the root, each as the key that ends
// with it.
func elements(k *datastore.Key) []*datastore.Key {
	n := 0
	for e := k; e != nil; e = e.Parent {
		n++
	}
	all := make([]*datastore.Key, n)
	for e := k; e != nil; e = e.Parent {
		n--
		all[n] = e
	}
	return all
}

// Below reports whether a key is that of an entity below an ancestor, or of that itself.
func Below(k, ancestor *datastore.Key) bool {
	for ; k != nil; k = k.Parent {
		if k.Equal(ancestor) {
			return true
		}
	}
	return false
}

// sortKeys sorts keys, and leaves out those that come twice.
func sortKeys(keys []*datastore.Key) []*datastore.Key {
	slices.SortFunc(keys, CompareKeys)
	return slices.CompactFunc(keys, (*datastore.Key).Equal)
}

// MaxName is how many bytes a kind or a name can have, as the limits page of
// Datastore has it.
const MaxName = 1500

// ValidNamespace is what Datastore's documentation allows in a namespace.
var ValidNamespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`)

// CheckKey returns an error for a key that the database would refuse, and with
// it all that is in the same commit. It may be incomplete if only the ID is
// missing.
func CheckKey(k *datastore.Key) error {
	if k == nil {
		return errors.New("the key is nil")
	}
	for e := k; e != nil; e = e.Parent {
		if err := CheckKind(e.Kind); err != nil {
			return fmt.Errorf("the key's kind %w", err)
		}
		switch {
		case e.ID != 0 && e.Name != "":
			return errors.New("the key has an id and a name")
		case e != k && e.Incomplete():
			return errors.New("the key's parent is incomplete")
		case e.Name != "" && Reserved(e.Name):
			return fmt.Errorf("the key's name %q is reserved by Datastore", e.Name)
		case len(e.Name) > MaxName || !utf8.ValidString(e.Name):
			return fmt.Errorf("the key's name is longer than %d bytes or not UTF-8", MaxName)
		case e.Namespace != k.Namespace:
			return fmt.Errorf("the key's namespace is %q, its parent's is %q", k.Namespace, e.Namespace)
		}
	}
	if !ValidNamespace.MatchString(k.Namespace) || Reserved(k.Namespace) {
		return fmt.Errorf("the key's namespace %.110q is reserved, or not up to 100 letters, digits, '.', '_' and '-'", k.Namespace)
	}
	return nil
}

// CheckKind returns what is wrong with a kind.
func CheckKind(kind string) error {
	switch {
	case kind == "":
		return errors.New("is empty")
	case Reserved(kind):
		return fmt.Errorf("%q is reserved by Datastore", kind)
	case len(kind) > MaxName || !utf8.ValidString(kind):
		return fmt.Errorf("is longer than %d bytes or not UTF-8", MaxName)
	}
	return nil
}

// Reserved reports whether Datastore keeps a kind, name or namespace for
// itself: those that match __.*__.
func Reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}
