// Command scatter shows why shards are cut at sampled keys. A kind on an embedded Datastore has a
// few entities with numeric IDs, left over from early tests, and many with names. The command cuts
// it into shards in four ways: lexicographically, at keys drawn by __scatter__, at one in 32 of
// such keys, and as scattermap does. It prints how many entities each shard has, and the largest
// shard as a multiple of the mean. "scattermap splits --compare" does the same for any kind.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
)

// config has the values of the command's flags.
type config struct {
	ids, names, shards int
	json               bool
}

func main() {
	command.Main("scatter", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("scatter", flag.ContinueOnError)
	flags.IntVar(&c.ids, "ids", 3, "how many entities have a numeric ID, `N` in [0, 1000]")
	flags.IntVar(&c.names, "names", 20_000, "how many have a name, `N` in [0, 1000000]")
	flags.IntVar(&c.shards, "shards", 8, "into how many shards the kind is cut, `N` in [1, 100]")
	flags.BoolVar(&c.json, "json", false, "print the result as one JSON object")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		command.Between("-ids", c.ids, 0, 1000),
		command.Between("-names", c.names, 0, 1_000_000),
		command.Between("-shards", c.shards, 1, 100),
	)
}

// run writes the entities, compares the ways to cut the kind, and prints the result.
func run(ctx context.Context, c config, stdout io.Writer) error {
	e, err := emulator.Start(nil)
	if err != nil {
		return err
	}
	defer e.Close()
	client, err := e.DatastoreClient(ctx, "scattermap-example")
	if err != nil {
		return err
	}
	defer client.Close()
	compared, err := compare(ctx, client, c)
	if err != nil {
		return err
	}
	if c.json {
		return json.NewEncoder(stdout).Encode(compared)
	}
	_, err = io.WriteString(stdout, drawn(compared, c))
	return err
}

// An Article is an entity of the kind that the command cuts into shards.
type Article struct {
	Title string `datastore:",noindex"`
}

// compare writes the entities, and compares all methods of package split on their kind.
func compare(ctx context.Context, client *datastore.Client, c config) (*split.Comparison, error) {
	rng := rand.New(rand.NewPCG(9, 0))
	var keys []*datastore.Key
	for i := range c.ids {
		keys = append(keys, datastore.IDKey("Article", int64(i+1), nil))
	}
	for range c.names {
		keys = append(keys, datastore.NameKey("Article", fmt.Sprintf("%016x", rng.Uint64()), nil))
	}
	for some := range slices.Chunk(keys, 500) {
		if _, err := client.PutMulti(ctx, some, make([]Article, len(some))); err != nil {
			return nil, fmt.Errorf("write the articles: %w", err)
		}
	}
	return split.Compare(ctx, client, mapper.Query{Kind: "Article"}, c.shards)
}

// drawn returns a text that draws the sizes of the shards, for each way to cut.
func drawn(compared *split.Comparison, c config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d entities have a number, %d a name. A shard of %d should have %.1f.\n", c.ids, c.names, c.shards,
		compared.Mean)
	most := int64(1)
	for _, way := range compared.Ways {
		most = max(most, way.Largest)
	}
	for _, way := range compared.Ways {
		fmt.Fprintf(&b, "\n%s: the largest has %.2f times the mean", way.Way, way.Ratio)
		if way.Sampled > 0 {
			fmt.Fprintf(&b, ", by %d sampled keys", way.Sampled)
		}
		b.WriteString("\n")
		if way.Note != "" {
			fmt.Fprintf(&b, "  %s\n", way.Note)
		}
		for i, n := range way.Each {
			line := fmt.Sprintf("%4d  %8d  %s", i+1, n, strings.Repeat("█", int((50*n+most-1)/most)))
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return b.String()
}
