package tasksemu

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// CreateTask puts a task into a queue.
func (s *Server) CreateTask(_ context.Context, req *pb.CreateTaskRequest) (*pb.Task, error) {
	q, err := s.queue(req.Parent)
	if err != nil {
		return nil, err
	}
	return s.createTask(q, req)
}

func (s *Server) createTask(q *queue, req *pb.CreateTaskRequest) (*pb.Task, error) {
	if req.Task == nil {
		return nil, invalid("task is not set")
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
		return nil, invalid("The queue name from request ('%s') must be the same as the queue name in the named "+
			"task ('%s').", req.Parent, parent)
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

// find locks the queue of a task, and returns the queue and the task.
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
	t := q.find(name, time.Now())
	if t == nil {
		defer q.mu.Unlock()
		return nil, nil, q.missing(name)
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
	s.meter.Task(t.size)
	return t.proto(req.ResponseView), nil
}

// DeleteTask removes a task. A delivery under way continues, but the task is not retried.
func (s *Server) DeleteTask(_ context.Context, req *pb.DeleteTaskRequest) (*emptypb.Empty, error) {
	return new(emptypb.Empty), s.deleteTask(req.Name)
}

func (s *Server) deleteTask(name string) error {
	q, t, err := s.find(name)
	if err != nil {
		return err
	}
	defer q.mu.Unlock()
	q.remove(t, time.Now())
	s.meter.Task(t.size)
	return nil
}

// ListTasks returns a page of a queue's tasks, sorted by name. The page token is the last name on
// the page before.
func (s *Server) ListTasks(_ context.Context, req *pb.ListTasksRequest) (*pb.ListTasksResponse, error) {
	const maxPage = 1000
	q, err := s.queue(req.Parent)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.PageSize, maxPage)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	resp := new(pb.ListTasksResponse)
	q.tasks.Ascend(req.PageToken, func(name string, t *task) bool {
		if name == req.PageToken || t.expired(now) {
			return true
		}
		if len(resp.Tasks) == size {
			resp.NextPageToken = resp.Tasks[size-1].Name
			return false
		}
		resp.Tasks = append(resp.Tasks, t.proto(req.ResponseView))
		s.meter.Task(t.size)
		return true
	})
	if len(resp.Tasks) == 0 {
		s.meter.Task(0)
	}
	return resp, nil
}

// RunTask delivers a task now. It ignores whether the queue is paused or at a limit, and whether
// the task is already being delivered. The delivery does not count towards the queue's limits.
func (s *Server) RunTask(_ context.Context, req *pb.RunTaskRequest) (*pb.Task, error) {
	parent, _, err := splitTask(req.Name)
	if err != nil {
		return nil, err
	}
	if _, err := s.queue(parent); err != nil {
		return nil, err
	}
	s.mu.Lock() // the lock makes sure that the queue exists, so its era has not ended and can get a new goroutine
	defer s.mu.Unlock()
	q := s.queues[parent]
	if q == nil || q.era.ctx.Err() != nil {
		return nil, errNoQueue
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	t := q.find(req.Name, now)
	if t == nil {
		return nil, q.missing(req.Name)
	}
	q.unwait(t)
	d := q.begin(t, now)
	d.forced = true
	q.era.working.Go(func() { q.deliver(q.era.ctx, d) })
	s.meter.Task(t.size)
	return t.proto(req.ResponseView), nil
}
