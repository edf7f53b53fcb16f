package mapper

import (
	"cmp"
	"strings"

	"cloud.google.com/go/datastore"
)

// compareKeys orders keys as Datastore does: by namespace, then element by
// element from the root, an ancestor before its descendants; kinds as bytes,
// ids before names, ids as signed integers, names as UTF-8 bytes.
func compareKeys(a, b *datastore.Key) int {
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

// keySize estimates the bytes that a key takes in a record.
func keySize(k *datastore.Key) int {
	n := len(k.Namespace)
	for e := k; e != nil; e = e.Parent {
		n += len(e.Kind) + len(e.Name) + 16
	}
	return n
}

// reservedName reports whether Datastore keeps a kind or name for itself.
func reservedName(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}
