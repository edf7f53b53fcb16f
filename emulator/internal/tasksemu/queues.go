package tasksemu

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// CreateQueue creates a queue. It dispatches tasks at once.
func (s *Server) CreateQueue(_ context.Context, req *pb.CreateQueueRequest) (*pb.Queue, error) {
	name := req.GetQueue().GetName()
	if err := checkLocation(req.Parent); err != nil {
		return nil, err
	}
	if err := checkQueueName(name); err != nil {
		return nil, err
	}
	if locationOf(name) != req.Parent {
		return nil, invalid("%s must begin with %s.", name, req.Parent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[name] != nil {
		return nil, errQueueExists
	}
	return s.create(req.Queue)
}

// create makes a queue with the given settings, and starts it. The caller has locked the server.
func (s *Server) create(config *pb.Queue) (*pb.Queue, error) {
	config, err := completeQueue(config, s.opts.Unlimited)
	if err != nil {
		return nil, err
	}
	config.State = pb.Queue_RUNNING
	config.PurgeTime = nil
	if s.buried(config.Name, time.Now()) {
		return nil, errQueueExisted
	}
	e := s.era
	if e.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "the server is closing")
	}
	q := newQueue(s, e, config)
	s.queues[config.Name] = q
	e.working.Go(func() { q.run(e.ctx) })
	s.meter.Task(0)
	return config, nil
}

// GetQueue returns a queue.
func (s *Server) GetQueue(_ context.Context, req *pb.GetQueueRequest) (*pb.Queue, error) {
	q, err := s.queue(req.Name)
	if err != nil {
		return nil, err
	}
	s.meter.Task(0)
	return q.proto(), nil
}

// UpdateQueue changes the settings of a queue that the mask names, or all settings if the mask is
// empty. If the queue does not exist, it creates the queue.
func (s *Server) UpdateQueue(_ context.Context, req *pb.UpdateQueueRequest) (*pb.Queue, error) {
	if req.Queue == nil {
		return nil, invalid("queue is not set")
	}
	if err := checkQueueName(req.Queue.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[req.Queue.Name]
	if q == nil {
		config, err := updateQueue(&pb.Queue{Name: req.Queue.Name}, req.Queue, req.UpdateMask)
		if err != nil {
			return nil, err
		}
		return s.create(config)
	}
	s.meter.Task(0)
	return q.configure(func(config *pb.Queue) (*pb.Queue, error) {
		config, err := updateQueue(config, req.Queue, req.UpdateMask)
		if err != nil {
			return nil, err
		}
		return completeQueue(config, s.opts.Unlimited)
	})
}

// PauseQueue stops deliveries of a queue. Deliveries under way continue.
func (s *Server) PauseQueue(_ context.Context, req *pb.PauseQueueRequest) (*pb.Queue, error) {
	return s.setState(req.Name, pb.Queue_PAUSED)
}

// ResumeQueue starts deliveries of a paused queue again.
func (s *Server) ResumeQueue(_ context.Context, req *pb.ResumeQueueRequest) (*pb.Queue, error) {
	return s.setState(req.Name, pb.Queue_RUNNING)
}

func (s *Server) setState(name string, state pb.Queue_State) (*pb.Queue, error) {
	q, err := s.queue(name)
	if err != nil {
		return nil, err
	}
	s.meter.Task(0)
	return q.configure(func(config *pb.Queue) (*pb.Queue, error) {
		config.State = state
		return config, nil
	})
}

// PurgeQueue deletes all tasks of a queue at once. Production takes up to a minute. Deliveries
// under way continue, but their tasks are not retried. The tasks' names can't be used again for a
// day.
func (s *Server) PurgeQueue(_ context.Context, req *pb.PurgeQueueRequest) (*pb.Queue, error) {
	q, err := s.queue(req.Name)
	if err != nil {
		return nil, err
	}
	s.meter.Task(0)
	return q.configure(func(config *pb.Queue) (*pb.Queue, error) {
		now := time.Now()
		q.purge(now)
		config.PurgeTime = stamp(now)
		return config, nil
	})
}

// DeleteQueue removes a queue with its tasks. Deliveries under way continue, but their tasks are
// not retried. For three days, no queue can have its name, unless [Options.ReuseNames] is set.
func (s *Server) DeleteQueue(_ context.Context, req *pb.DeleteQueueRequest) (*emptypb.Empty, error) {
	if err := checkQueueName(req.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[req.Name]
	if q == nil {
		return nil, errNotFound
	}
	delete(s.queues, req.Name)
	now := time.Now()
	s.deleted[req.Name] = now
	close(q.closed)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.purge(now)
	s.meter.Task(0)
	return new(emptypb.Empty), nil
}

// stateFilter matches the only filters that are supported. They have the form of the
// documentation's sample, "state: PAUSED".
var stateFilter = regexp.MustCompile(`^\s*state\s*(:|=|!=)\s*(RUNNING|PAUSED|DISABLED)\s*$`)

// ListQueues returns a page of a location's queues, sorted by name. The page token is the last name
// on the page before.
func (s *Server) ListQueues(_ context.Context, req *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	const maxPage = 9800
	if err := checkLocation(req.Parent); err != nil {
		return nil, err
	}
	size, err := pageSize(req.PageSize, maxPage)
	if err != nil {
		return nil, err
	}
	wanted := func(*pb.Queue) bool { return true }
	if req.Filter != "" {
		f := stateFilter.FindStringSubmatch(req.Filter)
		if f == nil {
			return nil, unimplemented("filters queues by their state only, as in \"state: PAUSED\"; the filter is %q",
				shorten(req.Filter))
		}
		wanted = func(q *pb.Queue) bool { return (q.State.String() == f[2]) == (f[1] != "!=") }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := new(pb.ListQueuesResponse)
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if !strings.HasPrefix(name, req.Parent+"/queues/") || name <= req.PageToken {
			continue
		}
		q := s.queues[name].proto()
		if !wanted(q) {
			continue
		}
		if len(resp.Queues) == size {
			resp.NextPageToken = resp.Queues[size-1].Name
			break
		}
		resp.Queues = append(resp.Queues, proto.CloneOf(q))
	}
	s.meter.Task(0)
	return resp, nil
}

// pageSize returns the number of results in a page. This is the number that a client has asked for,
// or the maximum most if that number is 0 or larger. A negative number is an error.
func pageSize(asked int32, most int) (int, error) {
	if asked < 0 {
		return 0, invalid("page_size has to be at least 0, it is %d", asked)
	}
	if asked == 0 || int(asked) > most {
		return most, nil
	}
	return int(asked), nil
}
