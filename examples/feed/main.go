// Command feed writes feeds of merchants, services and free times by the general rules of sharded
// feeds. It writes them from one embedded Datastore, or from several, each for a region that writes
// its own shards of the same feeds. All feeds show the data of one moment, even if it changes
// meanwhile. Then the command checks the files against the rules, and counts their records. With
// -check it only checks a folder of existing feeds.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"github.com/scattermap/scattermap/examples/internal/command"
)

// config has the values of the command's flags.
type config struct {
	command.Job
	merchants int
	regions   int
	maxBytes  int64
	maxShards int
	out       string
	check     string
}

func main() {
	command.Main("feed", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 500, Workers: 16}}
	flags := flag.NewFlagSet("feed", flag.ContinueOnError)
	c.Define(flags, "entities")
	flags.IntVar(&c.merchants, "merchants", 500,
		"how many merchants there are, with 2 services each and 10 times for each of these, `N` in [1, 1000000]")
	flags.IntVar(&c.regions, "regions", 1,
		"how many regions, with a database each, write the feeds together, `N` in [1, 10]")
	flags.Int64Var(&c.maxBytes, "max-bytes", maxShardBytes,
		"how many `bytes` a file has at most, after gzip, in [10000, 200000000]")
	flags.IntVar(&c.maxShards, "max-shards", maxShards,
		"how many files are written of a feed at most, `N` in [1, 999]; agree on more than 20 with Google's support")
	flags.StringVar(&c.out, "out", "", "the `folder` to write to; by default one that is deleted at the end")
	flags.StringVar(&c.check, "check", "", "check the feeds in this `folder`, or this file, and do nothing else")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	err := errors.Join(
		c.Check(),
		command.Between("-merchants", c.merchants, 1, 1_000_000),
		command.Between("-regions", c.regions, 1, 10),
		command.Between("-max-bytes", c.maxBytes, 10_000, maxShardBytes),
		command.Between("-max-shards", c.maxShards, max(1, c.regions), 999), // each region has at least one shard
	)
	if err == nil && c.check == "" {
		err = c.fits()
	}
	return c, err
}

// tagBytes is the minimum number of bytes that a slot takes in a compressed file, because its tag
// is random.
const tagBytes = 16

// fits returns an error if the feeds can't fit into the allowed number of shards, even if they are
// compressed well.
func (c config) fits() error {
	least, most := int64(20*c.merchants*tagBytes), c.maxBytes*int64(c.maxShards)
	if least > most {
		return fmt.Errorf("%d merchants have %d times, which take %d bytes or more, and %d shards of up to %d bytes "+
			"hold %d: lower -merchants, or raise -max-bytes or -max-shards", c.merchants, 20*c.merchants, least,
			c.maxShards, c.maxBytes, most)
	}
	return nil
}

// run writes the feeds and checks them, or only checks a folder.
func run(ctx context.Context, c config, stdout io.Writer) error {
	if c.check != "" {
		report, err := checkFolder(c.check, c.maxBytes, c.maxShards, time.Now())
		if err != nil {
			return fmt.Errorf("-check %s: %w", c.check, err)
		}
		return report.end(c, stdout)
	}
	dir := c.out
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "feed-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	g, err := writeFeeds(ctx, c, dir, stdout)
	if err != nil {
		return err
	}
	report, err := checkFolder(dir, c.maxBytes, c.maxShards, time.Now())
	if err != nil {
		return err
	}
	report.expect(c, g)
	return report.end(c, stdout)
}

// end prints a report. It returns an error if there are problems.
func (r *Report) end(c config, stdout io.Writer) error {
	if err := r.print(stdout, c.JSON); err != nil {
		return err
	}
	switch n := len(r.Problems); n {
	case 0:
		return nil
	case 1:
		return errors.New("1 problem: a rule of sharded feeds is broken")
	default:
		return fmt.Errorf("%d problems: rules of sharded feeds are broken", n)
	}
}

// expect adds the checks that are possible because the command itself has written the feeds: it
// compares them with the number of entities that it has written.
func (r *Report) expect(c config, set feedSet) {
	for i, n := range []int64{int64(c.merchants), int64(2 * c.merchants), int64(20 * c.merchants)} {
		at := slices.IndexFunc(r.Feeds, func(f FeedReport) bool { return f.Nonce == set.nonces[i] })
		switch {
		case at < 0:
			r.Problems = append(r.Problems, fmt.Sprintf("there is no %s feed with the nonce %s", kinds[i].name,
				set.nonces[i]))
		case r.Feeds[at].Records != n || r.Feeds[at].Timestamp != set.at.Unix():
			r.Problems = append(r.Problems, fmt.Sprintf("%s has %d records, want %d as they were at %d",
				r.Feeds[at].Name, r.Feeds[at].Records, n, set.at.Unix()))
		}
	}
}

func (r *Report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "feed\ttime\tnonce\tshards\trecords\tMB\tskew\n")
	for _, f := range r.Feeds {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%.3f\t%.2f\n", f.Kind, f.Timestamp, cmp.Or(f.Nonce, "none"), f.Shards,
			f.Records, float64(f.Bytes)/1e6, f.Largest)
	}
	_ = t.Flush() // writing to a strings.Builder does not fail
	for _, a := range r.Advice {
		fmt.Fprintf(&b, "ADVICE: %s\n", a)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "PROBLEM: %s\n", p)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintf(&b, "All rules of sharded feeds hold.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// openFolder opens a folder as a bucket. The bucket writes no further files for attributes.
func openFolder(dir string) (*blob.Bucket, error) {
	return fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true,
		Metadata: fileblob.MetadataDontWrite})
}
