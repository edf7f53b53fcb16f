package mapper

import (
	"context"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/survey"
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

// maxSplits is the most parts that a query is cut into.
const maxSplits = 10_000

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
func Splits(ctx context.Context, client *datastore.Client, query Query, n int, o *SplitsOptions) ([]Split, error) {
	var opts SplitsOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) ([]Split, error) { return nil, fmt.Errorf("mapper: splits: %w", err) }
	q, err := query.inner().Normal(false)
	switch {
	case client == nil:
		return fail(fmt.Errorf("%w: the client is nil", ErrArguments))
	case n < 1 || n > maxSplits:
		return fail(fmt.Errorf("%w: the number of splits has to be in [1, %d], it is %d", ErrArguments, maxSplits, n))
	case err != nil:
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	case q.Many():
		return fail(fmt.Errorf("%w: the query is over several kinds or namespaces: split each", ErrArguments))
	}
	parts, err := survey.Parts(ctx, source.New(client, nil).Of(ctx, q), q, n, opts.Count)
	if err != nil {
		return fail(err)
	}
	splits := make([]Split, len(parts))
	for i, p := range parts {
		splits[i] = Split{Query: publicQuery(p.Query), Entities: p.Entities}
	}
	return splits, nil
}
