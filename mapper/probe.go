package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// probe asks the database all that tasks will ask it about ranges, for one entity each, and
// returns an error if it can't answer. It reports whether the values that the job is sharded by
// are times.
func (src source) probe(ctx context.Context, q Query) (times bool, err error) {
	if src.at != nil {
		if err := src.probeSnapshot(ctx); err != nil {
			return false, err
		}
	}
	if q.AllNamespaces {
		if _, _, err := src.namespaces(ctx, q, "")(); err != nil {
			return false, unserved(err)
		}
	}
	var missing []string // lines of index.yaml
	var why error
	for _, kind := range q.kinds() {
		timed, lines, err := src.probeIn(ctx, q.in(keyspace.Space{Namespace: cmp.Or(append(slices.Clip(q.Namespaces), q.Namespace)...), Kind: kind}))
		if err != nil && len(lines) == 0 {
			return false, err
		}
		why = cmp.Or(why, err)
		times, missing = times || timed, append(missing, lines...)
	}
	if len(missing) > 0 {
		return false, fmt.Errorf("%w: the query needs an index: add these lines to index.yaml, and wait until it is built:\nindexes:\n%s\nThe database says: %w",
			ErrArguments, strings.Join(missing, "\n"), why)
	}
	return times, nil
}

// probeSnapshot returns an error if a snapshot can't be read. Google's classic emulator ignores
// the time; it does not honour masks either.
func (src source) probeSnapshot(ctx context.Context) error {
	switch modern, err := src.honoursMasks(ctx); {
	case err != nil:
		return err
	case !modern:
		return fmt.Errorf("%w: Query.ReadTime is set, and Google's classic emulator, which this is, reads what is there now", ErrArguments)
	}
	_, err := src.at.transaction()
	if errors.As(err, new(snapshotError)) {
		err = fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return err
}

// unserved marks the error of a query that the database does not serve.
func unserved(err error) error {
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.Unimplemented {
		return fmt.Errorf("%w: the database does not serve the query: %w", ErrArguments, err)
	}
	return err
}

// probeIn probes the query in one space. It returns the indexes that are missing with the error
// of the database.
func (src source) probeIn(ctx context.Context, q Query) (times bool, missing []string, err error) {
	if q.plain() {
		return false, nil, nil
	}
	var why error
	for _, s := range q.samples() {
		_, err := src.first(ctx, s, 0)
		switch index := q.index(s); {
		case status.Code(err) == codes.FailedPrecondition:
			if why = err; !slices.Contains(missing, index) {
				missing = append(missing, index)
			}
		case err != nil:
			return false, nil, unserved(err)
		}
	}
	if why != nil {
		return false, missing, why
	}
	first, err := src.find(ctx, q.scans(nil, nil), 0)
	if err != nil || first == nil || !first.Valued {
		return false, nil, err
	}
	entities, _, err := entityReader(src.get(ctx))([]*keyspace.Position{first})
	if err != nil {
		return false, nil, err
	}
	return slices.ContainsFunc(indexedValues(entities[0], q.ShardBy), keyspace.IsTime), nil, nil
}

// samples returns scans of all forms that those of the query's ranges have.
func (q Query) samples() []scan {
	low, high := q.bounds()
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
	return append(q.scans(nil, nil), q.scans(start, nil)...)
}

// index returns the lines of an index.yaml with an index that serves a scan: it has the
// properties of equalities, then those that order the results, then those of inequalities.
func (q Query) index(s scan) string {
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
