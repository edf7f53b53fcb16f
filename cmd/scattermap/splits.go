package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
)

// newSplits returns the command splits. It cuts a query into parts of about the same size, and
// prints where each part starts.
func newSplits() *cobra.Command {
	var db database
	var q mapper.Query
	var n int
	var check, compare bool
	c := &cobra.Command{
		Use: "splits --kind KIND", Short: "Print where to cut a kind into parts of about the same size",
		GroupID: databaseGroup, Args: nothing,
		Long: `Prints the n-1 keys or values that cut a kind into n parts with about the same number of entities.
Each line is the start of a part. Names and texts are quoted. -o json prints the parts as queries
for jobs. With --shard-by, an entity with several values may be in several parts.

--compare prints how even the parts are if you cut in one of four ways:
  lexicographic  cut the key space between the first and the last key into equal parts
  scatter        cut at n-1 random keys: these have Datastore's property __scatter__
  oversampled    draw 32n-1 such keys, and cut at every 32nd
  splits         cut as this command does without --compare

The output compares each part with the mean.`,
	}
	flags := c.Flags()
	db.define(flags)
	flags.StringVar(&q.Kind, "kind", "", "the `kind` of the entities")
	flags.StringVar(&q.Namespace, "namespace", "", "the entities' `namespace`; by default the default namespace")
	flags.StringVar(&q.ShardBy, "shard-by", "",
		"split between values of this indexed `property`; by default between keys")
	flags.IntVarP(&n, "parts", "n", 10, "the `number` of parts, 1 to 10000")
	flags.BoolVar(&check, "check", false, "count each part's entities; this costs one read per thousand entities")
	flags.BoolVar(&compare, "compare", false,
		"compare four ways to cut; this costs one read per thousand entities, and 4n counts")
	format := outputFlag(flags)
	completeFlagsOf(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if q.Kind == "" {
			return usageError(errors.New("--kind is empty: name the kind of the entities"))
		}
		if compare && check {
			return usageError(errors.New("--compare counts the entities of each part anyway: leave --check out"))
		}
		if compare && q.ShardBy != "" {
			return usageError(errors.New("--compare compares cuts between keys: leave --shard-by out"))
		}
		client, err := db.open(c.Context())
		if err != nil {
			return err
		}
		defer client.Close()
		if compare {
			return compareSplits(c.Context(), c.OutOrStdout(), client, q, n, *format, &db)
		}
		splits, err := split.Query(c.Context(), client, q, n, &split.Options{Count: check})
		if err != nil {
			return err
		}
		if some, err := hasEntities(c.Context(), client, q); err != nil {
			return err
		} else if !some {
			return noEntities(q, &db)
		}
		if *format != table {
			return format.write(c.OutOrStdout(), map[string]any{"splits": splits})
		}
		return printSplits(c.OutOrStdout(), splits, check)
	}
	return c
}

func noEntities(q mapper.Query, db *database) error {
	with := ""
	if q.ShardBy != "" {
		with = fmt.Sprintf(" that has the property %q", q.ShardBy)
	}
	return fmt.Errorf("there is no entity of the kind %q in the namespace %q%s, %v", q.Kind, q.Namespace, with, db)
}

// hasEntities reports whether a query has any entities.
func hasEntities(ctx context.Context, client *datastore.Client, q mapper.Query) (bool, error) {
	d, err := q.DatastoreQuery()
	if err != nil {
		return false, err
	}
	keys, err := client.GetAll(ctx, d.KeysOnly().Limit(1), nil)
	return len(keys) > 0, err
}

func printSplits(w io.Writer, splits []split.Part, check bool) error {
	total, largest, known := int64(0), int64(0), true
	for i, s := range splits {
		total, largest, known = total+s.Entities, max(largest, s.Entities), known && s.Entities >= 0
		switch {
		case check && known:
			fmt.Fprintf(w, "%12d  %s\n", s.Entities, begin(s.Query, i))
		case i > 0:
			fmt.Fprintln(w, begin(s.Query, i))
		}
	}
	switch {
	case !check:
		return nil
	case !known:
		return errors.New("the database has no aggregations, so --check can't say how even the parts are")
	}
	_, err := fmt.Fprintf(w, "parts: %d, entities: %d; the largest has %.2f times the mean\n", len(splits), total,
		float64(largest)*float64(len(splits))/float64(total))
	return err
}

// begin returns the start of the i-th part as a text. The query q selects this part.
func begin(q mapper.Query, i int) string {
	if i == 0 {
		return "the beginning"
	}
	if q.ShardBy == "" {
		return names.Path(q.Start)
	}
	from := q.Filters[0].Value // a part has no filters but its bounds, and the first one is the lower bound
	switch from := from.(type) {
	case string:
		return fmt.Sprintf("%q", from)
	case time.Time:
		return from.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(from)
}
