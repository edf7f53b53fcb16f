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

// A Split is a part of a query: see [Splits].
type Split struct {
	// Query selects the part. It is the whole query, with Start and End set, or with bounds on its
	// ShardBy property. Run a job over it, or read it with [Query.DatastoreQuery].
	Query Query `json:"query"`

	// Entities is the number of entities in the part, if SplitsOptions.Count is set. Without Count,
	// or if the database can't count, it is -1.
	Entities int64 `json:"entities"`
}

// SplitsOptions are the settings of [Splits]. The zero value has all defaults.
type SplitsOptions struct {
	// Count counts the entities of each split, at a read for 1,000 entities. Defaults to false.
	Count bool
}

// maxSplits is the largest number of parts into which a query can be cut.
const maxSplits = 10_000

// Splits cuts a query over one kind in one namespace into up to n parts with about the same number
// of entities each. Use it for another program that reads the parts in parallel. The number n is in
// [1, 10000]. The parts are in order, and each entity is in exactly one part. The exception is an
// entity with several values of ShardBy, which may be in several parts. If the query has too few
// entities or values, there are fewer than n parts. A nil o has all defaults.
//
// Splits cuts a whole kind at a sample of its keys: Datastore adds the hidden property __scatter__
// to a random share of the entities. Splits reads 24 sampled keys for each part; 300 of them cost
// one read.
//
// Splits counts instead if the query is not a whole kind, or if the kind has up to 10,000 entities.
// It also counts if the kind has fewer than 12 sampled keys for each part. Then it divides the
// space of keys or values into eight cells for each part, and counts the entities of each cell, at
// one read for 1,000 entities. If a part ends inside a cell, Splits also reads the cell's keys.
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

// A SplitsComparison is the result of [CompareSplits].
type SplitsComparison struct {
	Entities int64       `json:"entities"` // the query's number of entities
	Parts    int         `json:"parts"`    // the number requested
	Mean     float64     `json:"mean"`     // mean number of entities in a part; at least 1
	Ways     []SplitsWay `json:"ways"`
}

// A SplitsWay says how even the parts are if a query is cut in one of several ways.
type SplitsWay struct {
	// Way is one of:
	//
	//   - "lexicographic": the key space between the first and the last key is cut into equal parts
	//   - "scatter": one sampled key (__scatter__) for each part is read, and the cuts are at these
	//     keys
	//   - "oversampled": 32 sampled keys for each part are read, and the cuts are at every 32nd key
	//   - "splits": as [Splits] cuts it
	Way string `json:"way"`

	Asked   int     `json:"asked"`   // sampled keys requested; -1 if unknown
	Sampled int     `json:"sampled"` // sampled keys found; -1 if unknown
	Parts   int     `json:"parts"`   // number of parts; below the requested one if keys are few
	Empty   int     `json:"empty"`   // number of parts without an entity
	Largest int64   `json:"largest"` // number of entities in the largest part
	Ratio   float64 `json:"ratio"`   // Largest as a multiple of the mean; 0 if there is no entity
	Each    []int64 `json:"each"`    // the number of entities in each part

	Note string `json:"note,omitempty"` // a warning if Sampled is less than Asked
}

// fewKeys returns the Note for a way that has received fewer sampled keys than it asked for. If the
// way has received enough, it returns "".
func fewKeys(asked, sampled int) string {
	switch {
	case sampled >= asked:
		return ""
	case sampled == 0:
		return "no entity has __scatter__, so it is cut nowhere"
	}
	return fmt.Sprintf("only %d of the %d keys that were asked for have __scatter__", sampled, asked)
}

// splitQuery returns the query in its normal form, or an error if it can't be split into n parts.
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

// CompareSplits cuts a query over the keys of one kind in one namespace in four ways ([SplitsWay]),
// and says how even the parts are. The number of parts n is in [1, 10000]. It counts all entities
// in up to 4n counts, at one read for 1,000 entities. If there are fewer than 10,000 entities, or
// if the database can't count, it reads all keys. If a way finds too few sampled keys, the
// comparison says little about it, and its Note says so.
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
