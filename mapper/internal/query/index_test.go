package query

import (
	"testing"

	"cloud.google.com/go/datastore"
)

// TestIndex checks the index for the last scan of each query. The index must have the properties of
// equalities first, then the order of results, then inequalities.
func TestIndex(t *testing.T) {
	for _, c := range []struct {
		name  string
		q     Query
		scans int // number of different forms of Datastore queries
		want  string
	}{
		{"by keys, of an equality", Query{Kind: "K", Filters: []Filter{where("a", "=", 1)}}, 2,
			"- kind: K\n  properties:\n  - name: a\n  - name: __key__"},
		{"by keys, of an inequality", Query{Kind: "K", Filters: []Filter{where("a", ">", 1)}, Start: id(1)}, 2,
			"- kind: K\n  properties:\n  - name: __key__\n  - name: a"},
		{"below an ancestor", Query{Kind: "K", Ancestor: datastore.IDKey("P", 1, nil),
			Filters: []Filter{where("a", "in", []any{int64(1)})}}, 2,
			"- kind: K\n  ancestor: yes\n  properties:\n  - name: a\n  - name: __key__"},
		{"by values", Query{Kind: "K", ShardBy: "b", Filters: []Filter{where("a", "=", 1)}}, 3,
			"- kind: K\n  properties:\n  - name: a\n  - name: b"},
		{"by values from one on, of another inequality", Query{Kind: "K", ShardBy: "b",
			Filters: []Filter{where("a", ">", 1), where("b", ">=", int64(5))}}, 3,
			"- kind: K\n  properties:\n  - name: b\n  - name: __key__\n  - name: a"},
		{"by values up to one", Query{Kind: "K", ShardBy: "b", Filters: []Filter{where("b", "<", int64(5))}}, 3,
			"- kind: K\n  properties:\n  - name: b"},
		{"names that YAML would take for something else", Query{Kind: "123", Filters: []Filter{where("yes", "=", 1),
			where("a b", "=", 1), where("-a", "=", 1)}}, 2,
			"- kind: \"123\"\n  properties:\n  - name: \"yes\"\n  - name: \"a b\"\n  - name: \"-a\"\n  - name: " +
				"__key__"},
	} {
		scans := c.q.Samples()
		if len(scans) != c.scans {
			t.Errorf("%s: %d scans", c.name, len(scans))
		}
		if got := c.q.Index(scans[len(scans)-1]); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}
