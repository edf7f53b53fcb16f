package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Probe checks a job's query before the job starts. It sends each form of Datastore query that the
// job's tasks will send, with a limit of one result. It returns an error if the database can't
// answer, or if the answers show one of these mistakes:
//
//   - A filter's value has another type than the stored values.
//   - A kind has no entities. This is allowed if empty is set.
//   - No entity has a filtered property, or the property in ShardBy. This is allowed if empty is
//     set.
//
// The bool times says whether the values of the property in ShardBy are times.
func (src Source) Probe(ctx context.Context, q query.Query, empty bool) (times bool, err error) {
	err = Answered(ctx, func(ctx context.Context) error {
		var group sync.WaitGroup
		var kinds, types, err error
		if !empty {
			group.Go(func() { kinds = src.checkKinds(ctx, q) })
		}
		group.Go(func() { types = src.checkTypes(ctx, q, empty) })
		times, err = src.probe(ctx, q)
		group.Wait()
		if mistake := cmp.Or(kinds, types); errors.Is(mistake, fault.ErrArguments) { // then an index would not help
			return mistake
		}
		return cmp.Or(err, kinds, types)
	})
	return times, err
}

func (src Source) probe(ctx context.Context, q query.Query) (times bool, err error) {
	if src.At != nil {
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
	for _, kind := range q.AllKinds() {
		namespace := cmp.Or(append(slices.Clip(q.Namespaces), q.Namespace)...)
		timed, lines, err := src.probeIn(ctx, q.In(keyspace.Space{Namespace: namespace, Kind: kind}))
		if err != nil && len(lines) == 0 {
			return false, err
		}
		why = cmp.Or(why, err)
		times, missing = times || timed, append(missing, lines...)
	}
	if len(missing) > 0 {
		needs := fmt.Errorf("%w: the query needs an index: add these lines to index.yaml, and wait until it is "+
			"built:\nindexes:\n%s\nThe database says: %w", fault.ErrArguments, strings.Join(missing, "\n"), why)
		return false, orWithout(q, needs)
	}
	return times, nil
}

// orWithout returns the error needs, which says that the query q needs an index. If q can be
// written such that it needs none, the error also says how.
func orWithout(q query.Query, needs error) error {
	if without := q.WithoutIndex(); without != nil {
		return fmt.Errorf("%w\nOr %w", needs, without)
	}
	return needs
}

// CheckTime returns an error if the database can't read its state at the given time.
func (src Source) CheckTime(ctx context.Context, at time.Time) error {
	src.At = snapshotAt(ctx, src.Client, at)
	return src.probeSnapshot(ctx)
}

// probeSnapshot returns an error if the database can't read its state at a past time. Google's
// classic emulator ignores the time without an error. So probeSnapshot also returns an error for a
// database without property masks, which only this emulator lacks.
func (src Source) probeSnapshot(ctx context.Context) error {
	switch modern, err := src.HonoursMasks(ctx); {
	case err != nil:
		return err
	case !modern:
		return fmt.Errorf("%w: this is Google's classic emulator, which can't read its state at a past time: omit the "+
			"read time, or use another emulator", fault.ErrArguments)
	}
	_, err := src.At.transaction()
	if errors.As(err, new(snapshotError)) {
		err = fmt.Errorf("%w: %w", fault.ErrArguments, err)
	}
	return err
}

// unserved marks an error as the user's mistake if the database says that it does not support the
// query. It returns other errors unchanged.
func unserved(err error) error {
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.Unimplemented {
		return fmt.Errorf("%w: the database does not serve the query: %w", fault.ErrArguments, err)
	}
	return err
}

// probeIn does the work of Probe in one kind and namespace. If the database lacks indexes, missing
// has their lines for index.yaml, and err is the database's error.
func (src Source) probeIn(ctx context.Context, q query.Query) (times bool, missing []string, err error) {
	if q.Plain() {
		return false, nil, nil
	}
	var group sync.WaitGroup
	samples := q.Samples()
	answers := make([]error, len(samples))
	for i, s := range samples {
		group.Go(func() { _, answers[i] = src.First(ctx, s, 0) })
	}
	var first *keyspace.Position
	group.Go(func() { first, err = src.Find(ctx, q.Scans(nil, nil), 0) })
	group.Wait()
	var why error
	for i, s := range samples {
		switch index := q.Index(s); {
		case status.Code(answers[i]) == codes.FailedPrecondition:
			if why = answers[i]; !slices.Contains(missing, index) {
				missing = append(missing, index)
			}
		case errors.Is(answers[i], errForeign):
			err = cmp.Or(err, answers[i])
		case answers[i] != nil:
			why := unserved(answers[i])
			if errors.Is(why, fault.ErrArguments) {
				why = orWithout(q, why)
			}
			return false, nil, why
		}
	}
	if why != nil {
		return false, missing, why
	}
	if errors.Is(err, errForeign) {
		err = fmt.Errorf("%w: %w", fault.ErrArguments, err)
	}
	if err != nil || first == nil || !first.Valued {
		return false, nil, err
	}
	stored, err := EntityReader(src.Stored(ctx))([]*keyspace.Position{first})
	if err != nil {
		return false, nil, err
	}
	return slices.ContainsFunc(property.Indexed(stored[0].Entity, q.ShardBy), keyspace.IsTime), nil, nil
}

// HonoursMasks reports whether the database supports property masks: a write with a mask keeps the
// properties that the mask does not name. Google's classic emulator deletes these properties, so
// scattermap writes whole entities there. HonoursMasks sends a count to recognize this emulator,
// because no other database lacks counts.
func (src Source) HonoursMasks(ctx context.Context) (bool, error) {
	nothing := datastore.NewQuery(record.JobKind).Limit(1).KeysOnly().NewAggregationQuery().WithCount("n")
	_, err := src.Client.RunAggregationQuery(ctx, nothing)
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	return err == nil, err
}
