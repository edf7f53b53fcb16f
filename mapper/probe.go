package mapper

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// probe asks the database all that tasks will ask it about ranges, for one entity each, and
// returns an error if it can't answer. It reports whether the values that the job is sharded by
// are times.
func (e *Engine) probe(ctx context.Context, q Query) (times bool, err error) {
	if q.plain() {
		return false, nil
	}
	var missing []scan
	var why error
	for _, s := range q.samples() {
		_, err := e.first(ctx, s, 0)
		switch status.Code(err) {
		case codes.OK:
		case codes.FailedPrecondition:
			missing, why = append(missing, s), err
		case codes.InvalidArgument, codes.Unimplemented:
			return false, fmt.Errorf("%w: the database does not serve the query: %w", ErrArguments, err)
		default:
			return false, err
		}
	}
	if why != nil {
		return false, fmt.Errorf("%w: the query needs an index: add these lines to index.yaml, and wait until it is built:\n%s\nThe database says: %w", ErrArguments, q.indexes(missing), why)
	}
	first, err := e.find(ctx, q.scans(nil, nil), 0)
	if err != nil || first == nil || !first.Valued {
		return false, err
	}
	entities, _, err := entityReader(e.get(ctx))([]*position{first})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(indexedValues(entities[0], q.ShardBy), isTime), nil
}

// samples returns scans of all forms that those of the query's ranges have.
func (q Query) samples() []scan {
	low, high := q.bounds()
	k := datastore.IDKey(q.Kind, 1, q.Ancestor)
	k.Namespace = q.Namespace
	start := positionOf(k)
	switch {
	case q.ShardBy == "" && q.Start != nil:
		start.Key = q.Start
	case q.ShardBy == "":
	case low != nil:
		start.Valued, start.Value = true, low.Value
	case high != nil:
		start.Valued = true
		start.Value, _ = between(nil, high.Value)
	default:
		start.Valued, start.Value = true, int64(0)
	}
	return append(q.scans(nil, nil), q.scans(start, nil)...)
}

// indexes returns the lines of an index.yaml with indexes that serve scans: each has the
// properties of equalities, then those that order the results, then those of inequalities.
func (q Query) indexes(scans []scan) string {
	var b strings.Builder
	b.WriteString("indexes:\n")
	seen := make(map[string]bool)
	for _, s := range scans {
		if lines := q.indexOf(s); !seen[lines] {
			seen[lines] = true
			b.WriteString(lines)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (q Query) indexOf(s scan) string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, f := range q.others() {
		if !f.ranges() {
			add(f.Property)
		}
	}
	if q.ShardBy != "" {
		add(q.ShardBy)
	}
	if q.ShardBy == "" || s.fixed || q.ranged() {
		add("__key__")
	}
	for _, f := range q.others() {
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
	return b.String()
}

// yamlString quotes what YAML might take for something else than text.
func yamlString(s string) string {
	if mapperName.MatchString(s) && strings.Trim(s, "0123456789.-_") != "" && !strings.ContainsAny(s[:1], "-.") {
		switch strings.ToLower(s) {
		case "yes", "no", "on", "off", "true", "false", "null", "y", "n":
		default:
			return s
		}
	}
	return fmt.Sprintf("%q", s)
}
