// Command feed writes feeds of merchants, services and free times by the general rules of sharded feeds, from an embedded
// Datastore, or from several, each of a region of its own that writes its own shards of the same feed. Then it checks the files
// against these rules, and their records against the entities. With -check it does no more than the first, for a folder that
// anybody has written.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// config is what the flags say.
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

// parse reads the flags, and prints their help if that is asked for.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 500, Workers: 16}}
	flags := flag.NewFlagSet("feed", flag.ContinueOnError)
	c.Define(flags, "entities")
	flags.IntVar(&c.merchants, "merchants", 500, "how many merchants there are, with 2 services each and 10 times for each of these, `N` in [1, 1000000]")
	flags.IntVar(&c.regions, "regions", 1, "how many regions, with a database each, write the feeds together, `N` in [1, 10]")
	flags.Int64Var(&c.maxBytes, "max-bytes", maxShardBytes, "how many `bytes` a file has at most, compressed, in [10000, 200000000]")
	flags.IntVar(&c.maxShards, "max-shards", maxShards, "how many files a feed has at most, `N` in [1, 999]")
	flags.StringVar(&c.out, "out", "", "the `folder` to write to; by default one that is deleted at the end")
	flags.StringVar(&c.check, "check", "", "check the feeds in this `folder`, and do nothing else")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		c.Check(),
		command.Between("-merchants", c.merchants, 1, 1_000_000),
		command.Between("-regions", c.regions, 1, 10),
		command.Between("-max-bytes", c.maxBytes, 10_000, maxShardBytes),
		command.Between("-max-shards", c.maxShards, max(1, c.regions), 999),
	)
}

// run writes the feeds, or only checks a folder.
func run(ctx context.Context, c config, stdout io.Writer) error {
	dir := c.check
	if dir == "" {
		var err error
		if dir = c.out; dir == "" {
			if dir, err = os.MkdirTemp("", "feed-"); err != nil {
				return err
			}
			defer os.RemoveAll(dir)
		}
		if err := writeFeeds(ctx, c, dir, stdout); err != nil {
			return err
		}
	}
	report, err := checkFolder(dir, c.maxBytes, c.maxShards)
	if err != nil {
		return err
	}
	if c.check == "" {
		report.expect(c)
	}
	if err := report.print(stdout, c.JSON); err != nil {
		return err
	}
	if n := len(report.Problems); n > 0 {
		return fmt.Errorf("%d of the rules of sharded feeds are broken", n)
	}
	return nil
}

// expect adds what the feeds should have, besides what the rules say.
func (r *Report) expect(c config) {
	want := []int64{int64(c.merchants), int64(2 * c.merchants), int64(20 * c.merchants)}
	if len(r.Feeds) != len(want) {
		r.problem("there are %d feeds, want %d", len(r.Feeds), len(want))
		return
	}
	for i, n := range want {
		if r.Feeds[i].Records != n {
			r.problem("%s has %d records, want %d", r.Feeds[i].Name, r.Feeds[i].Records, n)
		}
	}
}

func (r *Report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "feed                            shards    records        bytes  largest of mean\n")
	for _, f := range r.Feeds {
		fmt.Fprintf(&b, "%-30s  %6d  %9d  %11d  %15.2f\n", f.Name, f.Shards, f.Records, f.Bytes, f.Largest)
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

// writeFeeds has each region write its shards of each feed. The first region says what all agree on; the numbers of shards of each
// are agreed upon, too, if there are several.
func writeFeeds(ctx context.Context, c config, dir string, stdout io.Writer) error {
	now := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	if !c.JSON {
		fmt.Fprintf(stdout, "%d merchants in %d region(s); files of up to %d bytes.\n", c.merchants, c.regions, c.maxBytes)
	}
	for region := range c.regions {
		group.Go(func() error {
			g := Generation{Nonce: uint64(now.UnixNano()), Timestamp: now.Unix()}
			files := 0
			if c.regions > 1 {
				files = max(1, min(2, c.maxShards/c.regions))
				g.First, g.Total = region*files, files*c.regions
			}
			if err := writeRegion(ctx, c, filepath.Join(dir, fmt.Sprintf("region-%d", region)), region, files, g); err != nil {
				return fmt.Errorf("region %d: %w", region, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// writeRegion fills the database of a region, and writes its shards: as many as is said for each feed, or if that is 0 as few as hold
// the records.
func writeRegion(ctx context.Context, c config, dir string, region, files int, g Generation) error {
	bucket, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer func() { _ = bucket.Close() }() // what counts has been written
	all := newFeeds(bucket, c.maxBytes, c.maxShards)
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Mappers: all.mappers()})
	if err != nil {
		return err
	}
	defer on.Close()
	if err := fill(ctx, on.Client, c, region, g); err != nil {
		return fmt.Errorf("write the entities: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, x := range all {
		group.Go(func() error {
			run, err := x.Start(ctx, on.Engine, queries()[i], g, &export.StartOptions{
				Files: files, StartOptions: mapper.StartOptions{PageSize: c.Page, AllowEmpty: true, ID: fmt.Sprintf("%s-%d", kinds[i].name, g.Timestamp)}})
			if err != nil {
				return err
			}
			_, err = run.Wait(ctx)
			return err
		})
	}
	return group.Wait()
}

// openFolder opens a folder as a bucket, without files that say more of others.
func openFolder(dir string) (*blob.Bucket, error) {
	return fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
}
