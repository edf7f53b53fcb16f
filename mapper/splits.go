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

// A Split is one of the parts into which [Splits] cuts a query.
type Split struct {
	// Query selects the part: it is the query with Start and End, or with bounds on its ShardBy
	// property. Run a job over it, or read it with [Query.DatastoreQuery].
	Query Query `json:"query"`

	// Entities is the number of entities in the part. It is -1 without SplitsOptions.Count, or if
	// the database can't count.
	Entities int64 `json:"entities"`
}

// SplitsOptions are the settings of [Splits]. The zero value has all defaults.
type SplitsOptions struct {
	// Count counts the entities of each split, at a read for 1,000 entities. Defaults to false.
	Count bool
}

// maxSplits is how many parts a query has at most.
const maxSplits = 10_000

// Splits cuts a query over one kind in one namespace into up to n parts, in [1, 10000], with about
// the same number of entities each. Use it for another engine that reads them in parallel, with one
// reader for each part. The parts are in order. Together they have all entities of the query, each
// in one part only. The exception is an entity with several values of ShardBy, which may be in
// several parts. There are fewer than n parts if the query has too few entities or values. A nil o
// has all defaults.
//
// A whole kind is cut at a sample of its keys: the keys of a random share of the entities, which
// Datastore marks by the property __scatter__. Splits reads 24 sampled keys for each part, and 300
// of them cost a read.
//
// Kinds with fewer samples or up to 10,000 entities, and all other queries, are cut by counting.
// For each part, the space of keys or values has eight cells. The entities of each cell are
// counted, at a read for 1,000 entities. To end a part inside a cell, Splits reads the cell's keys
// once.
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

// A SplitsComparison is the result of [CompareSplits]: how even the parts of a query are, for
// several ways of cutting it.
type SplitsComparison struct {
	Entities int64       `json:"entities"` // of the query
	Parts    int         `json:"parts"`    // the number requested
	Mean     float64     `json:"mean"`     // entities of a part; 1 if there are more parts than entities
	Ways     []SplitsWay `json:"ways"`
}

// A SplitsWay is how even the parts are for one way of cutting a query.
type SplitsWay struct {
	// Way is one of:
	//
	//   - "lexicographic": the key space between the first and the last key is cut into equal parts
	//   - "scatter": one sampled key (__scatter__) for each part is read, and the cuts are at these keys
	//   - "oversampled": 32 sampled keys for each part are read, and the cuts are at every 32nd
	//   - "splits": as [Splits] cuts it
	Way string `json:"way"`

	Asked   int     `json:"asked"`   // sampled keys requested; -1 if unknown
	Sampled int     `json:"sampled"` // sampled keys found; -1 if unknown
	Parts   int     `json:"parts"`   // fewer than requested if there are too few keys
	Empty   int     `json:"empty"`   // parts without an entity
	Largest int64   `json:"largest"` // entities of the largest part
	Ratio   float64 `json:"ratio"`   // Largest as a multiple of the mean; 0 if there is no entity
	Each    []int64 `json:"each"`    // entities of each part

	Note string `json:"note,omitempty"` // not empty if Sampled is less than Asked: says so
}

// fewKeys returns the Note of a way that got fewer keys than it requested, or "".
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
// 10000], in four ways, and says how even the parts are. It counts all entities, at a read for
// 1,000 entities, in up to 4n counts. If there are fewer than 10,000 entities, or the database
// can't count, it reads all keys. If there are too few sampled keys (__scatter__) for a way, the
// comparison says little about that way, and its Note says so.
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
