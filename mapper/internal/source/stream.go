package source

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Stream reads the entities of a range in order, or only their positions. A position is a place
// in the order of the job's entities. A Stream can read in advance, in the background.
type Stream struct {
	query      query.Query
	start, End *keyspace.Position // the start of the range, and its end, which Shorten may change
	Whole      bool               // whether the stream reads entities, and not only keys
	Few        int                // limit of results of the first query; 0: AtOnce
	AtOnce     int                // limit of results of each query

	ctx    context.Context // the context of the stream's queries
	cancel context.CancelFunc
	source Source

	turn    *semaphore.Weighted // guards the fields below; only its holder may read from the database
	scans   func() (s query.Scan, ok bool, err error)
	scan    query.Scan         // the scan (Datastore query) whose results are being read
	it      *results           // the results of that scan; nil: no scan is being read
	begun   time.Time          // when this scan was started
	limit   int                // limit of results of this scan's query
	results int                // number of results of this query so far
	waited  atomic.Int64       // time from the last query to its first result, a time.Duration
	passed  atomic.Int64       // number of positions that were dropped
	last    *keyspace.Position // the last position that was read
	appends sync.Mutex         // held while at and stamps change, so that Read need not wait for turn
	at      []*keyspace.Position
	stamps  []wire.Stamp   // the entities at the positions with their versions, if Whole is set
	taken   *wire.Versions // receives the entities of results; nil: the stream reads no entities
	all     bool
	err     error // the error after which the stream can't be used any more; nil: no error
}

// NewStream returns a stream that reads a range of a query: its keys, or whole entities. The caller
// must close it.
func NewStream(ctx context.Context, src Source, q query.Query, start, end *keyspace.Position, whole bool) *Stream {
	s := &Stream{query: q, start: start, End: end, Whole: whole, AtOnce: mostAtOnce, source: src,
		turn: semaphore.NewWeighted(1)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.scans = src.scanner(s.ctx, q, start, end)
	return s
}

// mostAtOnce is the largest limit that a stream sets for the results of a query. Datastore returns
// results in small batches. But Google's Firestore emulator returns all results in one answer, and
// the Go client accepts answers of up to 4 MiB.
const mostAtOnce = 5 * query.Batch

// begin starts to read the next scan of the range, if there is one.
func (s *Stream) begin() error {
	next, ok, err := s.scans()
	if err != nil || !ok {
		s.all = err == nil
		return err
	}
	s.limit = s.AtOnce
	if s.Few > 0 {
		s.limit = min(s.limit, s.Few)
	}
	next.Query = next.Query.Limit(s.limit)
	s.scan, s.begun, s.results = next, time.Now(), 0
	ctx := s.ctx
	if s.taken = nil; s.Whole {
		ctx, s.taken = wire.Taking(ctx)
	}
	s.it, err = s.source.results(ctx, next, s.Whole)
	return err
}

// beginAgain makes the stream continue with new queries, which start after the last position that
// was read.
func (s *Stream) beginAgain() {
	from := s.start
	if s.last != nil {
		from = s.last
	}
	s.it, s.scans = nil, s.source.scanner(s.ctx, s.query, from, s.End)
}

// use waits until no other goroutine reads the stream, and locks it. The caller must call done to
// unlock it.
func (s *Stream) use() (done func()) {
	_ = s.turn.Acquire(context.Background(), 1) // the context of the stream ends reads, so this wait is short
	return func() { s.turn.Release(1) }
}

// Shorten ends a stream of whole entities at the new end of its range, so that it does not read
// further. Other tasks read the entities after that end, and Datastore bills each read. If a batch
// of results has started to arrive, it is read completely, because it is billed already.
func (s *Stream) Shorten(end *keyspace.Position) {
	if !s.Whole || end == nil || s.End != nil && keyspace.Compare(s.End, end) <= 0 {
		return
	}
	defer s.use()()
	s.End = end
	// Even results after the new end are read, to check their order.
	for s.it != nil && s.results%query.Batch > 0 && s.err == nil {
		s.err = s.step()
	}
	n, _ := slices.BinarySearchFunc(s.at, end, keyspace.Compare)
	switch {
	case s.err != nil:
	case n < len(s.at):
		clear(s.stamps[n:]) // so that the entities can be collected
		s.at, s.stamps, s.all, s.it = s.at[:n], s.stamps[:n], true, nil
	case !s.all:
		s.beginAgain()
	}
}

// Waited returns how long the last query took until its first result; 0: unknown.
func (s *Stream) Waited() time.Duration { return time.Duration(s.waited.Load()) }

// Peek returns the next n positions, or fewer if the range ends before. It does not drop them, so
// the next call returns them again. After an error, even one of a read in the background, the
// stream can't be used any more.
func (s *Stream) Peek(n int) ([]*keyspace.Position, error) {
	defer s.use()()
	if s.err == nil {
		s.err = s.fill(n)
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.at[:min(n, len(s.at))], nil
}

// fill reads until the stream has n positions, or until the end of the range.
func (s *Stream) fill(n int) error {
	for len(s.at) < n && !s.all {
		if err := s.step(); err != nil {
			return err
		}
	}
	return nil
}

// step reads the next position. At the end of a scan it starts the next one.
func (s *Stream) step() error {
	if s.it == nil {
		return s.begin()
	}
	p, stamp, err := next(s.scan, s.it, s.taken)
	switch {
	case errors.Is(err, iterator.Done):
		if s.it = nil; s.results == s.limit {
			s.beginAgain()
		}
		s.Few = 0
		return nil
	case s.source.At.ended(s.begun, err):
		s.beginAgain()
		return nil
	case err != nil:
		return err
	}
	if s.results == 0 {
		s.waited.Store(int64(time.Since(s.begun)))
	}
	s.results++
	if s.last != nil {
		switch c := keyspace.Compare(s.last, p); {
		case c == 0:
			return nil // a projection returns an entity once for each value that satisfies a filter
		case c > 0:
			return ErrOrder
		}
	}
	if s.last = p; !s.query.Share.Has(p.Key) {
		return nil
	}
	s.appends.Lock()
	defer s.appends.Unlock()
	if s.at = append(s.at, p); s.Whole {
		s.stamps = append(s.stamps, stamp)
	}
	return nil
}

// PeekLater calls [Stream.Peek] in the background. The function that it returns waits for the
// result.
func (s *Stream) PeekLater(n int) func() ([]*keyspace.Position, error) {
	var at []*keyspace.Position
	var err error
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		at, err = s.Peek(n)
	}()
	return func() ([]*keyspace.Position, error) {
		<-ready
		return at, err
	}
}

// ReadAhead reads in the background until the stream has the next n positions, counted from its
// current position. Positions that are dropped before the read starts count as read.
func (s *Stream) ReadAhead(n int) {
	until := s.passed.Load() + int64(n)
	go func() {
		defer s.use()()
		if s.err == nil {
			s.err = s.fill(int(until - s.passed.Load()))
		}
	}()
}

// Known returns the positions that were read and not dropped yet.
func (s *Stream) Known() Prefix {
	defer s.use()()
	return Prefix{At: s.at, All: s.all}
}

// Pass drops all positions before start, which must have been read.
func (s *Stream) Pass(start *keyspace.Position) {
	defer s.use()()
	n, _ := slices.BinarySearchFunc(s.at, start, keyspace.Compare)
	s.dropFirst(n)
}

// Drop drops the first n positions that were read.
func (s *Stream) Drop(n int) {
	defer s.use()()
	s.dropFirst(n)
}

func (s *Stream) dropFirst(n int) {
	s.passed.Add(int64(n))
	s.at = s.at[n:]
	if s.Whole {
		clear(s.stamps[:n]) // so that the entities can be collected
		s.stamps = s.stamps[n:]
	}
}

// Read returns the entities at some positions that the stream has read and not dropped. It is a
// [Reader]. It does not wait for a goroutine that reads in advance. Only the goroutine that drops
// positions may call it.
func (s *Stream) Read(at []*keyspace.Position) ([]wire.Stamp, error) {
	if len(at) == 0 {
		return nil, nil
	}
	s.appends.Lock()
	defer s.appends.Unlock()
	n, _ := slices.BinarySearchFunc(s.at, at[0], keyspace.Compare)
	return slices.Clone(s.stamps[n : n+len(at)]), nil
}

// Close cancels the stream's reads in the background, and waits until they have ended.
func (s *Stream) Close() {
	s.cancel()
	s.use()()
}

// A Prefix holds the positions of a range's entities from its start on, as far as they were read.
type Prefix struct {
	At  []*keyspace.Position
	All bool // whether the range has no further entities
}

// ErrOrder says that the database returns entities in another order than Datastore does. It is
// fatal, because retries do not help.
var ErrOrder = fault.Fatal(errors.New(
	"the database orders keys in another way than Datastore does, so ranges of keys can't be trusted"))

// KeysDigest returns how many entities of a query are in a range, and a hash over their keys.
func (src Source) KeysDigest(
	ctx context.Context, q query.Query, start, end *keyspace.Position,
) (n int64, digest []byte, err error) {
	// Each range is read from a snapshot of its own.
	s := NewStream(ctx, src.Of(ctx, q), q, start, end, false)
	defer s.Close()
	d := record.NewDigest(record.PageDigest)
	for {
		at, err := s.Peek(query.Batch)
		if err != nil {
			return 0, nil, err
		}
		if len(at) == 0 {
			return n, d.Sum(), nil
		}
		for _, p := range at {
			d.Key(p.Key)
		}
		n += int64(len(at))
		s.Drop(len(at))
	}
}
