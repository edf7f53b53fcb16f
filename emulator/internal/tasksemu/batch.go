package tasksemu

import (
	"context"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Limits of the number of tasks in one batch, from the documentation of the methods.
const (
	maxBatchCreate = 100
	maxBatchDelete = 1000
)

// BatchCreateTasks puts several tasks into one queue, each as CreateTask does. Some may fail while
// others succeed. The operation's metadata says which have failed.
func (s *Server) BatchCreateTasks(
	_ context.Context, req *pb.BatchCreateTasksRequest,
) (*longrunningpb.Operation, error) {
	q, err := s.queue(req.Parent)
	if err != nil {
		return nil, err
	}
	if n := len(req.Requests); n == 0 || n > maxBatchCreate {
		return nil, invalid("requests has to have 1 to %d tasks, it has %d", maxBatchCreate, n)
	}
	for i, r := range req.Requests {
		if r.GetParent() != req.Parent {
			return nil, invalid("requests[%d].parent has to be %q, as that of the batch, it is %q", i, req.Parent,
				r.GetParent())
		}
	}
	return s.operate("create", req.Parent, req.RequestId, func() *operation {
		begun := time.Now()
		resp := new(pb.BatchCreateTasksResponse)
		failed := make(map[int32]*rpcstatus.Status)
		for i, r := range req.Requests {
			task, err := s.createTask(q, r)
			if err != nil {
				failed[int32(i)] = status.Convert(err).Proto()
				continue
			}
			resp.Tasks = append(resp.Tasks, task)
		}
		metadata := &pb.BatchCreateTasksMetadata{
			StartTime: stamp(begun), EndTime: stamp(time.Now()),
			State: pb.BatchCreateTasksMetadata_SUCCEEDED, FailedRequests: failed,
		}
		o := &operation{
			started: &pb.BatchCreateTasksMetadata{StartTime: metadata.StartTime,
				State: pb.BatchCreateTasksMetadata_RUNNING},
			metadata: metadata, response: resp,
		}
		switch {
		case len(resp.Tasks) == 0:
			metadata.State, o.err = pb.BatchCreateTasksMetadata_FAILED, noneSucceeded("BatchCreateTasksMetadata")
		case len(failed) > 0:
			metadata.State = pb.BatchCreateTasksMetadata_PARTIALLY_SUCCEEDED
		}
		return o
	})
}

// BatchDeleteTasks deletes several tasks of one queue, each as DeleteTask does.
func (s *Server) BatchDeleteTasks(
	_ context.Context, req *pb.BatchDeleteTasksRequest,
) (*longrunningpb.Operation, error) {
	if _, err := s.queue(req.Parent); err != nil {
		return nil, err
	}
	if n := len(req.Names); n == 0 || n > maxBatchDelete {
		return nil, invalid("names has to have 1 to %d tasks, it has %d", maxBatchDelete, n)
	}
	for i, name := range req.Names {
		parent, _, err := splitTask(name)
		if err != nil {
			return nil, invalid("names[%d]: %s", i, status.Convert(err).Message())
		}
		if parent != req.Parent {
			return nil, invalid("names[%d]: the task %q is not one of the queue %q", i, name, req.Parent)
		}
	}
	return s.operate("delete", req.Parent, req.RequestId, func() *operation {
		begun := time.Now()
		failed := make(map[int32]*rpcstatus.Status)
		for i, name := range req.Names {
			if err := s.deleteTask(name); err != nil {
				failed[int32(i)] = status.Convert(err).Proto()
			}
		}
		metadata := &pb.BatchDeleteTasksMetadata{
			StartTime: stamp(begun), EndTime: stamp(time.Now()),
			State: pb.BatchDeleteTasksMetadata_SUCCEEDED, FailedRequests: failed,
		}
		o := &operation{
			started: &pb.BatchDeleteTasksMetadata{StartTime: metadata.StartTime,
				State: pb.BatchDeleteTasksMetadata_RUNNING},
			metadata: metadata, response: new(emptypb.Empty),
		}
		switch {
		case len(failed) == len(req.Names):
			metadata.State, o.err = pb.BatchDeleteTasksMetadata_FAILED, noneSucceeded("BatchDeleteTasksMetadata")
		case len(failed) > 0:
			metadata.State = pb.BatchDeleteTasksMetadata_PARTIALLY_SUCCEEDED
		}
		return o
	})
}

// noneSucceeded returns the documented error of a batch in which all tasks have failed. The
// parameter metadata is the type of the operation's metadata, which the error names.
func noneSucceeded(metadata string) *rpcstatus.Status {
	return status.Newf(codes.Aborted,
		"None of the requests succeeded, refer to %s.failed_requests for individual error details", metadata).Proto()
}
