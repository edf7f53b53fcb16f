package mapper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
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

	// exactSplits is up to how many entities samples are too few to be of use, whatever the
	// database: each of their keys is passed once.
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
// part. The parts follow each other, have all entities of the query, and none in common: but an
// entity that has several values of ShardBy may be in several. There are fewer where the query
// has too few entities, or too few values to cut between.
//
// A whole kind is cut at keys sampled by __scatter__, which costs a read for every 300 of 24
// samples a part. Of a kind with fewer samples, or up to 10,000 entities, and of all other queries
// 8 cells a part are counted, which costs a read for a thousand entities, and the parts end
// inside cells: to find that passes the keys of each cell at most once.
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
	src := newSource(client, nil).of(ctx, q)
	if q.times, err = src.probe(ctx, q); err != nil {
		return fail(err)
	}
	boundaries, err := src.boundaries(ctx, q, n)
	if err != nil {
		return fail(err)
	}
	splits := q.splitAt(boundaries)
	if opts.Count {
		counts, err := src.countAll(ctx, q, boundaries)
		if err != nil && status.Code(err) != codes.Unimplemented {
			return fail(fmt.Errorf("count: %w", err))
		}
		for i := range splits {
			if splits[i].Entities = -1; err == nil {
				splits[i].Entities = counts[i]
			}
		}
	}
	return splits, nil
}

// boundaries returns up to n-1 positions that cut the query.
func (src source) boundaries(ctx context.Context, q Query, n int) ([]*keyspace.Position, error) {
	look := survey{source: src, query: q}
	var candidates []*keyspace.Position
	var err error
	if q.ShardBy != "" {
		candidates, err = look.values(ctx, cellsPerSplit*n)
		candidates = slices.DeleteFunc(candidates, func(p *keyspace.Position) bool { return !q.bounding(p) })
	} else {
		candidates, err = look.inside(ctx, max(leastSampled, samplesPerSplit*n))
	}
	if err != nil {
		return nil, err
	}
	ones := make([]int64, len(candidates)+1)
	for i := range ones {
		ones[i] = 1 // as likely as others to have an entity more
	}
	if total, known := look.count(ctx, nil, exactSplits+1); q.plain() && len(candidates) >= samplesPerSplit*n/2 && (!known || total > exactSplits) {
		return evenly(candidates, ones, n), nil
	} else if known && total <= exactSplits {
		candidates = nil
	}
	candidates = some(candidates, cellsPerSplit*n)
	counts, err := src.countAll(ctx, q, candidates)
	switch {
	case err == nil:
		return src.exactly(ctx, q, n, candidates, counts)
	case status.Code(err) != codes.Unimplemented:
		return nil, err
	case len(candidates) == 0:
		return nil, errors.New("the database neither counts entities nor has samples of them, so nothing is known of where they are")
	}
	return evenly(candidates, ones[:len(candidates)+1], n), nil
}

// bounding reports whether the value of a position can bound a query.
func (q Query) bounding(p *keyspace.Position) bool {
	if !p.Valued {
		return true
	}
	_, err := Where(q.ShardBy, "<", p.Value).normal()
	return err == nil
}

// some returns up to n of the positions, evenly.
func some(all []*keyspace.Position, n int) []*keyspace.Position {
	if len(all) <= n {
		return all
	}
	few := make([]*keyspace.Position, n)
	for i := range few {
		few[i] = all[(2*i+1)*len(all)/(2*n)]
	}
	return few
}

// evenly returns up to n-1 of the positions, so that what is between them counts about the same.
// There is a count for what is before each of them, and one for what is behind the last.
func evenly(at []*keyspace.Position, counts []int64, n int) (cuts []*keyspace.Position) {
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

// exactly cuts a query at every n-th part of its entities, of which there are so many before each
// of some positions, after the one before, and behind the last. Where one of these is near it
// cuts there. Between values it cuts at most where one ends.
func (src source) exactly(ctx context.Context, q Query, n int, at []*keyspace.Position, counts []int64) (cuts []*keyspace.Position, err error) {
	total := int64(0)
	for _, c := range counts {
		total += c
	}
	first, err := src.find(ctx, q.scans(nil, nil), 0)
	if err != nil || first == nil {
		return nil, err
	}
	value := func(p *keyspace.Position) *keyspace.Position { // where its value begins
		if !p.Valued {
			return p
		}
		return &keyspace.Position{Namespace: q.Namespace, Kind: q.Kind, Valued: true, Value: p.Value}
	}
	last := value(first)        // what the next cut has to be behind
	cell, before := 0, int64(0) // the cell that is looked at, and how many entities are before it
	var from *keyspace.Position // where it begins, or a position inside
	passed := int64(0)          // how many are before that
	for i := 1; i < n; i++ {
		rank := total * int64(i) / int64(n)
		for before+counts[cell] <= rank && cell < len(at) {
			before, cell = before+counts[cell], cell+1
			from, passed = at[cell-1], before
		}
		near := total / int64(10*n) // of the mean: a tenth
		found := from
		if rank-passed > near || from == nil {
			if found, err = src.find(ctx, q.scans(from, nil), rank-passed); err != nil {
				return nil, err
			}
			if found == nil { // some have gone
				break
			}
			from, passed = found, rank
		}
		if cut := value(found); keyspace.Compare(last, cut) < 0 && q.bounding(cut) {
			cuts, last = append(cuts, cut), cut
		}
	}
	return cuts, nil
}

// countAll counts what is before each position, after the one before, and behind the last, some
// at the same time.
func (src source) countAll(ctx context.Context, q Query, at []*keyspace.Position) (counts []int64, err error) {
	counts = make([]int64, len(at)+1)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	for i := range counts {
		var start, end *keyspace.Position
		if i > 0 {
			start = at[i-1]
		}
		if i < len(at) {
			end = at[i]
		}
		group.Go(func() error {
			for _, s := range q.scans(start, end) {
				n, err := src.counted(gctx, s, 0)
				if err != nil {
					return err
				}
				counts[i] += n
			}
			return nil
		})
	}
	return counts, group.Wait()
}

// splitAt returns the parts of the query between positions.
func (q Query) splitAt(at []*keyspace.Position) []Split {
	splits := make([]Split, len(at)+1)
	for i := range splits {
		var start, end *keyspace.Position
		if i > 0 {
			start = at[i-1]
		}
		if i < len(at) {
			end = at[i]
		}
		splits[i] = Split{Query: q.between(start, end), Entities: -1}
	}
	return splits
}

// between returns the part of the query from one position on, and before another. A nil one
// bounds nothing.
func (q Query) between(start, end *keyspace.Position) Query {
	q.Filters = slices.Clone(q.Filters)
	bound := func(p *keyspace.Position, op string, key **datastore.Key) {
		switch {
		case p == nil:
		case p.Valued:
			q.Filters = append(q.Filters, Where(q.ShardBy, op, p.Value))
		default:
			*key = p.Key
		}
	}
	bound(start, ">=", &q.Start)
	bound(end, "<", &q.End)
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
		d = q.byValue(d)
	}
	if q.KeysOnly {
		d = d.KeysOnly()
	}
	return d, nil
}
