package conformance

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// calling returns a test case that calls a method with a request in protobuf's text format, without
// its project. The text TX in the request stands for a new transaction.
func calling(method, request string) func(*env) string {
	return func(e *env) string {
		e.put("K", "a", "n", 1, "s", "x")
		request := request
		if strings.Contains(request, "TX") {
			request = strings.ReplaceAll(request, "TX",
				prototext.Format(&pb.RollbackRequest{Transaction: e.begin(nil)}))
		}
		message := func(suffix, text string) proto.Message {
			t, err := protoregistry.GlobalTypes.FindMessageByName(
				protoreflect.FullName("google.datastore.v1." + method + suffix))
			if err != nil {
				e.Fatal(err)
			}
			m := t.New().Interface()
			if err := prototext.Unmarshal([]byte(text), m); err != nil {
				e.Fatal(err)
			}
			return m
		}
		return outcome(e.conn.Invoke(e.Context(), "/google.datastore.v1.Datastore/"+method,
			message("Request", `project_id: "`+e.project+`" `+request), message("Response", "")))
	}
}

func querying(query string) func(*env) string {
	return calling("RunQuery", `query { kind { name: "K" } `+query+" }")
}

func storing(value string) func(*env) string {
	return calling("Commit", `mode: NON_TRANSACTIONAL mutations { upsert {
		key { path { kind: "K" name: "v" } } properties { key: "v" value { `+value+" } } } }")
}

func upserting(more string) func(*env) string {
	return calling("Commit", `mode: NON_TRANSACTIONAL mutations { upsert { key { path { kind: "K" name: "a" } } } `+
		more+" }")
}

func reading(more string) func(*env) string {
	return calling("Lookup", `keys { path { kind: "K" name: "none" } } `+more)
}

// refused returns a case that expects INVALID_ARGUMENT.
func refused(name, doc string, run func(*env) string) conformanceCase {
	return conformanceCase{name: name, doc: doc, run: run, want: "InvalidArgument"}
}

func accepted(name, doc string, run func(*env) string) conformanceCase {
	return conformanceCase{name: name, doc: doc, run: run, want: "OK"}
}

func (c conformanceCase) but(classic, firestore *difference) conformanceCase {
	c.classic, c.firestore = classic, firestore
	return c
}

// crashes says that an emulator of Google's panics.
var crashes = &difference{"Unknown", "it crashes"}

var requestCases = []conformanceCase{
	{name: "bad commit in a transaction", doc: "a refused request has no effect", run: func(e *env) string {
		tx := e.begin(nil)
		bad := outcome(e.commitIn(tx, upsert(e.name("__K__", "a"), nil)))
		return bad + " " + outcome(e.commitIn(tx, ups(e)))
	}, want: "InvalidArgument OK"},
	{name: "write in a read-only transaction", doc: "a refused request has no effect", run: func(e *env) string {
		tx := e.begin(readOnly)
		bad := outcome(e.commitIn(tx, ups(e)))
		_, err := e.lookup(inTx(tx), "K", "a")
		return bad + " " + outcome(err)
	}, want: "InvalidArgument OK"},
	accepted("commit of no mode", "the mode defaults to TRANSACTIONAL", calling("Commit", "TX")),
	refused("commit of no mode and transaction", "the mode defaults to TRANSACTIONAL", calling("Commit", "")),
	refused("commit of an unknown mode", "there are two", calling("Commit", "mode: 7")),
	refused("single use, read-only", "a commit is for a transaction that may write",
		calling("Commit", "mode: TRANSACTIONAL single_use_transaction { read_only { } }")),
	refused("negative base version", "versions are at least 0", upserting("base_version: -5")),
	refused("unknown resolution of conflicts", "there are two",
		upserting("base_version: 5 conflict_resolution_strategy: 9")),
	refused("insert of a version", "what has a version exists already", calling("Commit", `mode: NON_TRANSACTIONAL
		mutations { insert { key { path { kind: "K" name: "b" } } } base_version: 7 }`)),
	refused("insert of an update time", "what has a version exists already", calling("Commit", `mode: NON_TRANSACTIONAL
		mutations { insert { key { path { kind: "K" name: "b" } } } update_time { seconds: 7 } }`)),
	refused("update of version 0", "what has no version does not exist", calling("Commit", `mode: NON_TRANSACTIONAL
		mutations { update { key { path { kind: "K" name: "a" } } } base_version: 0 }`)),
	refused("version of an incomplete key", "a new key has no version", calling("Commit", `mode: NON_TRANSACTIONAL
		mutations { upsert { key { path { kind: "K" } } } base_version: 0 }`)),
	{name: "insert beside another insert", doc: "what exists can't be inserted, whatever the resolution",
		run: calling("Commit", `mode: NON_TRANSACTIONAL
			mutations { insert { key { path { kind: "K" name: "a" } } } base_version: 0 }`), want: "AlreadyExists"},
	{name: "update beside a delete", doc: "what does not exist can't be updated, whatever the resolution",
		run: calling("Commit", `mode: NON_TRANSACTIONAL
			mutations { update { key { path { kind: "K" name: "b" } } } base_version: 7 }`), want: "NotFound"},
	accepted("mask of a query for keys", "keys have nothing to mask", calling("RunQuery",
		`query { kind { name: "K" } projection { property { name: "__key__" } } } property_mask { paths: "n" }`)),

	refused("unknown read consistency", "there are two", reading("read_options { read_consistency: 77 }")).
		but(crashes, crashes),
	refused("no read consistency", "one of the two has to be chosen",
		reading("read_options { read_consistency: READ_CONSISTENCY_UNSPECIFIED }")),
	refused("read time before 1970", "is none", reading("read_options { read_time { seconds: -1 } }")),
	refused("mask of nothing", "a mask is checked even if no entity is found",
		reading(`property_mask { paths: "a..b" }`)),
	refused("mask of a query's nothing", "a mask is checked even if no entity is found",
		calling("RunQuery", `query { kind { name: "Q" } } property_mask { paths: "a..b" }`)).
		but(&difference{"OK", "the classic emulator ignores masks of queries"}, nil),

	refused("long kind of a query", "a kind has at most 1,500 bytes",
		calling("RunQuery", `query { kind { name: "`+long+`" } }`)),
	refused("unindexed filter value", "a filter is served by an index", querying(`filter { property_filter {
		property { name: "n" } op: EQUAL value { integer_value: 2 exclude_from_indexes: true } } }`)),
	refused("unknown direction", "there are two", querying(`order { property { name: "n" } direction: 7 }`)),
	refused("distinct twice", "once is enough", querying(`distinct_on { name: "s" } distinct_on { name: "s" }`)),
	refused("distinct by an equality", "all results have the same value", querying(`distinct_on { name: "s" }
		filter { property_filter { property { name: "s" } op: EQUAL value { string_value: "x" } } }`)),
	accepted("distinct by an inequality", "results have different values", querying(`distinct_on { name: "s" }
		filter { property_filter { property { name: "s" } op: GREATER_THAN value { string_value: "a" } } }`)),
	unserved(accepted("count up to 0", "the limit is not negative", calling("RunAggregationQuery",
		`aggregation_query { nested_query { kind { name: "K" } } aggregations { count { up_to { } } } }`))),
	unserved(refused("count up to -1", "the limit is not negative", calling("RunAggregationQuery",
		`aggregation_query { nested_query { kind { name: "K" } } aggregations { count { up_to { value: -1 } } } }`))),

	accepted("reserved kind of a value", "values may be keys that nobody can write",
		storing(`key_value { path { kind: "__x__" name: "__a__" } }`)),
	accepted("filter by a reserved kind", "values may be keys that nobody can write", querying(`filter {
		property_filter { property { name: "n" } op: EQUAL value { key_value { path { kind: "__x__" id: 1 } } } } }`)),
	refused("namespace of a value", "follows the rules of namespaces",
		storing(`key_value { partition_id { project_id: "other" namespace_id: "a b" } path { kind: "K" id: 1 } }`)),
	refused("project of a value", "follows the rules of projects",
		storing(`key_value { partition_id { project_id: "a b" } path { kind: "K" id: 1 } }`)),
	refused("database of a value", "follows the rules of databases",
		storing(`key_value { partition_id { database_id: "a b" } path { kind: "K" id: 1 } }`)),
	refused("empty key of an entity inside", "a key has a path", storing("entity_value { key { } }")),
	refused("key without kind of an entity inside", "a key has kinds", storing("entity_value { key { path { } } }")),
	refused("id 0 of an entity inside", "is no id", storing(`entity_value { key { path { kind: "X" id: 0 } } }`)),
	refused("incomplete parent of an entity inside", "only the last element can be incomplete",
		storing(`entity_value { key { path { kind: "X" } path { kind: "Y" id: 1 } } }`)),
}
