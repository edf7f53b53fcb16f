package mapper

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scattermap/scattermap/mapper/internal/executor"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

// WithQueue chooses the queue of the mapper's jobs, by its name or the last part of the name. If
// the engine does not have the queue (see [EngineOptions].OtherQueues), [NewEngine] returns an
// error. [StartOptions].Queue overrides it for a job. WithQueue returns the mapper, for use in its
// definition.
func (m *Mapper[P]) WithQueue(name string) *Mapper[P] {
	m.def.Queue = name
	return m
}

// An ownQueue is one of an engine's queues. It also has the objects that control the jobs of this
// queue and run their tasks.
type ownQueue struct {
	queue  *tasks.Queue
	jobs   *lifecycle.Jobs
	ranges *executor.Executor
}

// queues are all queues of an engine, the first one first. They share one state of the process,
// such as the tasks that run now.
type queues []*ownQueue

// queuesOf returns all queues of an engine: its first one, and the others from
// EngineOptions.OtherQueues. It returns an error if a queue is there twice, or if a mapper needs a
// queue that is missing.
func queuesOf(first *Engine, others []*tasks.Queue) (queues, error) {
	all := queues{{first.queue, first.jobs, executor.New(first.client, first.jobs)}}
	for i, queue := range others {
		if queue == nil {
			return nil, fmt.Errorf("mapper: EngineOptions.OtherQueues[%d] is nil", i)
		}
		if all.has(record.Owner(queue.Name())) {
			return nil, fmt.Errorf("mapper: EngineOptions.OtherQueues[%d]: the engine has %s already", i, queue.Name())
		}
		jobs := *first.jobs
		jobs.Queue, jobs.Revived, jobs.Beside = queue, nil, nil
		all = append(all, &ownQueue{queue, &jobs, all[0].ranges.Beside(&jobs)})
		first.jobs.Beside = append(first.jobs.Beside, &jobs)
	}
	for _, name := range slices.Sorted(maps.Keys(first.mappers)) {
		// A derived mapper has the queue of its mapper.
		if _, err := all.named(first.mappers[name].Queue); err != nil && !isDerived(name) {
			return nil, fmt.Errorf("mapper: EngineOptions.Mappers: mapper %q: %w", name, err)
		}
	}
	return all, nil
}

// named returns the queue with a name. The name may be only the last part of the queue's full name.
// An empty name stands for the first queue.
func (q queues) named(name string) (*ownQueue, error) {
	if name == "" {
		return q[0], nil
	}
	var found *ownQueue
	names := make([]string, len(q))
	for i, on := range q {
		names[i] = on.queue.Name()
		switch {
		case names[i] == name:
			return on, nil
		case !strings.HasSuffix(names[i], "/"+name):
		case found != nil:
			return nil, fmt.Errorf("%w: the engine has several queues %q: name one in full", ErrInvalidArgument, name)
		default:
			found = on
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: the engine has no queue %q: have %s", ErrInvalidArgument, name,
			strings.Join(names, ", "))
	}
	return found, nil
}

// forStart returns the queue that a new job of a mapper belongs to.
func (q queues) forStart(def *function.Definition, o *StartOptions) (*ownQueue, error) {
	name := def.Queue
	if o != nil {
		name = cmp.Or(o.Queue, name)
	}
	return q.named(name)
}

// has reports whether the engine has the queue that owns a job.
func (q queues) has(owner record.Owner) bool {
	on := q.of(owner)
	return on != nil && on.queue.Name() == string(owner)
}

// of returns the queue that a job belongs to. If the engine does not have it, it returns the first
// queue, or nil if there is none.
func (q queues) of(owner record.Owner) *ownQueue {
	for _, on := range q {
		if on.queue.Name() == string(owner) {
			return on
		}
	}
	if len(q) == 0 {
		return nil
	}
	return q[0]
}

// owners returns the full names of the queues.
func (q queues) owners() (all []record.Owner) {
	for _, on := range q {
		all = append(all, record.Owner(on.queue.Name()))
	}
	return all
}

// queueOf returns the queue of a job. If the engine has several, it reads the job. It ignores
// errors of that read, because the next read of the job returns them.
func queueOf(ctx context.Context, j *Job) *ownQueue {
	if j.engine == nil {
		return nil
	}
	var owner record.Owner
	if len(j.engine.queues) > 1 {
		if job, err := j.engine.store().LoadJob(ctx, j.ref()); err == nil {
			owner = job.Queue
		}
	}
	return j.engine.queues.of(owner)
}

// destinationOf returns the queue to which [Job.Move] moves a job: the one that a start of the
// job's mapper would use.
func destinationOf(ctx context.Context, j *Job) (*ownQueue, error) {
	if j.engine == nil || len(j.engine.queues) < 2 {
		return queueOf(ctx, j), nil
	}
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil || j.engine.mappers[job.Mapper] == nil {
		return j.engine.queues[0], err
	}
	return j.engine.queues.forStart(j.engine.mappers[job.Mapper], nil)
}

// asked returns the [lifecycle.Jobs] of a queue, with the short timeouts of interactive calls. If
// on is nil, there is no engine, and the calls of the result return an error that says so.
func asked(on *ownQueue) *lifecycle.Jobs {
	if on == nil {
		return &lifecycle.Jobs{Store: store.New(nil)}
	}
	return on.jobs.Asked()
}
