package mapper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
)

// A Split is a part of a query.
type Split struct {
	// Query is the part: the query with Start and End, or with bounds of its ShardBy. A job can
	// be over it; see also [Query.Datastore].
	Query Query `json:"query"`

	// Entities is how many it has; -1 if that was not asked for, or the database does not
	// count.
	Entities int64 `json:"entities"`
}

// SplitsOptions change how a query is split. The zero value of each field is its default.
type SplitsOptions struct {
	// Count has the entities of each split counted. That costs a read for a thousand of them.
	Count bool
}

// The constants of Splits.
const (
	maxSplits = 10_000

	// exactSplits is up to how many entities are cut exactly: that passes each of their keys
	// once.
	exactSplits = 10_000

	// samplesPerSplit is how many samples are drawn for each split, and at least: the largest of
	// 100 splits is then 1.6 times the mean [simulation]. Nothing mends the splits later.
	samplesPerSplit, leastSampled = 24, 512

	// cellsPerSplit is how many cells are counted for each split where samples say nothing of
	// how many entities there are.
	cellsPerSplit = 8
)

// Splits cuts a query over one kind in one namespace into up to n parts, in [1, 10000], that
// have about as many entities each, for engines that read them in parallel: one reader for each
// part. The parts follow each other, have all entities of the query, and none in common. There
// are fewer where the query has too few entities, or too few values to cut between.
//
// Up to 10,000 entities are cut exactly. More are cut at keys sampled by __scatter__, which costs
// a read for every 300 of 24 samples a part. With filters, an ancestor, bounds or ShardBy those
// say little of how many entities there are: then 8 cells a part are counted besides, which
// costs a read for a thousand entities. If the database has no samples each key is passed once.
func Splits(ctx context.Context, client *datastore.Client, q Query, n int, o *SplitsOptions) ([]Split, error) {
	var opts SplitsOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) ([]Split, error) { return nil, fmt.Errorf("mapper: splits: %w", err) }
	q, err := q.normal(visit)
	switch {
	case client == nil:
		return fail(fmt.Errorf("%w: the client is nil", ErrArguments))
	case n < 1 || n > maxSplits:
		return fail(fmt.Errorf("%w: the number of splits has to be in [1, %d], it is %d", ErrArguments, maxSplits, n))
	case err != nil:
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	case q.many():
		return fail(fmt.Errorf("%w: the query is over several kinds or namespaces: split each", ErrArguments))
	}
	e := &Engine{client: client, log: slog.New(slog.DiscardHandler)}
	q.at = e.snapshot(ctx, q)
	if q.times, err = e.probe(ctx, q); err != nil {
		return fail(err)
	}
	boundaries, err := e.boundaries(ctx, q, n)
	if err != nil {
		return fail(err)
	}
	splits := q.splitAt(boundaries)
	if opts.Count {
		counts, _ := e.countAll(ctx, q, boundaries)
		for i := range splits {
			splits[i].Entities = counts[i]
		}
	}
	return splits, nil
}

// boundaries returns up to n-1 positions that cut the query.
func (e *Engine) boundaries(ctx context.Context, q Query, n int) ([]*position, error) {
	look := lookAround{engine: e, query: q}
	total, known := look.count(ctx, nil, exactSplits)
	if known && total < exactSplits {
		return e.exactly(ctx, q, n, total)
	}
	var candidates []*position
	var err error
	switch {
	case q.plain():
		candidates, err = look.inside(ctx, max(leastSampled, samplesPerSplit*n))
	case q.ShardBy != "":
		candidates, err = look.values(ctx, cellsPerSplit*n)
	default:
		candidates, err = look.inside(ctx, max(leastSampled, samplesPerSplit*n))
		candidates = some(candidates, cellsPerSplit*n)
	}
	if err != nil {
		return nil, err
	}
	if len(candidates) == 0 {
		if total, known = look.count(ctx, nil, mostCounted); !known {
			return nil, errors.New("the database neither counts entities nor has samples of them, so nothing is known of where they are")
		}
		return e.exactly(ctx, q, n, total)
	}
	counts := make([]int64, len(candidates)+1)
	for i := range counts {
		counts[i] = 1 // as likely as others to have an entity more
	}
	if !q.plain() {
		if counted, known := e.countAll(ctx, q, candidates); known {
			counts = counted
		}
	}
	return evenly(candidates, counts, n), nil
}

// some returns up to n of the positions, evenly.
func some(all []*position, n int) []*position {
	if len(all) <= n {
		return all
	}
	few := make([]*position, n)
	for i := range few {
		few[i] = all[(2*i+1)*len(all)/(2*n)]
	}
	return few
}

// evenly returns up to n-1 of the positions, so that what is between them counts about the same.
// There is a count for what is before each of them, and one for what is behind the last.
func evenly(at []*position, counts []int64, n int) (cuts []*position) {
	total := int64(0)
	for _, c := range counts {
		total += c
	}
	before, cut := int64(0), int64(0) // what is before this position, and before the last cut
	for i, p := range at {
		before += counts[i]
		left := n - len(cuts)
		// What is left is shared evenly: the next cut is where that is nearest.
		if left > 1 && before > cut && before < total && 2*(before-cut)+counts[i+1] > 2*(total-cut)/int64(left) {
			cuts, cut = append(cuts, p), before
		}
	}
	return cuts
}

// exactly cuts a query of so many entities at every total/n-th of them. Between values it cuts
// at most where one ends.
func (e *Engine) exactly(ctx context.Context, q Query, n int, total int64) (cuts []*position, err error) {
	passed := int64(0)
	at, err := e.find(ctx, q.scans(nil, nil), 0)
	if err != nil || at == nil {
		return nil, err
	}
	value := func(at *position) *position { // where its value begins
		if !at.Valued {
			return at
		}
		return &position{Namespace: q.Namespace, Kind: q.Kind, Valued: true, Value: at.Value}
	}
	last := value(at)
	for i := 1; i < n; i++ {
		rank := total * int64(i) / int64(n)
		if rank == passed {
			continue
		}
		if at, err = e.find(ctx, q.scans(at, nil), rank-passed); err != nil || at == nil {
			return cuts, err
		}
		passed = rank
		if cut := value(at); comparePositions(last, cut) < 0 {
			cuts, last = append(cuts, cut), cut
		}
	}
	return cuts, nil
}

// countAll counts what is before each position, and behind the last one, all at the same time;
// -1 is unknown.
func (e *Engine) countAll(ctx context.Context, q Query, at []*position) (counts []int64, known bool) {
	counts, known = make([]int64, len(at)+1), true
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(sweepParallel)
	for i := range counts {
		var start, end *position
		if i > 0 {
			start = at[i-1]
		}
		if i < len(at) {
			end = at[i]
		}
		group.Go(func() error {
			n, ok := e.count(ctx, q.scans(start, end), math.MaxInt32)
			mu.Lock()
			defer mu.Unlock()
			if counts[i] = n; !ok {
				counts[i], known = -1, false
			}
			return nil
		})
	}
	_ = group.Wait()
	return counts, known
}

// splitAt returns the parts of the query between positions.
func (q Query) splitAt(at []*position) []Split {
	splits := make([]Split, len(at)+1)
	for i := range splits {
		part := q
		part.at = nil
		if i > 0 {
			part = part.from(at[i-1])
		}
		if i < len(at) {
			part = part.before(at[i])
		}
		splits[i] = Split{Query: part, Entities: -1}
	}
	return splits
}

// from returns the part of the query from a position on, and before the one that is before it.
func (q Query) from(p *position) Query {
	if p.Valued {
		q.Filters = append(q.Filters[:len(q.Filters):len(q.Filters)], Where(q.ShardBy, ">=", p.Value))
		return q
	}
	q.Start = p.Key
	return q
}

func (q Query) before(p *position) Query {
	if p.Valued {
		q.Filters = append(q.Filters[:len(q.Filters):len(q.Filters)], Where(q.ShardBy, "<", p.Value))
		return q
	}
	q.End = p.Key
	return q
}

// Datastore returns the query for the client, for readers of a [Split]. It is in the order of
// the property of ShardBy, or of keys. ReadTime is not part of it: that is an option of a
// client, or of a transaction. It is an error if the query is over several kinds or namespaces.
func (q Query) Datastore() (*datastore.Query, error) {
	q, err := q.normal(visit)
	if err == nil && q.many() {
		err = errors.New("the query is over several kinds or namespaces")
	}
	if err != nil {
		return nil, fmt.Errorf("mapper: query: %w: %w", ErrArguments, err)
	}
	low, high := q.bounds()
	d := q.base()
	if q.ShardBy == "" {
		d = withKeys(d.Order("__key__"), low, high)
	} else {
		for _, f := range q.Filters {
			if f.Property == q.ShardBy {
				d = d.FilterField(f.Property, f.Op, f.Value)
			}
		}
		d = d.Order(q.ShardBy)
	}
	if q.KeysOnly {
		d = d.KeysOnly()
	}
	return d, nil
}
