package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Find returns the position of the n-th entity in the results of several scans, one after the
// other. A scan is a Datastore query for entities in order. Find counts from 0, and returns nil if
// the scans have at most n results.
func (src Source) Find(ctx context.Context, scans []query.Scan, n int64) (found *keyspace.Position, err error) {
	for i, s := range scans {
		if found, err = src.First(ctx, s, n); err != nil || found != nil || i == len(scans)-1 {
			return found, err
		}
		passed, err := src.countIn(ctx, s, n)
		if err != nil {
			return nil, err
		}
		n -= passed
	}
	return nil, nil
}

// First returns the position of the n-th result of a scan. It counts from 0, and returns nil if the
// scan has at most n results. If the scan is limited to a share of the keys (see [query.Share]),
// the position is an estimate: about n entities of the share come before it.
func (src Source) First(ctx context.Context, s query.Scan, n int64) (found *keyspace.Position, err error) {
	s.Query = s.Query.Offset(int(s.Share.Keys(n))).Limit(1)
	return found, src.EachIn(ctx, s, func(p *keyspace.Position) bool {
		found = p
		return false
	})
}

// countIn returns how many results a scan has, but at most most. If the database can't count, it
// reads them.
func (src Source) countIn(ctx context.Context, s query.Scan, most int64) (n int64, err error) {
	if n, known := src.Count(ctx, []query.Scan{s}, int(most)); known {
		return n, nil
	}
	s.Query = s.Query.Limit(int(s.Share.Keys(most)))
	return n, src.EachIn(ctx, s, func(p *keyspace.Position) bool {
		if s.Share.Has(p.Key) {
			n++
		}
		return true
	})
}

// Sample returns a random sample of the query's keys, sorted. It has up to n keys, which together
// take up to maxBytes. Datastore gives a hidden property, __scatter__, with random values to a
// random part of the entities. The sample has the keys with the least values, so even a small
// sample is random. An empty sample says nothing about the number of entities.
func (src Source) Sample(ctx context.Context, q query.Query, n, maxBytes int) ([]*keyspace.Position, error) {
	var sample []*keyspace.Position
	err := src.EachIn(ctx, query.Scan{Query: q.Sample(n)}, func(p *keyspace.Position) bool {
		maxBytes -= keyspace.KeySize(p.Key)
		if maxBytes >= 0 {
			sample = append(sample, p)
		}
		return maxBytes >= 0
	})
	return keyspace.Sort(sample), err
}

// EachIn calls f for the positions of a scan's results, in order, until f returns false.
func (src Source) EachIn(ctx context.Context, s query.Scan, f func(*keyspace.Position) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	it, err := src.results(ctx, s, false)
	if err != nil {
		return err
	}
	for {
		p, _, err := next(s, it, nil)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		if !f(p) {
			return nil
		}
	}
}

// Count returns how many results the scans have together, but at most most. If the database can't
// count, known is false. Count returns no error, because callers use counts only to choose good
// cuts.
func (src Source) Count(ctx context.Context, scans []query.Scan, most int) (n int64, known bool) {
	for _, s := range scans {
		more, known := src.CountOne(ctx, s, most-int(n))
		if !known {
			return 0, false
		}
		if n += more; n >= int64(most) {
			break
		}
	}
	return n, true
}

// CountOne does the same as [Source.Count] for one scan.
func (src Source) CountOne(ctx context.Context, s query.Scan, most int) (n int64, known bool) {
	n, err := src.Counted(ctx, s, most)
	if err != nil && status.Code(err) != codes.Unimplemented && ctx.Err() == nil {
		src.log.LogAttrs(ctx, slog.LevelDebug, "entities can't be counted, and are estimated", slog.Any("error", err))
	}
	return n, err == nil
}

// Counted returns how many results a scan has. If most is not 0, the result is at most most. If the
// scan is limited to a share of the keys, the number is an estimate.
func (src Source) Counted(ctx context.Context, s query.Scan, most int) (int64, error) {
	if !src.Counts() {
		return 0, errUncounted
	}
	q, err := src.At.Query(s.Query)
	if err != nil {
		return 0, err
	}
	if most > 0 {
		q = q.Limit(int(s.Share.Keys(int64(most))))
	}
	result, err := src.Client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount("n"))
	if status.Code(err) == codes.Unimplemented {
		src.CantCount()
	}
	if err != nil {
		return 0, err
	}
	value, ok := result["n"].(*datastorepb.Value)
	if !ok {
		return 0, fmt.Errorf("the answer to a count has %T", result["n"])
	}
	return s.Share.Part(value.GetIntegerValue()), nil
}

// errUncounted is the error of each count after the database has answered once that it can't count.
var errUncounted = status.Error(codes.Unimplemented, "the database does not implement aggregations")

// errNoValue is the error for a query result that lacks the property by which the query is ordered.
// In Datastore, the index of a property has only entities with the property. The error is fatal,
// because a retry does not help.
var errNoValue = fault.Fatal(errors.New(
	"the database returned an entity without the property that the query is ordered by"))

// results sends the query of a scan, and returns an iterator over its results. If whole is set,
// they are whole entities, and otherwise only what is needed to know their positions.
func (src Source) results(ctx context.Context, s query.Scan, whole bool) (*results, error) {
	q, err := src.At.Query(s.Reading(whole))
	if err != nil {
		return nil, err
	}
	r := new(results)
	if s.Property != "" && !s.Fixed {
		r.foreign = &foreign{property: s.Property}
		ctx = intercept.With(ctx, r.foreign)
	}
	r.Iterator = src.Client.Run(ctx, q)
	return r, nil
}

// A results iterates over the results of a scan.
type results struct {
	*datastore.Iterator
	foreign *foreign // nil: the results are not ordered by a property with several values
}

// A foreign is an [intercept.Call] that finds results whose value is a key of another project or
// database. The Go client takes such a key for one of its own project. So the position of the
// result would be wrong, and a range that starts or ends there would miss entities.
type foreign struct {
	property string
	mu       sync.Mutex
	found    map[string]value.Foreign // these values, by the text of the entity's key
}

// Request implements intercept.Call.
func (f *foreign) Request(any) error { return nil }

// Refused implements intercept.Call.
func (f *foreign) Refused(err error) error { return err }

// Answer implements intercept.Call.
func (f *foreign) Answer(resp any) {
	r, ok := resp.(*datastorepb.RunQueryResponse)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, result := range r.GetBatch().GetEntityResults() {
		e := result.GetEntity()
		for _, v := range value.Indexed(e, f.property) {
			if key, is := value.Go(e, v).(value.Foreign); is {
				if f.found == nil {
					f.found = make(map[string]value.Foreign)
				}
				f.found[pbkey.TextOf(e.GetKey())] = key
			}
		}
	}
}

// check returns an error if the value of the entity with this key is a key of another project or
// database. The error is fatal, because a retry does not help.
func (f *foreign) check(key *datastore.Key) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found == nil {
		return nil
	}
	v, is := f.found[pbkey.Text(key)]
	if !is {
		return nil
	}
	return fault.Fatal(setting.Errorf("%w: in the entity %s, %q is %s: start a job without Query.ShardBy, and without "+
		"Query.KeysOnly if it has inequalities", errForeign, names.Key(key), f.property, value.Text(v)))
}

// errForeign is the error of a job that is sharded by a property with keys of other projects.
var errForeign = errors.New("a job can't be sharded by a property that has keys of another project or database")

// next reads the next result of a scan, and returns its position. If taken is not nil, the result
// has a whole entity. Then next also returns its stamp (the entity with its version), and removes
// it from taken. A projection returns an entity once for each value of a property, so the same
// entity may come several times.
func next(
	s query.Scan, it *results, taken *wire.Versions,
) (p *keyspace.Position, stamp wire.Stamp, err error) {
	var dst any
	var entity loaded
	if taken != nil || s.Property != "" && !s.Fixed {
		dst = &entity
	}
	key, err := it.Next(dst)
	if err != nil {
		return nil, stamp, err
	}
	if taken != nil {
		if len(taken.Of) == 0 || taken.Of[0].Entity == nil {
			return nil, stamp, errUntaken
		}
		stamp, taken.Of = taken.Of[0], taken.Of[1:]
	}
	p = keyspace.At(key)
	if s.Property == "" {
		return p, stamp, nil
	}
	if err := it.foreign.check(key); err != nil {
		return nil, stamp, err
	}
	p.Valued, p.Value = true, s.Value
	if !s.Fixed {
		read := stamp.Entity
		if taken == nil {
			if read, err = pbvalue.Entity(nil, entity, false); err != nil {
				return nil, stamp, err
			}
		}
		values := property.Indexed(read, s.Property)
		if len(values) != 1 {
			return nil, stamp, errNoValue
		}
		p.Value = values[0]
		if micros, ok := p.Value.(int64); ok && s.Times && taken == nil {
			if t := time.UnixMicro(micros).UTC(); keyspace.Storable(t) { // other values are integers
				p.Value = t
			}
		}
	}
	return p, stamp, nil
}
