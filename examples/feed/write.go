package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// A feedSet identifies a set of feeds, one of each kind. All regions use the same one.
type feedSet struct {
	at     time.Time // all regions read their databases as of this past time; it has whole seconds
	nonces []string  // the nonce of each kind of feed
}

// newFeedSet returns a set of feeds with the data of a time. Each feed gets a new nonce.
func newFeedSet(at time.Time) feedSet {
	s := feedSet{at: at}
	for range kinds {
		s.nonces = append(s.nonces, strconv.FormatUint(1+rand.Uint64N(1<<53-1), 10))
	}
	return s
}

// readTime waits until the next whole second has passed, and returns that second. A read as of that
// time sees everything that was written before. Datastore can read any time of the last hour, and
// older whole minutes with point-in-time recovery.
func readTime(ctx context.Context) (time.Time, error) {
	at := time.Now().Truncate(time.Second).Add(time.Second)
	select {
	case <-time.After(time.Until(at) + 10*time.Millisecond):
		return at, nil
	case <-ctx.Done():
		return at, ctx.Err()
	}
}

// A region has a database, and writes its own shards of each feed.
type region struct {
	name string
	all  feeds
	on   *cloud.Cloud
	runs []*export.Run // the export of each kind of feed
	need []int         // the number of shards that each kind of feed needs
}

// writeFeeds writes the feeds of all regions:
//
// 1. The time to read, and a nonce for each feed, are chosen for all regions. 2. Each region reads
// its records into parts, and counts the shards that it needs. 3. The first numbers and the totals
// are then known, and each region writes its shards.
func writeFeeds(ctx context.Context, c config, dir string, stdout io.Writer) (feedSet, error) {
	say := func(format string, args ...any) {
		if !c.JSON {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	say("%d merchants in %d region(s); files of up to %d bytes, %d at most.", c.merchants, c.regions, c.maxBytes,
		c.maxShards)
	regions := make([]*region, c.regions)
	defer func() {
		for _, r := range regions {
			if r != nil {
				r.close()
			}
		}
	}()
	err := each(ctx, c.regions, func(ctx context.Context, i int) (err error) {
		if regions[i], err = openRegion(ctx, c, dir, i); err == nil {
			err = fill(ctx, regions[i].on.Client, c, i, time.Now())
		}
		return err
	})
	if err != nil {
		return feedSet{}, err
	}
	at, err := readTime(ctx)
	if err != nil {
		return feedSet{}, err
	}
	set := newFeedSet(at)
	if snapshots(c) {
		say("All feeds are of %s, whatever changes later.", set.at.UTC().Format(time.RFC3339))
	} else {
		say("All feeds are of %s. This emulator reads what is there now, so nothing may change until they are read.",
			set.at.UTC().Format(time.RFC3339))
	}
	err = each(ctx, c.regions, func(ctx context.Context, i int) error {
		if snapshots(c) {
			if err := meddle(ctx, regions[i].on.Client, i); err != nil {
				return err
			}
		}
		if err := regions[i].start(ctx, c, set); err != nil {
			return err
		}
		return regions[i].count(ctx)
	})
	var agreed [][]Generation // the parameters of the files, by region and kind of feed
	if err == nil {
		agreed, err = agree(set, regions, c.maxShards)
	}
	if err != nil {
		return set, errors.Join(err, discard(ctx, regions))
	}
	for k := range kinds {
		say("%s", shares(regions, agreed, k))
	}
	return set, each(ctx, c.regions, func(ctx context.Context, i int) error { return regions[i].write(ctx, agreed[i]) })
}

// shares returns a text that says which shards of a feed each region writes. The feed is of kind
// number k. The numbers of the shards are in agreed, by region and kind.
func shares(regions []*region, agreed [][]Generation, k int) string {
	var parts []string
	for i, r := range regions {
		first := agreed[i][k].First
		numbers := strconv.Itoa(first)
		if r.need[k] > 1 {
			numbers += fmt.Sprintf(" to %d", first+r.need[k]-1)
		}
		parts = append(parts, r.name+" writes "+numbers)
	}
	return fmt.Sprintf("%s feed, shards of %d: %s.", kinds[k].name, agreed[0][k].Total, strings.Join(parts, ", "))
}

// each calls f for all regions concurrently.
func each(ctx context.Context, regions int, f func(ctx context.Context, region int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range regions {
		group.Go(func() error {
			if err := f(ctx, i); err != nil {
				return fmt.Errorf("region %d: %w", i, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// snapshots reports whether the database can read as of a past time. Google's classic emulator
// can't.
func snapshots(c config) bool { return c.Datastore != "google" }

// openRegion starts the database of a region, and the engine for its jobs.
func openRegion(ctx context.Context, c config, dir string, i int) (*region, error) {
	r := &region{name: fmt.Sprintf("region-%d", i), runs: make([]*export.Run, len(kinds)),
		need: make([]int, len(kinds))}
	bucket, err := openFolder(filepath.Join(dir, r.name))
	if err != nil {
		return nil, err
	}
	if r.all, err = newFeeds(bucket, c.maxBytes); err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	r.on, err = cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Mappers: r.all.mappers()})
	if err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	return r, nil
}

func (r *region) close() {
	r.on.Close()
	_ = r.all.bucket.Close() // the files are already written
}

// pageSize returns the number of records in a part of a file. Parts are not split between files, so
// small files need small parts. A compressed record takes about 40 bytes, and fewer in larger
// parts.
func (c config) pageSize() int { return int(min(int64(c.Page), max(30, c.maxBytes/16/40))) }

// start starts the exports of a region, one for each kind of feed, with Hold. The exports read
// their records, and write files only when Export.Write is called.
func (r *region) start(ctx context.Context, c config, set feedSet) error {
	at := set.at
	if !snapshots(c) {
		at = time.Time{}
	}
	for k, x := range r.all.exports {
		id := fmt.Sprintf("%s-%d", kinds[k].name, set.at.Unix())
		g := Generation{Timestamp: set.at.Unix()} // the other fields are known when all regions have counted
		run, err := x.Start(ctx, r.on.Engine, queries(at)[k], g, &export.StartOptions{Hold: true,
			StartOptions: mapper.StartOptions{ID: id, PageSize: c.pageSize(), AllowEmpty: true}})
		if err != nil {
			return err
		}
		r.runs[k] = run
	}
	return nil
}

// count waits until the exports have read their records. Then it records how many shards each feed
// needs.
func (r *region) count(ctx context.Context) (err error) {
	for k, x := range r.all.exports { // the exports run concurrently
		if r.need[k], err = x.Count(ctx, r.runs[k]); err != nil {
			return err
		}
	}
	return nil
}

// agree assigns numbers to the shards of all regions, one region after the other. The result has a
// Generation for each region and kind of feed. It returns an error if a feed needs more shards than
// the number most.
func agree(set feedSet, regions []*region, most int) ([][]Generation, error) {
	agreed := make([][]Generation, len(regions))
	for k, kind := range kinds {
		total, needs := 0, []string(nil)
		for _, r := range regions {
			total += r.need[k]
			needs = append(needs, fmt.Sprintf("%s %d", r.name, r.need[k]))
		}
		if total > most {
			return nil, fmt.Errorf("the %s feed needs %d shards (%s), and -max-shards is %d: nothing was written; "+
				"raise -max-bytes or -max-shards", kind.name, total, strings.Join(needs, ", "), most)
		}
		first := 0
		for i, r := range regions {
			agreed[i] = append(agreed[i], Generation{set.nonces[k], set.at.Unix(), first, total})
			first += r.need[k]
		}
	}
	return agreed, nil
}

// write writes the region's shards of all feeds. The parameter agreed has the Generation of each
// kind of feed.
func (r *region) write(ctx context.Context, agreed []Generation) error {
	group, ctx := errgroup.WithContext(ctx)
	for k, x := range r.all.exports {
		group.Go(func() error {
			if err := x.Write(ctx, r.runs[k], r.need[k], agreed[k]); err != nil {
				return err
			}
			_, err := r.runs[k].Wait(ctx)
			return err
		})
	}
	return group.Wait()
}

// discard deletes the parts of feeds whose files will not be written.
func discard(ctx context.Context, regions []*region) error {
	return each(ctx, len(regions), func(ctx context.Context, i int) error {
		for _, run := range regions[i].runs {
			if run == nil {
				continue
			}
			job := run.Jobs()[0]
			if err := job.Abort(ctx); err != nil && !errors.Is(err, mapper.ErrWrongState) {
				return err
			}
			if _, err := job.Wait(ctx); err != nil {
				return err
			}
			if err := run.Discard(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}
