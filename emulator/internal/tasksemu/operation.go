package tasksemu

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// operationAge is how long clients can read a finished operation. For production, this is not
// documented.
const operationAge = 24 * time.Hour

// An operation is the long-running operation of a batch call. The batch is complete before the call
// returns, but the returned operation says that it still runs. So a test notices a caller that does
// not wait. When the caller reads the operation again, it is done.
type operation struct {
	name              string
	started, metadata proto.Message
	response          proto.Message
	err               *rpcstatus.Status // the batch's error; if it is set, there is no response
	ready             chan struct{}     // closed when the batch is done
}

// operations has the operations that started in the last day.
type operations struct {
	byName    map[string]*operation
	byRequest map[requestKey]*operation
	ages      []aged // the operations, oldest first
}

type aged struct {
	at  time.Time
	key requestKey
	op  *operation
}

// A requestKey identifies a batch request. A second request with the same ID is a repetition.
type requestKey struct{ kind, queue, id string }

func newOperations() operations {
	return operations{byName: make(map[string]*operation), byRequest: make(map[requestKey]*operation)}
}

// forget drops the operations that are older than operationAge.
func (o *operations) forget(now time.Time) {
	n := 0
	for n < len(o.ages) && now.Sub(o.ages[n].at) >= operationAge {
		old := o.ages[n]
		delete(o.byName, old.op.name)
		if o.byRequest[old.key] == old.op {
			delete(o.byRequest, old.key)
		}
		n++
	}
	o.ages = o.ages[n:]
}

// operate runs a batch of a kind ("create" or "delete") on a queue, and returns its operation. If
// the client has sent the same request ID before, it returns the operation of that first request
// instead.
func (s *Server) operate(kind, queue, requestID string, batch func() *operation) (*longrunningpb.Operation, error) {
	op := &operation{
		name:  fmt.Sprintf("%s/operations/%016x", locationOf(queue), rand.Uint64()),
		ready: make(chan struct{}),
	}
	key := requestKey{kind, queue, requestID}
	now := time.Now()
	s.mu.Lock()
	s.operations.forget(now)
	if requestID != "" {
		if earlier := s.operations.byRequest[key]; earlier != nil {
			s.mu.Unlock()
			<-earlier.ready
			return earlier.proto(false)
		}
		s.operations.byRequest[key] = op
	}
	s.operations.byName[op.name] = op
	s.operations.ages = append(s.operations.ages, aged{now, key, op})
	s.mu.Unlock()

	done := batch()
	op.started, op.metadata, op.response, op.err = done.started, done.metadata, done.response, done.err
	close(op.ready)
	return op.proto(false)
}

// proto returns the operation in the protocol's form. The argument says whether it is shown as done
// or as running.
func (o *operation) proto(done bool) (*longrunningpb.Operation, error) {
	meta := o.started
	if done {
		meta = o.metadata
	}
	metadata, err := anypb.New(meta)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", o.name, err)
	}
	p := &longrunningpb.Operation{Name: o.name, Metadata: metadata, Done: done}
	switch {
	case !done:
	case o.err != nil:
		p.Result = &longrunningpb.Operation_Error{Error: o.err}
	default:
		response, err := anypb.New(o.response)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "%s: %v", o.name, err)
		}
		p.Result = &longrunningpb.Operation_Response{Response: response}
	}
	return p, nil
}

// An operationsServer serves google.longrunning.Operations, except ListOperations.
type operationsServer struct {
	longrunningpb.UnimplementedOperationsServer
	server *Server
}

func (s operationsServer) find(name string) (*operation, error) {
	s.server.mu.Lock()
	s.server.operations.forget(time.Now())
	op := s.server.operations.byName[name]
	s.server.mu.Unlock()
	if op == nil {
		return nil, status.Errorf(codes.NotFound, "Operation does not exist: %q", shorten(name))
	}
	<-op.ready
	return op, nil
}

// GetOperation returns an operation as done.
func (s operationsServer) GetOperation(
	_ context.Context, req *longrunningpb.GetOperationRequest,
) (*longrunningpb.Operation, error) {
	op, err := s.find(req.Name)
	if err != nil {
		return nil, err
	}
	return op.proto(true)
}

// WaitOperation returns an operation as done, without a wait.
func (s operationsServer) WaitOperation(
	_ context.Context, req *longrunningpb.WaitOperationRequest,
) (*longrunningpb.Operation, error) {
	op, err := s.find(req.Name)
	if err != nil {
		return nil, err
	}
	return op.proto(true)
}

// CancelOperation has no effect, because the operation is done already.
func (s operationsServer) CancelOperation(
	_ context.Context, req *longrunningpb.CancelOperationRequest,
) (*emptypb.Empty, error) {
	_, err := s.find(req.Name)
	return new(emptypb.Empty), err
}

// DeleteOperation deletes an operation. The tasks that it created stay.
func (s operationsServer) DeleteOperation(
	_ context.Context, req *longrunningpb.DeleteOperationRequest,
) (*emptypb.Empty, error) {
	if _, err := s.find(req.Name); err != nil {
		return nil, err
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	delete(s.server.operations.byName, req.Name)
	return new(emptypb.Empty), nil
}
