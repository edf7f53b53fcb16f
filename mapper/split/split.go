package split

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/survey"
)

// A Part is a part of a query: see [Query].
type Part struct {
	// Query selects the part. It is the whole query, with Start and End set, or with bounds on its
	// ShardBy property. Run a job over it, or read it with [mapper.Query.DatastoreQuery].
	Query mapper.Query `json:"query"`

	// Entities is the number of entities in the part, if Options.Count is set. Without Count, or if
	// the database can't count, it is -1.
	Entities int64 `json:"entities"`
}

// Options are the settings of [Query]. The zero value has all defaults.
type Options struct {
	// Count counts the entities of each part, at one read for 1,000 entities. Defaults to false.
	Count bool
}

// maxParts is the largest number of parts into which a query can be cut.
const maxParts = 10_000

// Query cuts a query over one kind in one namespace into up to n parts with about the same number
// of entities each. Use it for another program that reads the parts in parallel. The number n is in
// [1, 10000]. The parts are in order, and each entity is in exactly one part. The exception is an
// entity with several values of ShardBy, which may be in several parts. If the query has too few
// entities or values, there are fewer than n parts. A nil o has all defaults.
//
// Query cuts a whole kind at a sample of its keys: Datastore adds the hidden property __scatter__
// to a random share of the entities. Query reads 24 sampled keys for each part; 300 of them cost
// one read.
//
// Query counts instead if the query is not a whole kind, or if the kind has up to 10,000 entities.
// It also counts if the kind has fewer than 12 sampled keys for each part. Then it divides the
// space of keys or values into eight cells for each part, and counts the entities of each cell, at
// one read for 1,000 entities. If a part ends inside a cell, Query also reads the cell's keys.
func Query(ctx context.Context, client *datastore.Client, q mapper.Query, n int, o *Options) ([]Part, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	fail := func(err error) ([]Part, error) { return nil, fmt.Errorf("split: %w", err) }
	normal, err := normalize(client, q, n)
	if err != nil {
		return fail(err)
	}
	found, err := survey.Parts(ctx, source.New(client, nil).Of(ctx, normal), normal, n, opts.Count)
	if err != nil {
		return fail(err)
	}
	parts := make([]Part, len(found))
	for i, p := range found {
		parts[i] = Part{Query: bridge.PublicQuery(p.Query).(mapper.Query), Entities: p.Entities}
	}
	return parts, nil
}

// A Comparison is the result of [Compare].
type Comparison struct {
	Entities int64   `json:"entities"` // the query's number of entities
	Parts    int     `json:"parts"`    // the number requested
	Mean     float64 `json:"mean"`     // mean number of entities in a part; at least 1
	Ways     []Way   `json:"ways"`
}

// A Way says how even the parts are if a query is cut in one of several ways.
type Way struct {
	// Way is one of:
	//
	//   - "lexicographic": the key space between the first and the last key is cut into equal parts
	//   - "scatter": one sampled key (__scatter__) for each part is read, and the cuts are at these
	//     keys
	//   - "oversampled": 32 sampled keys for each part are read, and the cuts are at every 32nd key
	//   - "splits": as [Query] cuts it
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

// normalize returns the query in its normal form, or an error if it can't be split into n parts.
func normalize(client *datastore.Client, q mapper.Query, n int) (query.Query, error) {
	normal, err := bridge.InnerQuery(q).Normal(false)
	switch {
	case client == nil:
		err = errors.New("the client is nil")
	case n < 1 || n > maxParts:
		err = fmt.Errorf("the number of parts has to be in [1, %d], it is %d", maxParts, n)
	case err == nil && normal.Many():
		err = errors.New("the query is over several kinds or namespaces: split each")
	}
	if err != nil {
		return normal, fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err)
	}
	return normal, nil
}

// Compare cuts a query in four ways ([Way]), and says how even the parts are. The query is over the
// keys of one kind in one namespace. The number of parts n is in [1, 10000]. It counts all entities
// in up to 4n counts, at one read for 1,000 entities. If there are fewer than 10,000 entities, or
// if the database can't count, it reads all keys. If a way finds too few sampled keys, the
// comparison says little about it, and its Note says so.
func Compare(ctx context.Context, client *datastore.Client, q mapper.Query, n int) (*Comparison, error) {
	fail := func(err error) (*Comparison, error) { return nil, fmt.Errorf("split: compare: %w", err) }
	normal, err := normalize(client, q, n)
	switch {
	case err != nil:
		return fail(err)
	case normal.ShardBy != "":
		return fail(setting.Errorf("%w: Query.ShardBy is %q, and ways to cut between keys are compared",
			mapper.ErrInvalidArgument, normal.ShardBy))
	}
	ways, err := survey.Compare(ctx, source.New(client, nil).Of(ctx, normal), normal, n)
	if err != nil {
		return fail(err)
	}
	c := &Comparison{Parts: n}
	for _, count := range ways[0].Counts {
		c.Entities += count
	}
	if c.Entities > 0 {
		c.Mean = max(1, float64(c.Entities)/float64(n))
	}
	for _, w := range ways {
		way := Way{Way: w.Name, Asked: w.Asked, Sampled: w.Sampled, Parts: len(w.Counts), Each: w.Counts,
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
