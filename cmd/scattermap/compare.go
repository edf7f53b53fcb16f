package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
)

// compareSplits cuts the entities of a kind into n parts by several algorithms, and prints how even
// the parts of each algorithm are.
func compareSplits(
	ctx context.Context, w io.Writer, client *datastore.Client, q mapper.Query, n int, format output, db *database,
) error {
	c, err := split.Compare(ctx, client, q, n)
	switch {
	case err != nil:
		return err
	case c.Entities == 0:
		return noEntities(q, db)
	case format != table:
		return format.write(w, c)
	}
	fmt.Fprintf(w, "entities: %d, parts: %d, mean: %.1f\n\n", c.Entities, c.Parts, c.Mean)
	fmt.Fprintf(w, "way            sampled  parts  empty     largest  of mean  entities of each\n")
	for _, way := range c.Ways {
		sampled := fmt.Sprint(way.Sampled)
		if way.Sampled < 0 {
			sampled = "-"
		}
		fmt.Fprintf(w, "%-13s  %7s  %5d  %5d  %10d  %7.2f  %s\n", way.Way, sampled, way.Parts, way.Empty, way.Largest,
			way.Ratio, heights(way.Each, tallest(c)))
	}
	before := "\n"
	for _, way := range c.Ways {
		if way.Note != "" {
			fmt.Fprintf(w, "%s%s: %s\n", before, way.Way, way.Note)
			before = ""
		}
	}
	return nil
}

// tallest returns the number of entities in the largest part of all algorithms.
func tallest(c *split.Comparison) (most int64) {
	for _, way := range c.Ways {
		most = max(most, way.Largest)
	}
	return most
}

// heightsWide is the largest number of parts for which heights draws bars.
const heightsWide = 20

// heights returns a text with a bar of one character for each part. A bar's height is the part's
// number of entities in proportion to the parameter most. An empty part is a dot. If there are more
// than heightsWide parts, the text is "-".
func heights(each []int64, most int64) string {
	if len(each) > heightsWide {
		return "-"
	}
	var b strings.Builder
	for _, n := range each {
		level := 0
		if n > 0 {
			level = 1 + int(7*n/most)
		}
		b.WriteRune([]rune("·▁▂▃▄▅▆▇█")[level])
	}
	return b.String()
}
