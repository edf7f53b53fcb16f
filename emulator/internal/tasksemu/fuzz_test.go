package tasksemu

import (
	"context"
	"errors"
	"math"
	"net/http"
	"reflect"
	"testing"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator/internal/meter"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nobody is there")
}

// FuzzRequests calls every method with arbitrary messages, and checks that none panics.
func FuzzRequests(f *testing.F) {
	const location, queue = "projects/p/locations/l", "projects/p/locations/l/queues/q"
	long := &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MinInt32}
	for _, m := range []proto.Message{
		new(pb.CreateTaskRequest),
		&pb.CreateTaskRequest{Parent: queue, Task: &pb.Task{
			Name: queue + "/tasks/t", ScheduleTime: &timestamppb.Timestamp{Seconds: math.MinInt64},
			DispatchDeadline: long,
			RetryConfig:      &pb.RetryConfig{MaxBackoff: long},
			MessageType: &pb.Task_HttpRequest{HttpRequest: &pb.HttpRequest{Url: "http://h/",
				Headers: map[string]string{"": ""}}},
		}},
		&pb.CreateQueueRequest{Parent: location, Queue: &pb.Queue{Name: location + "/queues/r",
			RateLimits: &pb.RateLimits{MaxDispatchesPerSecond: math.Inf(1)}}},
		&pb.UpdateQueueRequest{Queue: &pb.Queue{Name: queue, HttpTarget: &pb.HttpTarget{
			UriOverride: &pb.UriOverride{Host: new("h"), Port: proto.Int64(math.MaxInt64),
				PathOverride: new(pb.PathOverride)}, HeaderOverrides: []*pb.HttpTarget_HeaderOverride{{}},
		}}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"http_target.uri_override.host", "rate_limits"}}},
		&pb.ListQueuesRequest{Parent: location, Filter: "state: PAUSED", PageSize: -1},
		&pb.BatchCreateTasksRequest{Parent: queue, Requests: []*pb.CreateTaskRequest{{Parent: queue}}},
		&pb.BatchDeleteTasksRequest{Parent: queue, Names: []string{queue + "/tasks/t"}, RequestId: "r"},
		&pb.RunTaskRequest{Name: queue + "/tasks/t"},
	} {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		s := NewServer(Options{Transport: unreachable{}}, new(meter.Meter))
		defer s.Close()
		ctx := context.Background()
		setUp := func(m proto.Message, err error) {
			if err != nil {
				t.Fatal(m, err)
			}
		}
		setUp(s.CreateQueue(ctx, &pb.CreateQueueRequest{Parent: location, Queue: &pb.Queue{Name: queue}}))
		setUp(s.CreateTask(ctx, &pb.CreateTaskRequest{Parent: queue, Task: &pb.Task{
			Name: queue + "/tasks/t", MessageType: &pb.Task_HttpRequest{HttpRequest: &pb.HttpRequest{Url: "http://h/"}},
		}}))
		for _, service := range []any{pb.CloudTasksServer(s),
			longrunningpb.OperationsServer(operationsServer{server: s})} {
			v := reflect.ValueOf(service)
			for i := range v.NumMethod() {
				m := v.Method(i)
				if m.Type().NumIn() != 2 || m.Type().In(1).Kind() != reflect.Pointer {
					continue // not a method of the protocol
				}
				req, ok := reflect.New(m.Type().In(1).Elem()).Interface().(proto.Message)
				if !ok || proto.Unmarshal(wire, req) != nil {
					continue
				}
				out := m.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(req)})
				if out[1].IsNil() == out[0].IsNil() && out[1].IsNil() {
					t.Errorf("%s returned neither an answer nor an error", v.Type().Method(i).Name)
				}
			}
		}
	})
}
