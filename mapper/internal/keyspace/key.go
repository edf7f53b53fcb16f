package keyspace

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/value"
)

// CompareKeys orders keys as Datastore does: see [value.CompareKeys].
func CompareKeys(a, b *datastore.Key) int { return value.CompareKeys(a, b) }

// Below reports whether k equals the key ancestor, or is the key of a descendant.
func Below(k, ancestor *datastore.Key) bool {
	for ; k != nil; k = k.Parent {
		if k.Equal(ancestor) {
			return true
		}
	}
	return false
}

// MaxName is the largest size of a kind or a key's name in bytes [the limits page of Datastore].
const MaxName = 1500

// CheckKey returns an error if the database would reject a key. One such key makes the database
// reject the whole commit. The key may be incomplete: only its last ID may be missing.
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
		case e.Name != "" && names.Reserved(e.Name):
			return fmt.Errorf("the key's name %q is reserved by Datastore", e.Name)
		case len(e.Name) > MaxName || !utf8.ValidString(e.Name):
			return fmt.Errorf("the key's name is longer than %d bytes or not UTF-8", MaxName)
		case e.Namespace != k.Namespace:
			return fmt.Errorf("the key's namespace is %q, its parent's is %q", k.Namespace, e.Namespace)
		}
	}
	if !names.Namespace(k.Namespace) {
		return fmt.Errorf("the key's namespace %.110q is reserved, or not up to 100 letters, digits, '.', '_' and '-'",
			k.Namespace)
	}
	return nil
}

// CheckKind returns an error if a kind is invalid. The caller puts the kind in front of the error's
// text, such as "is empty".
func CheckKind(kind string) error {
	switch {
	case kind == "":
		return errors.New("is empty")
	case names.Reserved(kind):
		return fmt.Errorf("%q is reserved by Datastore", kind)
	case len(kind) > MaxName || !utf8.ValidString(kind):
		return fmt.Errorf("is longer than %d bytes or not UTF-8", MaxName)
	}
	return nil
}
