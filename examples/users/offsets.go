package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
)

// mostByOffset is the maximum number of users that the command reads by offsets, because twice as
// many users cost four times as much.
const mostByOffset = 20_000

// offsets is the cost of reading users by offsets. Datastore reads and bills all users that an
// offset skips.
type offsets struct {
	Users   int     `json:"users"`
	Pages   int     `json:"pages"`
	Reads   int64   `json:"reads"`
	Seconds float64 `json:"seconds"`
	// CursorReads is the number of reads for the same pages if each page starts at the cursor of
	// the page before.
	CursorReads    int64   `json:"cursor_reads"`
	CursorSeconds  float64 `json:"cursor_seconds"`
	MillionReads   int64   `json:"million_reads"` // estimated number of reads for a million users by offsets
	MillionDollars float64 `json:"million_dollars"`
	CursorDollars  float64 `json:"cursor_dollars"` // estimated cost of reading a million users by cursors, in dollars
}

// readByOffsets reads all users twice: by offsets, with all pages concurrently, and by cursors,
// page after page.
func readByOffsets(ctx context.Context, c config) (o offsets, err error) {
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Latency: c.latency,
		Mappers: []mapper.AnyMapper{checkUser}})
	if err != nil {
		return o, err
	}
	defer on.Close()
	o.Users = min(c.users, mostByOffset)
	o.Pages = (o.Users + c.Page - 1) / c.Page
	if _, err := writeUsers(ctx, on.Client, o.Users, byKey); err != nil {
		return o, err
	}
	on.Slow(true)
	used, begun, seen := on.Usage(), time.Now(), &seenUsers{keys: make(map[string]int)}
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(c.Workers)
	for i := range o.Pages {
		group.Go(func() error {
			_, err := seen.page(each, on.Client, datastore.NewQuery("User").Offset(i*c.Page).Limit(c.Page))
			return err
		})
	}
	if err := errors.Join(group.Wait(), seen.check(o.Users)); err != nil {
		return o, err
	}
	o.Reads, o.Seconds = on.Usage().Sub(used).Reads, time.Since(begun).Seconds()

	used, begun, seen = on.Usage(), time.Now(), &seenUsers{keys: make(map[string]int)}
	q := datastore.NewQuery("User").Limit(c.Page)
	for range o.Pages {
		end, err := seen.page(ctx, on.Client, q)
		if err != nil {
			return o, err
		}
		q = q.Start(end)
	}
	o.CursorReads, o.CursorSeconds = on.Usage().Sub(used).Reads, time.Since(begun).Seconds()
	million := offsetReads(1_000_000, c.Page)
	o.MillionReads = million
	o.MillionDollars = billing.NAM5.Dollars(billing.Usage{Reads: million})
	o.CursorDollars = billing.NAM5.Dollars(billing.Usage{Reads: 1_000_000})
	return o, seen.check(o.Users)
}

// report returns a text that compares the cost of offsets and cursors.
func (o offsets) report(c config) string {
	which := fmt.Sprintf("All %d users", o.Users)
	if o.Users < c.users {
		which = fmt.Sprintf("%d users, not all %d", o.Users, c.users)
	}
	counted := "The embedded one counts it,\ntoo, but skips in memory, and so faster."
	if c.Datastore != embedded {
		counted = "Google's emulators bill\nnothing: the reads are counted as Datastore would bill them."
	}
	return fmt.Sprintf(`
%s, read in %d pages without a job:

by                   reads  seconds    reads of a million   dollars
offsets, at once  %8d  %7.2f  %20d  %8.2f
cursors, in turn  %8d  %7.2f  %20d  %8.2f

Datastore reads and bills what an offset skips. %s
`, which, o.Pages, o.Reads, o.Seconds, o.MillionReads, o.MillionDollars,
		o.CursorReads, o.CursorSeconds, 1_000_000, o.CursorDollars, counted)
}

// offsetReads returns the number of reads for n entities by offsets. A page reads its own entities
// and all entities before it.
func offsetReads(n, page int) (reads int64) {
	for first := 0; first < n; first += page {
		reads += int64(min(first+page, n))
	}
	return reads
}

// seenUsers counts how often each user was read.
type seenUsers struct {
	mu   sync.Mutex
	keys map[string]int
}

// page reads a page of users, and returns the cursor after it.
func (s *seenUsers) page(ctx context.Context, client *datastore.Client, q *datastore.Query) (datastore.Cursor, error) {
	it := client.Run(ctx, q)
	for {
		var u User
		key, err := it.Next(&u)
		if errors.Is(err, iterator.Done) {
			return it.Cursor()
		}
		if err != nil {
			return datastore.Cursor{}, err
		}
		s.mu.Lock()
		s.keys[key.Encode()]++
		s.mu.Unlock()
	}
}

// check returns an error unless each of n users was read once.
func (s *seenUsers) check(n int) error {
	if len(s.keys) != n {
		return fmt.Errorf("%d users were read, want %d", len(s.keys), n)
	}
	for key, times := range s.keys {
		if times != 1 {
			return fmt.Errorf("the user %s was read %d times", key, times)
		}
	}
	return nil
}
