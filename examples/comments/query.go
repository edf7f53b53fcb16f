package main

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Limits of one answer to a query: the number of results, and roughly their bytes.
const (
	mostResults = 2000
	mostBytes   = 8 << 20
)

// runQuery answers a query. It queries the shards concurrently, and reads from each as many results
// as may be needed. Then it merges the results.
func (r *router) runQuery(ctx context.Context, req *pb.RunQueryRequest) (*pb.RunQueryResponse, error) {
	comments, err := ofTable(req.PartitionId, req.GetQuery())
	if err != nil {
		return nil, err
	}
	return reading(ctx, r, req.ReadOptions, func(v *view) (*pb.RunQueryResponse, error) {
		if comments {
			return v.runQuery(ctx, req)
		}
		other := proto.Clone(req).(*pb.RunQueryRequest)
		if other.ReadOptions, err = v.passed(ctx, req.ReadOptions); err != nil {
			return nil, err
		}
		resp, err := r.databases[0].api().RunQuery(ctx, other)
		if err == nil && v.tx != nil {
			resp.Transaction = v.begun
		}
		return resp, err
	})
}

func (v *view) runQuery(ctx context.Context, req *pb.RunQueryRequest) (*pb.RunQueryResponse, error) {
	if req.ExplainOptions != nil {
		return nil, errExplain
	}
	s, err := v.search(ctx, req.GetQuery())
	if err != nil {
		return nil, err
	}
	batch, err := s.batch(ctx)
	return &pb.RunQueryResponse{Batch: batch, Transaction: v.begun}, err
}

var errExplain = status.Error(codes.Unimplemented, "the store does not explain queries: ask for the plan of a "+
	"shard's kind")

// passed returns the read options with which a query of other kinds is passed on, so that it reads
// in the view's transaction. Without a transaction these are the given options.
func (v *view) passed(ctx context.Context, o *pb.ReadOptions) (*pb.ReadOptions, error) {
	if v.tx == nil {
		return o, nil
	}
	s, err := v.on(ctx, v.router.databases[0])
	if err != nil {
		return nil, err
	}
	return s.options(), nil
}

// A search is the state of a query that is merged from several shards.
type search struct {
	router  *router
	query   *pb.Query
	sort    *sort
	streams []*stream

	last      place // the place of the last result; only results after it are wanted
	begun     bool  // whether last is set
	until     *place
	print     uint32
	remaining int // number of results that are still to be read, including those to skip; negative: all
}

// search starts a query in all shards that may have results.
func (v *view) search(ctx context.Context, q *pb.Query) (*search, error) {
	s := &search{router: v.router, query: q, sort: sortOf(q, v.router.databases), print: printOf(q), remaining: -1}
	if q.Limit != nil {
		s.remaining = int(q.Limit.Value) + int(q.Offset)
	}
	if q.Offset < 0 || q.Limit.GetValue() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "the offset %d or the limit %d of the query is negative",
			q.Offset,
			q.Limit.GetValue())
	}
	from, err := s.cursor(q.StartCursor)
	if err != nil {
		return nil, err
	}
	if from != nil {
		s.last, s.begun = from.place(), len(from.Form) > 0
	}
	until, err := s.cursor(q.EndCursor)
	if err != nil {
		return nil, err
	}
	if until != nil {
		p := until.place()
		s.until = &p
	}
	if err := s.sort.mergeable(q); err != nil {
		return nil, err
	}
	for _, d := range v.router.databasesOf(q.Filter) {
		in, err := v.on(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, kind := range in.kindsOf(v.router, q.Filter) {
			s.open(in, kind, from)
		}
	}
	if len(s.streams) > 0 {
		return s, nil
	}
	// No shard can have results. Query one anyway, so that an invalid query gets an error. This is
	// not in the caller's transaction, which may be of another database.
	in := &session{db: v.router.databases[0]}
	if v.tx == nil {
		in, err = v.on(ctx, in.db)
	} else if err = v.router.readLayout(ctx, in); err == nil {
		in.at = nil
	}
	if err != nil {
		return nil, err
	}
	s.open(in, in.layout.all(0, len(v.router.databases))[0], from)
	return s, nil
}

// open adds the stream of one shard, whose kind is given, to the search. It starts at the shard's
// cursor in the parameter from, or at the shard's start if from is nil.
func (s *search) open(in *session, kind string, from *cursor) {
	q := proto.Clone(s.query).(*pb.Query)
	q.Kind = []*pb.KindExpression{{Name: kind}}
	q.Offset, q.Limit, q.StartCursor, q.EndCursor = 0, nil, nil, nil
	q.Filter = within(q.Filter, kind)
	s.complete(q)
	st := &stream{session: in, kind: kind, query: q}
	if from != nil {
		st.taken = from.Kinds[kind]
		st.next = st.taken
	}
	s.streams = append(s.streams, st)
}

// complete adds to a shard's query the properties that are needed to merge the results.
func (s *search) complete(q *pb.Query) {
	names := projected(q)
	byValue := func(o *pb.PropertyOrder) bool { return o.Property.GetName() != keyProperty }
	if keysOnly(q) && slices.ContainsFunc(s.sort.orders, byValue) {
		q.Projection = nil
	}
	if len(names) == 0 {
		return
	}
	q.Order = s.sort.orders
	q.Projection = nil
	for _, o := range s.sort.orders {
		if name := o.Property.GetName(); name != keyProperty && !s.sort.equal(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		q.Projection = append(q.Projection, &pb.Projection{Property: &pb.PropertyReference{Name: name}})
	}
}

// mergeable returns an error for a projection whose results can't be merged. They lack a property
// of the order if a condition gives it several values, and nobody can tell which one a result has.
func (s *sort) mergeable(q *pb.Query) error {
	for _, o := range s.orders {
		if name := o.Property.GetName(); len(projected(q)) > 0 && s.given[name] && !s.equal(name) {
			return status.Errorf(codes.InvalidArgument,
				"a projection over several shards can't be ordered by %s, on which a "+
					"condition has "+
					"IN or OR: ask for whole comments", name)
		}
	}
	return nil
}

// equal reports whether a condition determines the value of a property.
func (s *sort) equal(name string) bool {
	return slices.ContainsFunc(s.ranges[name], func(p *pb.PropertyFilter) bool {
		return p.Op == pb.PropertyFilter_EQUAL
	})
}

// batch returns the next results, for one answer.
func (s *search) batch(ctx context.Context) (*pb.QueryResultBatch, error) {
	b := &pb.QueryResultBatch{EntityResultType: resultType(s.query)}
	bytes := 0
	for {
		if s.query.Limit != nil && len(b.EntityResults) >= int(s.query.Limit.Value) {
			b.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_LIMIT
			break
		}
		st, err := s.least(ctx)
		if err != nil {
			return nil, err
		}
		if st == nil {
			b.MoreResults = pb.QueryResultBatch_NO_MORE_RESULTS
			break
		}
		if s.until != nil && !st.place.beside(*s.until) {
			b.MoreResults = pb.QueryResultBatch_MORE_RESULTS_AFTER_CURSOR
			break
		}
		if len(b.EntityResults) >= mostResults || bytes >= mostBytes {
			b.MoreResults = pb.QueryResultBatch_NOT_FINISHED
			break
		}
		result, at := st.take()
		if s.begun && at.beside(s.last) {
			// another shard has returned the same comment, or the result does not differ as
			// distinct-on requires
			continue
		}
		s.last, s.begun = at, true
		if b.SkippedResults < s.query.Offset {
			if b.SkippedResults++; b.SkippedResults == s.query.Offset {
				b.SkippedCursor = s.encode(false)
			}
			continue
		}
		shown := s.shown(result)
		shown.Cursor = s.encode(false)
		bytes += proto.Size(shown.Entity)
		b.EntityResults = append(b.EntityResults, shown)
	}
	b.EndCursor = s.encode(true)
	if b.SkippedResults > 0 && b.SkippedResults < s.query.Offset {
		b.SkippedCursor = b.EndCursor
	}
	return b, nil
}

func resultType(q *pb.Query) pb.EntityResult_ResultType {
	switch {
	case keysOnly(q):
		return pb.EntityResult_KEY_ONLY
	case len(q.Projection) > 0:
		return pb.EntityResult_PROJECTION
	}
	return pb.EntityResult_FULL
}

// shown converts a result for callers.
func (s *search) shown(result *pb.EntityResult) *pb.EntityResult {
	shown := s.router.shown(result)
	switch {
	case keysOnly(s.query):
		shown.Entity.Properties = nil
	case len(s.query.Projection) > 0:
		names := projected(s.query)
		maps.DeleteFunc(shown.Entity.Properties, func(name string, _ *pb.Value) bool {
			return !slices.Contains(names, name)
		})
	}
	return shown
}

// least returns the stream whose next result comes first in the order. It returns nil if no stream
// has results left.
func (s *search) least(ctx context.Context) (*stream, error) {
	n := max(20, mostResults*3/2/len(s.streams))
	if s.remaining >= 0 {
		n = min(n, max(1, s.remaining))
	}
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for _, st := range s.streams {
		if len(st.results) == 0 && !st.done {
			group.Go(func() error { return st.fetch(asking, n) })
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var least *stream
	for _, st := range s.streams {
		if len(st.results) == 0 {
			continue
		}
		if !st.placed {
			var err error
			if st.place, err = s.sort.place(st.results[0].Entity); err != nil {
				return nil, err
			}
			if st.placed = true; st.place.form < st.before {
				return nil, status.Errorf(codes.Internal,
					"the results of %s are in another order than the store expects, at %v: "+
						"results of several shards can't be merged", st.kind, clientKey(st.results[0].Entity.Key))
			}
			st.before = st.place.form
		}
		if least == nil || st.place.form < least.place.form {
			least = st
		}
	}
	return least, nil
}

// A stream has results of one shard that were read and not returned yet.
type stream struct {
	session *session
	kind    string
	query   *pb.Query
	results []*pb.EntityResult
	place   place // the place of the first of the results
	placed  bool
	before  string // the ordered form of the place of the last result that was returned
	next    []byte // the shard's cursor after the results that were read
	done    bool
	taken   []byte // the shard's cursor after the last result that was returned
}

// fetch reads up to n results of the shard, if the stream has no results left.
func (st *stream) fetch(ctx context.Context, n int) error {
	for len(st.results) == 0 && !st.done {
		st.query.StartCursor, st.query.Limit = st.next, wrapperspb.Int32(int32(n))
		resp, err := read(ctx, func() (*pb.RunQueryResponse, error) {
			return st.session.db.api().RunQuery(ctx, &pb.RunQueryRequest{ProjectId: st.session.db.project,
				DatabaseId:  st.session.db.name,
				PartitionId: &pb.PartitionId{ProjectId: st.session.db.project, DatabaseId: st.session.db.name},
				ReadOptions: st.session.options(), QueryType: &pb.RunQueryRequest_Query{Query: st.query}})
		})
		if err != nil {
			return st.session.hint(err)
		}
		b := resp.Batch
		st.results = b.EntityResults
		switch b.MoreResults {
		case pb.QueryResultBatch_NOT_FINISHED:
		case pb.QueryResultBatch_MORE_RESULTS_AFTER_LIMIT, pb.QueryResultBatch_MORE_RESULTS_AFTER_CURSOR:
			st.done = len(b.EntityResults) == 0
		default:
			st.done = true
		}
		if !st.done && string(b.EndCursor) == string(st.next) && len(b.EntityResults) == 0 {
			return status.Errorf(codes.Internal, "the query of %s does not go on", st.kind)
		}
		st.next = b.EndCursor
	}
	return nil
}

// hint adds to an error about a missing index that the kinds of all shards need the index. It
// returns other errors unchanged.
func (s *session) hint(err error) error {
	if status.Code(err) != codes.FailedPrecondition {
		return err
	}
	kinds := kindsOf(s.layout.written())
	return status.Errorf(codes.FailedPrecondition,
		"%s\nComments are in the kinds %s to %s: each of them needs it, see "+
			"index.yaml of this program",
		status.Convert(err).Message(), kinds[0], kinds[len(kinds)-1])
}

// take removes the first of a stream's results, and returns it with its place.
func (st *stream) take() (*pb.EntityResult, place) {
	result := st.results[0]
	st.results, st.placed = st.results[1:], false
	if len(result.Cursor) > 0 {
		st.taken = result.Cursor
	}
	return result, st.place
}

// A cursor is the position of a query in its results. It contains a cursor for each shard, so that
// the query continues without reading earlier results. After a move, a shard may have no cursor.
// Then the query reads the shard from its start, and drops results before the position.
type cursor struct {
	Print uint32            `json:"q"` // identifies the query, so that the cursor is not used for another one
	Form  []byte            `json:"p"` // the ordered form of the place after which the query continues
	Group int               `json:"g,omitempty"`
	Kinds map[string][]byte `json:"k,omitempty"`
}

func (c *cursor) place() place { return place{string(c.Form), min(max(c.Group, 0), len(c.Form))} }

// encode returns the cursor of the position after the last result. If shards is set, the cursor
// contains the cursors of the shards, too.
func (s *search) encode(shards bool) []byte {
	c := &cursor{Print: s.print, Form: []byte(s.last.form), Group: s.last.group}
	if shards {
		c.Kinds = make(map[string][]byte)
		for _, st := range s.streams {
			if st.taken != nil {
				c.Kinds[st.kind] = st.taken
			}
		}
	}
	b, _ := json.Marshal(c) // can't fail: it has only texts and numbers
	return b
}

// cursor decodes the cursor b. It returns nil if b is empty, and an error if the cursor belongs to
// another query.
func (s *search) cursor(b []byte) (*cursor, error) {
	if len(b) == 0 {
		return nil, nil
	}
	c := new(cursor)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, status.Error(codes.InvalidArgument, "the cursor is none of this store")
	}
	if c.Print != s.print {
		return nil, status.Error(codes.InvalidArgument,
			"the cursor is one of another query: its kind, conditions, orders "+
				"and projection have to be the same")
	}
	return c, nil
}

// printOf returns a hash that identifies a query. It ignores limit, offset and cursors, which only
// choose a part of the results.
func printOf(q *pb.Query) uint32 {
	q = proto.Clone(q).(*pb.Query)
	q.Offset, q.Limit, q.StartCursor, q.EndCursor = 0, nil, nil, nil
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(q)
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}
