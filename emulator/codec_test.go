package emulator_test

import (
	"bytes"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
)

// wireCodec lets a client see the bytes of an answer.
type wireCodec struct{}

func (wireCodec) Marshal(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }
func (wireCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}
func (wireCodec) Name() string { return "proto" }

// TestEqualAnswersHaveEqualBytes repeats calls whose answers have maps. Clients of other languages
// keep a map's order on the wire, so with a random order their tests could not compare texts.
func TestEqualAnswersHaveEqualBytes(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	invoke := func(address, method string, request proto.Message) []byte {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var answer []byte
		if err := conn.Invoke(t.Context(), method, request, &answer, grpc.ForceCodec(wireCodec{})); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const names = "abcdefgh"
	entity := &datastorepb.Entity{Key: pathKey("K", "a"), Properties: make(map[string]*datastorepb.Value)}
	query := &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: "K"}}}
	aggregations := &datastorepb.AggregationQuery{QueryType: &datastorepb.AggregationQuery_NestedQuery{
		NestedQuery: proto.CloneOf(query)}}
	mask, headers := new(datastorepb.PropertyMask), make(map[string]string)
	for i, r := range names {
		name := string(r)
		entity.Properties[name] = &datastorepb.Value{
			ValueType: &datastorepb.Value_IntegerValue{IntegerValue: int64(i)}}
		query.Projection = append(query.Projection,
			&datastorepb.Projection{Property: &datastorepb.PropertyReference{Name: name}})
		if i < 5 { // the limit of a query
			aggregations.Aggregations = append(aggregations.Aggregations, &datastorepb.AggregationQuery_Aggregation{
				Alias: name, Operator: &datastorepb.AggregationQuery_Aggregation_Count_{}})
		}
		mask.Paths = append(mask.Paths, name)
		headers["X-"+name] = name
	}
	invoke(e.DatastoreAddr(), datastorepb.Datastore_Commit_FullMethodName, &datastorepb.CommitRequest{ProjectId: "p",
		Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*datastorepb.Mutation{
			{Operation: &datastorepb.Mutation_Upsert{Upsert: entity}}}})
	const location = "projects/p/locations/l"
	const queue = location + "/queues/q"
	invoke(e.TasksAddr(), cloudtaskspb.CloudTasks_CreateQueue_FullMethodName, &cloudtaskspb.CreateQueueRequest{
		Parent: location, Queue: &cloudtaskspb.Queue{Name: queue}})
	invoke(e.TasksAddr(), cloudtaskspb.CloudTasks_PauseQueue_FullMethodName,
		&cloudtaskspb.PauseQueueRequest{Name: queue})
	invoke(e.TasksAddr(), cloudtaskspb.CloudTasks_CreateTask_FullMethodName, &cloudtaskspb.CreateTaskRequest{
		Parent: queue, Task: &cloudtaskspb.Task{Name: queue + "/tasks/t", MessageType: &cloudtaskspb.Task_HttpRequest{
			HttpRequest: &cloudtaskspb.HttpRequest{Url: "http://localhost", Headers: headers}}}})
	for name, call := range map[string]struct {
		address, method string
		request         proto.Message
	}{
		"a projection": {e.DatastoreAddr(), datastorepb.Datastore_RunQuery_FullMethodName, &datastorepb.RunQueryRequest{
			ProjectId: "p", QueryType: &datastorepb.RunQueryRequest_Query{Query: query}}},
		"aggregations": {e.DatastoreAddr(), datastorepb.Datastore_RunAggregationQuery_FullMethodName,
			&datastorepb.RunAggregationQueryRequest{ProjectId: "p",
				QueryType: &datastorepb.RunAggregationQueryRequest_AggregationQuery{AggregationQuery: aggregations}}},
		"a property mask": {e.DatastoreAddr(), datastorepb.Datastore_Lookup_FullMethodName, &datastorepb.LookupRequest{
			ProjectId: "p", Keys: []*datastorepb.Key{entity.Key}, PropertyMask: mask}},
		"headers of a task": {e.TasksAddr(), cloudtaskspb.CloudTasks_GetTask_FullMethodName,
			&cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/t"}},
	} {
		first := invoke(call.address, call.method, call.request)
		for range 20 {
			if again := invoke(call.address, call.method, call.request); !bytes.Equal(first, again) {
				t.Errorf("%s: %q, and then %q", name, first, again)
				break
			}
		}
	}
	body, err := proto.Marshal(&datastorepb.RunQueryRequest{
		QueryType: &datastorepb.RunQueryRequest_Query{Query: query}})
	if err != nil {
		t.Fatal(err)
	}
	_, first := post(t, e, "/v1/projects/p:runQuery", asProto, string(body))
	for range 20 {
		if code, again := post(t, e, "/v1/projects/p:runQuery", asProto, string(body)); code != 200 || again != first {
			t.Fatalf("a projection over REST: %d %q, and then %q", code, first, again)
		}
	}
}
