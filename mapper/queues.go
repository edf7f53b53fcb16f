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

// An ownQueue is one of an engine's queues, with the objects that control the queue's jobs and run
// their tasks.
type ownQueue struct {
	queue  *tasks.Queue
	jobs   *lifecycle.Jobs
	ranges *executor.Executor
}

// queues are all queues of an engine, starting with the first one. They share the state of the
// process, such as the tasks that run now.
type queues []*ownQueue

// queuesOf returns the queues of an engine: its first queue, and the others from
// EngineOptions.OtherQueues. It returns an error if a queue occurs twice, or if a mapper needs a
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
		// A rehearsal or an undo uses the queue of the mapper from which it is made.
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

// forStart returns the queue for a new job of a mapper.
func (q queues) forStart(def *function.Definition, o *StartOptions) (*ownQueue, error) {
	name := def.Queue
	if o != nil {
		name = cmp.Or(o.Queue, name)
	}
	return q.named(name)
}

// has reports whether owner is one of the engine's queues. An owner is a queue to which jobs
// belong.
func (q queues) has(owner record.Owner) bool {
	on := q.of(owner)
	return on != nil && on.queue.Name() == string(owner)
}

// of returns the queue to which a job belongs; the parameter owner is the queue's full name. If the
// engine does not have that queue, the result is the engine's first queue, or nil without any.
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

// owners returns the full names of the engine's queues.
func (q queues) owners() (all []record.Owner) {
	for _, on := range q {
		all = append(all, record.Owner(on.queue.Name()))
	}
	return all
}

// queueOf returns the queue to which a job belongs. If the engine has several queues, it reads the
// job's record. After an error of this read, it returns the engine's first queue as well.
func queueOf(ctx context.Context, j *Job) (*ownQueue, error) {
	if j.engine == nil {
		return nil, nil
	}
	if len(j.engine.queues) < 2 {
		return j.engine.queues.of(""), nil
	}
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return j.engine.queues.of(""), err
	}
	return j.engine.queues.of(job.Queue), nil
}

// changing returns the queue of a job that the caller is about to change. If the queue is unknown,
// because the job's record can't be read, the change fails with this error. In another queue it
// would fail as a change of another service's job.
func changing(ctx context.Context, j *Job) *ownQueue {
	on, err := queueOf(ctx, j)
	if err == nil {
		return on
	}
	jobs := *on.jobs
	jobs.Store = store.Failing(err)
	return &ownQueue{on.queue, &jobs, on.ranges}
}

// destinationOf returns the queue to which [Job.Move] moves a job: the queue that a start of the
// job's mapper would use now.
func destinationOf(ctx context.Context, j *Job) (*ownQueue, error) {
	if j.engine == nil || len(j.engine.queues) < 2 {
		return queueOf(ctx, j)
	}
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil || j.engine.mappers[job.Mapper] == nil {
		return j.engine.queues[0], err
	}
	return j.engine.queues.forStart(j.engine.mappers[job.Mapper], nil)
}

// asked returns the [lifecycle.Jobs] of a queue. Its calls have short timeouts, because a person
// may wait for them. The queue, the parameter on, is nil if there is no engine. The calls then
// return an error that says so.
func asked(on *ownQueue) *lifecycle.Jobs {
	if on == nil {
		return &lifecycle.Jobs{Store: store.New(nil)}
	}
	return on.jobs.Asked()
}
