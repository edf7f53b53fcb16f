package conformance

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// speak returns a test case that runs a GQL query over the entities of letters. The bindings are
// the values of @1, @2 and so on.
func speak(query string, bindings ...any) func(*env) string {
	return func(e *env) string {
		letters(e)
		gql := &pb.GqlQuery{QueryString: query, AllowLiterals: true}
		for _, b := range bindings {
			gql.PositionalBindings = append(gql.PositionalBindings,
				&pb.GqlQueryParameter{ParameterType: &pb.GqlQueryParameter_Value{Value: value(b)}})
		}
		if strings.Contains(query, "COUNT(") {
			resp, err := e.raw.RunAggregationQuery(e.Context(), &pb.RunAggregationQueryRequest{ProjectId: e.project,
				QueryType: &pb.RunAggregationQueryRequest_GqlQuery{GqlQuery: gql}})
			if err != nil {
				return outcome(err)
			}
			return showAll(resp.Batch.AggregationResults[0].AggregateProperties)
		}
		resp, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project, QueryType: &pb.RunQueryRequest_GqlQuery{GqlQuery: gql}})
		if err != nil {
			return outcome(err)
		}
		if resp.Query == nil {
			return "the answer has no parsed query"
		}
		return names(resp)
	}
}

var gqlCases = []conformanceCase{
	{name: "all", doc: "SELECT * FROM kind", run: speak("SELECT * FROM P"), want: "a b c d e f g h i"},
	{name: "keys", doc: "SELECT __key__", run: speak("SELECT __key__ FROM P WHERE s = 'x'"), want: "a c g i"},
	{name: "filters", doc: "AND of conditions", run: speak("SELECT * FROM P WHERE n >= 2 AND n < 2.5 ORDER BY n"),
		want: "b i c d"},
	{name: "or", doc: "OR of conditions", run: speak("SELECT * FROM P WHERE s = 'w' OR n = 2"), want: "b f i",
		classic: refusedBy("InvalidArgument")},
	{name: "in", doc: "IN ARRAY", run: speak("SELECT * FROM P WHERE n IN ARRAY(1, 3)"), want: "a c",
		classic: refusedBy("InvalidArgument")},
	{name: "binding", doc: "bindings stand for values", run: speak("SELECT * FROM P WHERE s = @1 AND n = @2", "x", 2),
		want: "i"},
	{name: "missing binding", doc: "each has to be bound", run: speak("SELECT * FROM P WHERE s = @2", "x"),
		want: "InvalidArgument"},
	{name: "null", doc: "IS NULL", run: speak("SELECT * FROM P WHERE n IS NULL"), want: "e"},
	{name: "key literal", doc: "KEY(kind, name)", run: speak("SELECT * FROM P WHERE __key__ > KEY(P, 'f')"),
		want: "g h i"},
	{name: "order, limit, offset", doc: "as in the protocol",
		run: speak("SELECT * FROM P ORDER BY __key__ DESC LIMIT 2 OFFSET 1"), want: "h g"},
	{name: "projection", doc: "SELECT of properties", run: speak("SELECT n FROM P WHERE s = 'x'"), want: "a i c g"},
	{name: "distinct", doc: "SELECT DISTINCT", run: speak("SELECT DISTINCT s FROM P"), want: "e f a b d"},
	{name: "case", doc: "keywords in any case", run: speak("select * from P where s = 'w'"), want: "f"},
	{name: "count", doc: "SELECT COUNT(*)", run: speak("SELECT COUNT(*) AS n FROM P WHERE s = 'x'"), want: "{n=4}",
		classic: &difference{"Unimplemented", noAggregations}},
	{name: "aggregate over", doc: "AGGREGATE … OVER",
		run: speak("AGGREGATE COUNT(*) AS n OVER (SELECT * FROM P LIMIT 5)"), want: "{n=5}",
		classic: &difference{"Unimplemented", noAggregations}},
	{name: "syntax error", doc: "is refused", run: speak("SELECT FROM WHERE"), want: "InvalidArgument"},
	{name: "trailing text", doc: "is refused", run: speak("SELECT * FROM P extra"), want: "InvalidArgument"},
}
