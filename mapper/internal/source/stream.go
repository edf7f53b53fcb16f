package source

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/semaphore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Stream reads where the entities of a range are, one after the other, or the entities
// themselves, and can be ahead of who uses them.
type Stream struct {
	query      query.Query
	start, End *keyspace.Position // of the range, when it was begun
	Whole      bool               // it reads entities
	Few        int                // if not 0: the first query has at most so many results,
	AtOnce     int                // and each of them at most so many

	ctx    context.Context // of its queries
	cancel context.CancelFunc
	source Source

	turn    *semaphore.Weighted // of who uses the rest, and may read
	scans   func() (s query.Scan, ok bool, err error)
	scan    query.Scan          // that is being read
	it      *datastore.Iterator // nil: none is
	begun   time.Time           // when that was
	limit   int                 // of its results,
	results int                 // and how many there were so far
	waited  atomic.Int64        // for the first result of the last one, a time.Duration
	passed  atomic.Int64        // positions that were dropped
	at      []*keyspace.Position
	last    *keyspace.Position // that was read
	stamps  []wire.Stamp       // if it reads entities: those, with their versions
	taken   *wire.Versions     // of the results that are to come; nil: it reads no entities
	all     bool
	err     error // why it is of no use any more
}

// NewStream returns a stream of a range of a query. It has to be closed.
func NewStream(ctx context.Context, src Source, q query.Query, start, end *keyspace.Position, whole bool) *Stream {
	s := &Stream{query: q, start: start, End: end, Whole: whole, AtOnce: mostAtOnce, source: src,
		turn: semaphore.NewWeighted(1)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.scans = src.scanner(s.ctx, q, start, end)
	return s
}

// mostAtOnce is how many results a query has. Datastore returns them in batches all the same;
// Google's Firestore emulator returns them in one answer, of which the client takes up to 4 MiB.
const mostAtOnce = 5 * query.Batch

// begin begins the next scan, if there is one.
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

// beginAgain has the stream go on with new scans, from the last position on.
func (s *Stream) beginAgain() {
	from := s.start
	if s.last != nil {
		from = s.last
	}
	s.it, s.scans = nil, s.source.scanner(s.ctx, s.query, from, s.End)
}

// use waits until nothing is read ahead. It is followed by a call of done.
func (s *Stream) use() (done func()) {
	_ = s.turn.Acquire(context.Background(), 1) // reading ends with its own context
	return func() { s.turn.Release(1) }
}

// Shorten has a stream of entities end where its range does by now: what is behind is read by
// others, and each entity that is read costs. But a batch that has begun to come is read to its
// end, as it is paid for.
func (s *Stream) Shorten(end *keyspace.Position) {
	if !s.Whole || end == nil || s.End != nil && keyspace.Compare(s.End, end) <= 0 {
		return
	}
	defer s.use()()
	s.End = end
	for s.it != nil && s.results%query.Batch > 0 && s.err == nil { // also behind the end: the order is checked
		s.err = s.step()
	}
	n, _ := slices.BinarySearchFunc(s.at, end, keyspace.Compare)
	switch {
	case s.err != nil:
	case n < len(s.at):
		clear(s.stamps[n:]) // for the garbage collector
		s.at, s.stamps, s.all, s.it = s.at[:n], s.stamps[:n], true, nil
	case !s.all:
		s.beginAgain()
	}
}

// Waited returns how long the last query took until it had a result; 0 is unknown.
func (s *Stream) Waited() time.Duration { return time.Duration(s.waited.Load()) }

// Peek returns where the next n entities are, or those that are left. After an error, which
// may be one of reading ahead, the stream is of no use any more.
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

// fill reads until n positions are known, or all.
func (s *Stream) fill(n int) error {
	for len(s.at) < n && !s.all {
		if err := s.step(); err != nil {
			return err
		}
	}
	return nil
}

// step reads the next position, or begins a scan, or ends one.
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
			return nil // a projection has an entity once for each value of a list that satisfies a filter
		case c > 0:
			return ErrOrder
		}
	}
	if s.last = p; !s.query.Share.Has(p.Key) {
		return nil
	}
	if s.at = append(s.at, p); s.Whole {
		s.stamps = append(s.stamps, stamp)
	}
	return nil
}

// PeekLater has the next n positions read while something else is done. Whoever asks for the
// result waits for it.
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

// ReadAhead has the next n positions read while something else is done. They are counted from
// where the stream is now, and not from where it is when the reading begins.
func (s *Stream) ReadAhead(n int) {
	until := s.passed.Load() + int64(n)
	go func() {
		defer s.use()()
		if s.err == nil {
			s.err = s.fill(int(until - s.passed.Load()))
		}
	}()
}

// Known returns the positions that were read and not passed.
func (s *Stream) Known() Prefix {
	defer s.use()()
	return Prefix{At: s.at, All: s.all}
}

// Pass drops what is before a position.
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
		clear(s.stamps[:n]) // for the garbage collector
		s.stamps = s.stamps[n:]
	}
}

// Read is a reader of the entities that the stream has read.
func (s *Stream) Read(at []*keyspace.Position) ([]wire.Stamp, error) {
	if len(at) == 0 {
		return nil, nil
	}
	defer s.use()()
	n, _ := slices.BinarySearchFunc(s.at, at[0], keyspace.Compare)
	return slices.Clone(s.stamps[n : n+len(at)]), nil
}

// Close ends the reading.
func (s *Stream) Close() {
	s.cancel()
	s.use()()
}

// A Prefix is what a look-ahead saw: where the first entities of a range are, in order.
type Prefix struct {
	At  []*keyspace.Position
	All bool // the range ends behind them
}

// ErrOrder is a fault of the database that no retry mends.
var ErrOrder = fault.Fatal(errors.New(
	"the database orders keys in another way than Datastore does, so ranges of keys can't be trusted"))

// KeysDigest returns how many entities of a query are in a range, and the digest of their keys.
func (src Source) KeysDigest(
	ctx context.Context, q query.Query, start, end *keyspace.Position,
) (n int64, digest []byte, err error) {
	// A call may end a snapshot: it is for one range.
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
