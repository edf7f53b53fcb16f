package query

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Samples returns scans with which a caller can test the query before its job starts. A [Scan] is a
// Datastore query for a range of entities. There is one for each form of Datastore query that the
// job may send, because each form may need an index.
func (q Query) Samples() []Scan {
	low, high := q.Bounds()
	k := datastore.IDKey(q.Kind, 1, q.Ancestor)
	k.Namespace = q.Namespace
	start := keyspace.At(k)
	switch {
	case q.ShardBy == "" && q.Start != nil:
		start.Key = q.Start
	case q.ShardBy == "":
	case low != nil:
		start.Valued, start.Value = true, low.Value
	case high != nil:
		start.Valued = true
		start.Value, _ = keyspace.Between(nil, high.Value)
	default:
		start.Valued, start.Value = true, int64(0)
	}
	return append(q.Scans(nil, nil), q.Scans(start, nil)...)
}

// Index returns the composite index that a scan needs, as lines of index.yaml. The index has the
// properties of equalities first, then the order of the results, then the properties of
// inequalities.
func (q Query) Index(s Scan) string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, f := range q.Others() {
		if !f.ranges() {
			add(f.Property)
		}
	}
	if q.ShardBy != "" {
		add(q.ShardBy)
	}
	if q.ShardBy == "" || s.Fixed || q.ranged() {
		add("__key__")
	}
	for _, f := range q.Others() {
		add(f.Property)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "- kind: %s\n", yamlString(q.Kind))
	if q.Ancestor != nil {
		b.WriteString("  ancestor: yes\n")
	}
	b.WriteString("  properties:\n")
	for _, n := range names {
		fmt.Fprintf(&b, "  - name: %s\n", yamlString(n))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// yamlString returns a text as a YAML string, in quotes only if YAML would read it as something
// else.
func yamlString(s string) string {
	if plainText.MatchString(s) && strings.Trim(s, "0123456789.-_") != "" && !strings.ContainsAny(s[:1], "-.") {
		switch strings.ToLower(s) {
		case "yes", "no", "on", "off", "true", "false", "null", "y", "n":
		default:
			return s
		}
	}
	return fmt.Sprintf("%q", s)
}

var plainText = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
