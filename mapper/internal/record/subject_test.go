package record

import (
	"testing"

	"cloud.google.com/go/datastore"
)

// TestSubjectMentions checks where something of a subject is found: in keys, texts, encoded keys, and what our records compress.
func TestSubjectMentions(t *testing.T) {
	alice := datastore.NameKey("Account", "alice@example.com", nil)
	inside := &datastore.Key{Kind: "Account", ID: 7, Namespace: "acme"}
	child := datastore.NameKey("Order", "1", alice)
	many := make([]*datastore.Key, 100) // enough to be compressed
	for i := range many {
		many[i] = datastore.IDKey("Account", int64(1+i), nil)
	}
	wrote := func(key *datastore.Key) []byte {
		return (&Wrote{Others: append([]*datastore.Key{key}, many...)}).Encode()
	}
	left := func(key *datastore.Key) []byte {
		r := &Range{Job: "j"}
		Leave(r, []Left{{Key: key, Why: "it was changed after the page wrote it"}})
		return r.Left
	}
	words, namespace := Subject{Words: []string{"alice@example.com"}}, Subject{Namespace: "acme"}
	for _, test := range []struct {
		name  string
		s     Subject
		value any
		want  bool
	}{
		{"a key", words, alice, true},
		{"a key in the namespace", namespace, inside, true},
		{"a key of another namespace", namespace, alice, false},
		{"an ancestor", words, child, true},
		{"an encoded key", words, "failed on " + child.Encode() + ".", true},
		{"a text", words, "no mail to alice@example.com", true},
		{"a longer word", words, "no mail to malice@example.community", false},
		{"a longer namespace", namespace, "acme2", false},
		{"the namespace in a text", namespace, "acme-2", true},
		{"what a page has written", words, wrote(alice), true},
		{"what a page has written in the namespace", namespace, wrote(inside), true},
		{"what a page has written of others", words, wrote(inside), false},
		{"what an undo has left", words, left(child), true},
		{"a list", words, []any{int64(1), "x", alice}, true},
		{"an entity inside", namespace, &datastore.Entity{Properties: []datastore.Property{{Name: "of", Value: inside}}}, true},
		{"bytes that are nothing of ours", words, []byte("to alice@example.com, and more"), true},
		{"nothing", words, nil, false},
	} {
		if got := test.s.Mentions([]datastore.Property{{Name: "p", Value: test.value}}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
