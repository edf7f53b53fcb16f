package mapper

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/survey"
)

// A Split is a part of a query.
type Split struct {
	// Query is the part: the query with Start and End, or with bounds of its ShardBy. A job can
	// be over it; see also [Query.DatastoreQuery].
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
	q, err := splitQuery(client, query, n)
	if err != nil {
		return fail(err)
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

// A SplitsComparison says how even the parts are that several ways cut a query into.
type SplitsComparison struct {
	Entities int64       `json:"entities"` // of the query
	Parts    int         `json:"parts"`    // that were asked for
	Mean     float64     `json:"mean"`     // of entities of a part; 1 if there are more parts than entities
	Ways     []SplitsWay `json:"ways"`
}

// A SplitsWay is a way to cut a query.
type SplitsWay struct {
	// Way is "lexicographic" (the key space between the first and the last key is cut into equal
	// parts), "scatter" (at as many keys as needed, drawn by __scatter__), "oversampled" (at one in
	// 32 of such keys), or "splits" (as [Splits] does).
	Way string `json:"way"`

	Asked   int     `json:"asked"`   // how many keys with __scatter__ were asked for; -1: it is not known
	Sampled int     `json:"sampled"` // how many came; fewer than Asked if no more entities have it; -1: it is not known
	Parts   int     `json:"parts"`   // there are fewer than asked for where too few keys are known
	Empty   int     `json:"empty"`   // of them, those without an entity
	Largest int64   `json:"largest"` // the entities of the largest
	Ratio   float64 `json:"ratio"`   // Largest as a multiple of the mean; 0 if there is no entity
	Each    []int64 `json:"each"`    // the entities of each part

	Note string `json:"note,omitempty"` // that fewer keys came than were asked for
}

// fewKeys says that a way got fewer keys than it asked for; "" if it got all.
func fewKeys(asked, sampled int) string {
	switch {
	case sampled >= asked:
		return ""
	case sampled == 0:
		return "no entity has __scatter__, so it is cut nowhere"
	}
	return fmt.Sprintf("only %d of the %d keys that were asked for have __scatter__", sampled, asked)
}

// splitQuery checks the arguments of a call that splits a query.
func splitQuery(client *datastore.Client, q Query, n int) (query.Query, error) {
	normal, err := q.inner().Normal(false)
	switch {
	case client == nil:
		err = errors.New("the client is nil")
	case n < 1 || n > maxSplits:
		err = fmt.Errorf("the number of splits has to be in [1, %d], it is %d", maxSplits, n)
	case err == nil && normal.Many():
		err = errors.New("the query is over several kinds or namespaces: split each")
	}
	if err != nil {
		return normal, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return normal, nil
}

// CompareSplits cuts a query over the keys of one kind in one namespace into n parts, in [1,
// 10000], in four ways, and says how even the parts are. It counts all entities, which costs a read
// for a thousand of them and up to 4n counts. If there are fewer than 10,000, or the database does
// not count, it reads all keys. A way that draws keys needs all that it asks for: if there are too
// few entities with __scatter__, the comparison says little of it, and Note says so.
func CompareSplits(ctx context.Context, client *datastore.Client, query Query, n int) (*SplitsComparison, error) {
	fail := func(err error) (*SplitsComparison, error) {
		return nil, fmt.Errorf("mapper: compare splits: %w", err)
	}
	q, err := splitQuery(client, query, n)
	switch {
	case err != nil:
		return fail(err)
	case q.ShardBy != "":
		return fail(setting.Errorf("%w: Query.ShardBy is %q, and ways to cut between keys are compared",
			ErrInvalidArgument,
			q.ShardBy))
	}
	ways, err := survey.Compare(ctx, source.New(client, nil).Of(ctx, q), q, n)
	if err != nil {
		return fail(err)
	}
	c := &SplitsComparison{Parts: n}
	for _, count := range ways[0].Counts {
		c.Entities += count
	}
	if c.Entities > 0 {
		c.Mean = max(1, float64(c.Entities)/float64(n))
	}
	for _, w := range ways {
		way := SplitsWay{Way: w.Name, Asked: w.Asked, Sampled: w.Sampled, Parts: len(w.Counts), Each: w.Counts,
			Note: fewKeys(w.Asked, w.Sampled)}
		for _, count := range w.Counts {
			way.Largest = max(way.Largest, count)
			if count == 0 {
				way.Empty++
			}
		}
		if c.Entities > 0 {
			way.Ratio = float64(way.Largest) / c.Mean
		}
		c.Ways = append(c.Ways, way)
	}
	return c, nil
}
