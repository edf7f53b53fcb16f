package keyspace

import (
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
)

// named returns a key with a namespace, a kind, a name and a parent.
func named(namespace, kind, name string, parent *datastore.Key) *datastore.Key {
	return &datastore.Key{Namespace: namespace, Kind: kind, Name: name, Parent: parent}
}

// TestCheckKey checks that CheckKey refuses exactly the keys that the database would refuse.
func TestCheckKey(t *testing.T) {
	long := strings.Repeat("x", MaxName)
	for _, c := range []struct {
		name string
		key  *datastore.Key
		want string // expected text in the error; empty: no error
	}{
		{"an id", datastore.IDKey("K", 1, nil), ""},
		{"a negative id", datastore.IDKey("K", -1, nil), ""},
		{"a name", named("n", "K", "a", named("n", "P", "b", nil)), ""},
		{"the longest", named("", long, long, nil), ""},
		{"an incomplete one", datastore.IncompleteKey("K", nil), ""},
		{"none", nil, "is nil"},
		{"no kind", datastore.IDKey("", 1, nil), "kind is empty"},
		{"a reserved kind", datastore.IDKey("__K__", 1, nil), "is reserved"},
		{"a parent without a kind", datastore.IDKey("K", 1, datastore.IDKey("", 1, nil)), "kind is empty"},
		{"a kind that is too long", datastore.IDKey(long+"x", 1, nil), "longer than 1500 bytes"},
		{"a kind that is no text", datastore.IDKey("\xff", 1, nil), "not UTF-8"},
		{"an id and a name", &datastore.Key{Kind: "K", ID: 1, Name: "a"}, "an id and a name"},
		{"an incomplete parent", datastore.IDKey("K", 1, datastore.IncompleteKey("P", nil)), "parent is incomplete"},
		{"a reserved name", named("", "K", "__a__", nil), "is reserved"},
		{"a name that is too long", named("", "K", long+"x", nil), "longer than 1500 bytes"},
		{"a name that is no text", named("", "K", "\xff", nil), "not UTF-8"},
		{"a parent elsewhere", named("n", "K", "a", named("m", "P", "b", nil)), `is "n", its parent's is "m"`},
		{"a namespace with a space", named("a b", "K", "a", nil), "not up to 100 letters"},
	} {
		err := CheckKey(c.key)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestBelow(t *testing.T) {
	top := named("", "P", "a", nil)
	child := named("", "K", "b", top)
	for _, c := range []struct {
		key, ancestor *datastore.Key
		want          bool
	}{
		{top, top, true}, {child, top, true}, {named("", "K", "c", child), top, true}, {top, child, false},
		{named("", "P", "b", nil), top, false}, {named("", "K", "b", named("", "P", "c", nil)), top, false},
	} {
		if got := Below(c.key, c.ancestor); got != c.want {
			t.Errorf("%v is below %v: %v", c.key, c.ancestor, got)
		}
	}
}
