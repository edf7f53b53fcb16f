package mapper

import (
	"context"
	"fmt"
	"strings"

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
	var first *position
	for _, s := range q.scans(nil, nil) {
		if first, err = e.first(ctx, s, 0); err != nil {
			return false, q.unserved(err)
		}
	}
	if first == nil {
		return false, nil
	}
	behind := *first
	if first.Valued {
		if v, ok := next(first.Value); ok {
			behind.Value = v
		}
	}
	for _, s := range append(q.scans(first, &behind), q.scans(first, nil)...) {
		if _, err := e.first(ctx, s, 0); err != nil {
			return false, q.unserved(err)
		}
	}
	if !first.Valued {
		return false, nil
	}
	entities, _, err := entityReader(e.get(ctx))([]*position{first})
	if err != nil {
		return false, err
	}
	for _, v := range indexedValues(entities[0], q.ShardBy) {
		times = times || isTime(v)
	}
	return times, nil
}

// unserved returns the error of a query that the database does not serve.
func (q Query) unserved(err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: the query needs an index: add it to index.yaml, and wait until it is built:\n%s\nThe database says: %w", ErrArguments, q.index(), err)
	case codes.InvalidArgument, codes.Unimplemented:
		return fmt.Errorf("%w: the database does not serve the query: %w", ErrArguments, err)
	}
	return err
}

// index returns the lines of an index.yaml with an index that serves the query: the properties
// of equalities, then those that order the results, then those of inequalities.
func (q Query) index() string {
	var names []string
	add := func(name string) {
		for _, n := range names {
			if n == name {
				return
			}
		}
		names = append(names, name)
	}
	for _, f := range q.others() {
		if !f.ranges() {
			add(f.Property)
		}
	}
	if q.ShardBy != "" {
		add(q.ShardBy)
	} else {
		add("__key__")
	}
	for _, f := range q.others() {
		add(f.Property)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "indexes:\n- kind: %s\n", yamlString(q.Kind))
	if q.Ancestor != nil {
		b.WriteString("  ancestor: yes\n")
	}
	b.WriteString("  properties:\n")
	for _, n := range names {
		fmt.Fprintf(&b, "  - name: %s\n", yamlString(n))
	}
	return strings.TrimSuffix(b.String(), "\n")
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
