package tasksemu

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/scattermap/scattermap/emulator/internal/meter"
)

// Options say how a server behaves.
type Options struct {
	// Transport carries the deliveries.
	Transport http.RoundTripper
	// Unlimited lets queues have more than 500 dispatches a second.
	Unlimited bool
}

// A Server is a google.cloud.tasks.v2 service.
type Server struct {
	pb.UnimplementedCloudTasksServer

	opts    Options
	meter   *meter.Meter
	client  *http.Client
	signer  *signer
	ctx     context.Context // of all dispatchers and deliveries
	stop    context.CancelFunc
	working sync.WaitGroup

	mu     sync.Mutex
	queues map[string]*queue
}

// NewServer returns a server without queues, which counts on m. It has to be
// closed.
func NewServer(opts Options, m *meter.Meter) *Server {
	ctx, stop := context.WithCancel(context.Background())
	return &Server{
		opts:   opts,
		meter:  m,
		client: &http.Client{Transport: opts.Transport},
		signer: new(signer),
		ctx:    ctx,
		stop:   stop,
		queues: make(map[string]*queue),
	}
}

// Close ends all dispatchers and deliveries, and waits for them.
func (s *Server) Close() {
	s.mu.Lock() // a queue is made before, and waited for, or not at all
	s.stop()
	s.mu.Unlock()
	s.working.Wait()
	s.client.CloseIdleConnections()
}

// Keys serves the public keys of the tokens that deliveries carry.
func (s *Server) Keys() http.Handler { return s.signer }

// Token returns a token as deliveries carry them.
func (s *Server) Token(account, audience string) (string, error) {
	return s.signer.sign(account, audience, time.Now())
}

func (s *Server) queue(name string) (*queue, error) {
	if !queueName.MatchString(name) {
		return nil, invalid("%q is not a queue name: projects/PROJECT/locations/LOCATION/queues/QUEUE", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		return nil, status.Errorf(codes.NotFound, "Queue does not exist: %s. Create it first.", name)
	}
	return q, nil
}

// CreateQueue makes a queue, which delivers at once.
func (s *Server) CreateQueue(_ context.Context, req *pb.CreateQueueRequest) (*pb.Queue, error) {
	name := req.GetQueue().GetName()
	if !queueName.MatchString(name) || !strings.HasPrefix(name, req.Parent+"/queues/") {
		return nil, invalid("%q is not the name of a queue in %q", name, req.Parent)
	}
	q, err := newQueue(s, req.Queue)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "Queue already exists: %s", name)
	}
	if s.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "the server is closing")
	}
	s.queues[name] = q
	var ctx context.Context
	ctx, q.stop = context.WithCancel(s.ctx)
	s.working.Go(func() { q.run(ctx) })
	return proto.CloneOf(q.config), nil
}

// GetQueue returns a queue.
func (s *Server) GetQueue(_ context.Context, req *pb.GetQueueRequest) (*pb.Queue, error) {
	q, err := s.queue(req.Name)
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(q.config), nil
}

// ListQueues returns all queues of a location, in the order of their names.
func (s *Server) ListQueues(_ context.Context, req *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := new(pb.ListQueuesResponse)
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if strings.HasPrefix(name, req.Parent+"/queues/") {
			resp.Queues = append(resp.Queues, proto.CloneOf(s.queues[name].config))
		}
	}
	return resp, nil
}

// DeleteQueue removes a queue with its tasks.
func (s *Server) DeleteQueue(_ context.Context, req *pb.DeleteQueueRequest) (*emptypb.Empty, error) {
	q, err := s.queue(req.Name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, req.Name)
	q.stop()
	return new(emptypb.Empty), nil
}

// splitTask splits the full name of a task into its queue's and its own.
func splitTask(name string) (queue, id string, err error) {
	queue, id, ok := strings.Cut(name, "/tasks/")
	if !ok || !queueName.MatchString(queue) || !taskID.MatchString(id) {
		return "", "", invalid("%q is not a task name: QUEUE/tasks/TASK, where TASK has 1 to 500 of [A-Za-z0-9_-]", name)
	}
	return queue, id, nil
}

// CreateTask puts a task into a queue.
func (s *Server) CreateTask(_ context.Context, req *pb.CreateTaskRequest) (*pb.Task, error) {
	if req.Task == nil {
		return nil, invalid("the request has no task")
	}
	q, err := s.queue(req.Parent)
	if err != nil {
		return nil, err
	}
	name := req.Task.Name
	if name == "" {
		name = fmt.Sprintf("%s/tasks/%020d", req.Parent, rand.Uint64())
	}
	parent, id, err := splitTask(name)
	if err != nil {
		return nil, err
	}
	if parent != req.Parent {
		return nil, invalid("the task %q is not one of the queue %q", name, req.Parent)
	}
	now := time.Now()
	t, err := newTask(req.Task, name, id, now)
	if err != nil {
		return nil, err
	}
	resp := t.proto(req.ResponseView)
	if err := q.add(t, now); err != nil {
		return nil, err
	}
	s.meter.Task(t.size)
	return resp, nil
}

// find returns the queue and the task of a name, with the queue locked.
func (s *Server) find(name string) (*queue, *task, error) {
	parent, _, err := splitTask(name)
	if err != nil {
		return nil, nil, err
	}
	q, err := s.queue(parent)
	if err != nil {
		return nil, nil, err
	}
	q.mu.Lock()
	t := q.tasks[name]
	if t == nil {
		q.mu.Unlock()
		return nil, nil, status.Errorf(codes.NotFound, "Requested entity was not found: %s", name)
	}
	return q, t, nil
}

// GetTask returns a task that waits or is being delivered.
func (s *Server) GetTask(_ context.Context, req *pb.GetTaskRequest) (*pb.Task, error) {
	q, t, err := s.find(req.Name)
	if err != nil {
		return nil, err
	}
	defer q.mu.Unlock()
	return t.proto(req.ResponseView), nil
}

// DeleteTask removes a task. A delivery under way goes on.
func (s *Server) DeleteTask(_ context.Context, req *pb.DeleteTaskRequest) (*emptypb.Empty, error) {
	q, t, err := s.find(req.Name)
	if err != nil {
		return nil, err
	}
	defer q.mu.Unlock()
	q.remove(t, time.Now())
	return new(emptypb.Empty), nil
}

// ListTasks returns a page of a queue's tasks, in the order of their names. The
// token of the next page is the last name of this one.
func (s *Server) ListTasks(_ context.Context, req *pb.ListTasksRequest) (*pb.ListTasksResponse, error) {
	const maxPage = 1000
	q, err := s.queue(req.Parent)
	if err != nil {
		return nil, err
	}
	if req.PageSize < 0 {
		return nil, invalid("page_size is negative: %d", req.PageSize)
	}
	size := int(req.PageSize)
	if size == 0 || size > maxPage {
		size = maxPage
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	resp := new(pb.ListTasksResponse)
	for _, name := range slices.Sorted(maps.Keys(q.tasks)) {
		if name <= req.PageToken {
			continue
		}
		if len(resp.Tasks) == size {
			resp.NextPageToken = resp.Tasks[size-1].Name
			break
		}
		resp.Tasks = append(resp.Tasks, q.tasks[name].proto(req.ResponseView))
	}
	return resp, nil
}
