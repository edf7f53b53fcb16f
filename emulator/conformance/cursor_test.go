package conformance

import (
	"errors"
	"fmt"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// pieces returns a test case that reads a query in pieces of size results, each from the cursor at
// which the last one ended. Between two pieces, it calls between, which changes entities.
func pieces(q *datastore.Query, size int, between func(e *env)) func(*env) string {
	return func(e *env) string {
		letters(e)
		var all []string
		var cursor datastore.Cursor
		for range 10 {
			it := e.client.Run(e.Context(), q.Start(cursor).Limit(size).KeysOnly())
			n := 0
			for ; ; n++ {
				key, err := it.Next(nil)
				if errors.Is(err, iterator.Done) {
					break
				}
				if err != nil {
					return outcome(err)
				}
				all = append(all, key.Name)
			}
			if n == 0 {
				break
			}
			var err error
			cursor, err = it.Cursor()
			e.must(err)
			between(e)
		}
		return strings.Join(all, " ")
	}
}

func nothing(*env) {}

// moved returns a test case that runs one query, and then another one from the cursor at its end.
func moved(q, other *datastore.Query, use func(*datastore.Query, datastore.Cursor) *datastore.Query,
) func(*env) string {
	return func(e *env) string {
		letters(e)
		it := e.client.Run(e.Context(), q.KeysOnly())
		for {
			if _, err := it.Next(nil); errors.Is(err, iterator.Done) {
				break
			} else if err != nil {
				return outcome(err)
			}
		}
		cursor, err := it.Cursor()
		e.must(err)
		return e.keys(use(other, cursor))
	}
}

func start(q *datastore.Query, c datastore.Cursor) *datastore.Query { return q.Start(c) }
func end(q *datastore.Query, c datastore.Cursor) *datastore.Query   { return q.End(c) }

func (e *env) runQuery(q *pb.Query) (*pb.RunQueryResponse, error) {
	return e.raw.RunQuery(e.Context(),
		&pb.RunQueryRequest{ProjectId: e.project, QueryType: &pb.RunQueryRequest_Query{Query: q}})
}

var kindP = []*pb.KindExpression{{Name: "P"}}

var cursorCases = []conformanceCase{
	{name: "by key", doc: "a cursor continues a query", run: pieces(all, 2, nothing), want: "a b c d e f g h i"},
	{name: "by value", doc: "among equal values, too", run: pieces(all.Order("s"), 1, nothing),
		want: "e f a c g i b h d"},
	{name: "descending", doc: "in any order", run: pieces(all.Order("-__key__"), 4, nothing),
		want: "i h g f e d c b a"},
	{name: "filtered", doc: "with filters", run: pieces(all.FilterField("s", "=", "x"), 3, nothing), want: "a c g i"},
	{name: "disjunctions", doc: "of a union",
		run:  pieces(or(where("s", "=", "w"), where("n", "=", 2), where("s", "=", "x")), 2, nothing),
		want: "a b c f g i", classic: refusedBy("InvalidArgument")},
	{name: "while entities vanish", doc: "a cursor is a position, valid though the entity that it was made at is gone",
		run: pieces(all, 3, func(e *env) {
			_, err := e.commit(remove(e.name("P", "c")), remove(e.name("P", "d")))
			e.must(err)
		}), want: "a b c e f g h i"},
	{name: "while entities appear", doc: "what is inserted ahead is seen, what is inserted behind is not",
		run: pieces(all, 3, func(e *env) { e.put("P", "bb"); e.put("P", "hh") }), want: "a b c d e f g h hh i"},
	{name: "on every result", doc: "each result has the cursor behind it", run: func(e *env) string {
		letters(e)
		resp, err := e.runQuery(&pb.Query{Kind: kindP})
		e.must(err)
		resp, err = e.runQuery(&pb.Query{Kind: kindP, StartCursor: resp.Batch.EntityResults[2].Cursor,
			EndCursor: resp.Batch.EntityResults[5].Cursor})
		e.must(err)
		return names(resp)
	}, want: "d e f"},
	{name: "skipped results", doc: "an offset has a cursor of its own", run: func(e *env) string {
		letters(e)
		resp, err := e.runQuery(&pb.Query{Kind: kindP, Offset: 3, Limit: wrapperspb.Int32(1)})
		e.must(err)
		if resp.Batch.SkippedResults != 3 {
			return "no skipped results"
		}
		resp, err = e.runQuery(&pb.Query{Kind: kindP, StartCursor: resp.Batch.SkippedCursor})
		e.must(err)
		return names(resp)
	}, want: "d e f g h i",
		firestore: &difference{"a b c d e f g h i", "the Firestore emulator returns no cursor for what it skipped"}},
	{name: "skipped results without others", doc: "the offset comes before the limit", run: func(e *env) string {
		letters(e)
		resp, err := e.runQuery(&pb.Query{Kind: kindP, Offset: 3, Limit: wrapperspb.Int32(0)})
		e.must(err)
		return fmt.Sprint(resp.Batch.SkippedResults, " skipped, ", resp.Batch.MoreResults)
	}, want: "3 skipped, MORE_RESULTS_AFTER_LIMIT"},
	{name: "end before the first", doc: "the end of nothing is an end", run: func(e *env) string {
		letters(e)
		resp, err := e.runQuery(&pb.Query{Kind: kindP, Limit: wrapperspb.Int32(0)})
		e.must(err)
		resp, err = e.runQuery(&pb.Query{Kind: kindP, EndCursor: resp.Batch.EndCursor})
		e.must(err)
		return names(resp)
	}, want: "", firestore: &difference{"a b c d e f g h i", "the Firestore emulator ignores such a cursor"}},
	{name: "backwards", doc: "a cursor may also be used in a query whose sort order has been reversed",
		run: moved(all.Order("__key__").Limit(3), all.Order("-__key__"), start), want: "c b a"},
	{name: "forwards again", doc: "a cursor may also be used in a query whose sort order has been reversed",
		run: moved(all.Order("-__key__").Limit(3), all.Order("__key__"), start), want: "g h i"},
	{name: "backwards by values", doc: "a cursor may also be used in a query whose sort order has been reversed",
		run:  moved(all.Order("s").Order("-n").Limit(4), all.Order("-s").Order("n").Order("-__key__"), start),
		want: "i c g e"},
	{name: "backwards to an end", doc: "a cursor may also be used in a query whose sort order has been reversed",
		run: moved(all.Order("__key__").Limit(6), all.Order("-__key__"), end), want: "i h g"},
	{name: "order by the key", doc: "results are in key order anyway",
		run: moved(all.Limit(6), all.Order("__key__"), start), want: "g h i"},
	{name: "implied order", doc: "an inequality orders the results",
		run:  moved(all.FilterField("n", ">", 1).Order("n").Limit(1), all.FilterField("n", ">", 1), start),
		want: "i c d g h"},
	{name: "another filter", doc: "a position is not bound to a filter",
		run: moved(all.FilterField("s", "=", "x").Limit(2), all, start), want: "d e f g h i"},
	{name: "without kind", doc: "a position is one among the entities of all kinds, too",
		run: moved(all.Limit(6), datastore.NewQuery(""), start), want: "g h i"},
	{name: "of another kind", doc: "is refused",
		run: moved(all.Limit(2), datastore.NewQuery("Q"), start), want: "InvalidArgument"},
	{name: "of another order", doc: "is refused",
		run: moved(all.Order("n").Limit(2), all.Order("s"), start), want: "InvalidArgument",
		firestore: &difference{"*", "the Firestore emulator compares values only"}},
	{name: "garbage", doc: "a cursor has to be one of the query", run: func(e *env) string {
		letters(e)
		_, err := e.runQuery(&pb.Query{Kind: kindP, StartCursor: []byte("garbage")})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "more results after limit", doc: "the batch says whether the limit ended it", run: func(e *env) string {
		letters(e)
		var all []string
		for _, limit := range []int32{3, 9, 20} {
			resp, err := e.runQuery(&pb.Query{Kind: kindP, Limit: wrapperspb.Int32(limit)})
			e.must(err)
			all = append(all, resp.Batch.MoreResults.String())
		}
		return strings.Join(all, " ")
	}, want: "MORE_RESULTS_AFTER_LIMIT NO_MORE_RESULTS NO_MORE_RESULTS",
		classic: &difference{"MORE_RESULTS_AFTER_LIMIT MORE_RESULTS_AFTER_LIMIT MORE_RESULTS_AFTER_LIMIT",
			"the classic emulator always says so"}},
}

func names(resp *pb.RunQueryResponse) string {
	var all []string
	for _, r := range resp.Batch.EntityResults {
		all = append(all, last(r.Entity.Key))
	}
	return strings.Join(all, " ")
}
