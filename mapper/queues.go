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
	"github.com/scattermap/scattermap/tasks"
)

// WithQueue puts the mapper's jobs into one of the engine's other queues, unless their start names
// a queue ([StartOptions.Queue]). It returns the mapper, for use in its definition.
func (m *Mapper[P]) WithQueue(name string) *Mapper[P] {
	m.def.Queue = name
	return m
}

// queues are the engines of a process's queues, the first one first. They share all but the queue:
// so the process knows what runs in it, whichever queue that came from.
type queues []*Engine

// queuesOf returns the queues of an engine, of which it is the first.
func queuesOf(first *Engine, others []*tasks.Queue) (queues, error) {
	all := queues{first}
	for i, queue := range others {
		if queue == nil {
			return nil, fmt.Errorf("mapper: EngineOptions.OtherQueues[%d] is nil", i)
		}
		if all.has(record.Owner(queue.Name())) {
			return nil, fmt.Errorf("mapper: EngineOptions.OtherQueues[%d]: the engine has %s already", i, queue.Name())
		}
		e, jobs := *first, *first.jobs
		jobs.Queue, jobs.Revived, jobs.Beside = queue, nil, nil
		e.queue, e.jobs, e.ranges = queue, &jobs, executor.New(first.client, &jobs)
		all = append(all, &e)
		first.jobs.Beside = append(first.jobs.Beside, &jobs)
	}
	for _, e := range all {
		e.queues = all
	}
	for _, name := range slices.Sorted(maps.Keys(first.mappers)) {
		// that has the same as its mapper
		if _, err := all.named(first.mappers[name].Queue); err != nil && !isDerived(name) {
			return nil, fmt.Errorf("mapper: EngineOptions.Mappers: mapper %q: %w", name, err)
		}
	}
	return all, nil
}

// named returns the engine of the queue of a name, or of its last part; an empty one is the
// first's.
func (q queues) named(name string) (*Engine, error) {
	if name == "" {
		return q[0], nil
	}
	var found *Engine
	names := make([]string, len(q))
	for i, e := range q {
		names[i] = e.queue.Name()
		switch {
		case names[i] == name:
			return e, nil
		case !strings.HasSuffix(names[i], "/"+name):
		case found != nil:
			return nil, fmt.Errorf("%w: the engine has several queues %q: name one in full", ErrInvalidArgument, name)
		default:
			found = e
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: the engine has no queue %q: have %s", ErrInvalidArgument, name,
			strings.Join(names, ", "))
	}
	return found, nil
}

// forStart returns the engine whose queue a new job of a mapper belongs to.
func (q queues) forStart(def *function.Definition, o *StartOptions) (*Engine, error) {
	name := def.Queue
	if o != nil {
		name = cmp.Or(o.Queue, name)
	}
	return q.named(name)
}

// has reports whether one of the queues is the owner of a job.
func (q queues) has(owner record.Owner) bool {
	e := q.of(owner)
	return e != nil && e.queue.Name() == string(owner)
}

// of returns the engine whose queue a job belongs to, or the first one.
func (q queues) of(owner record.Owner) *Engine {
	for _, e := range q {
		if e.queue.Name() == string(owner) {
			return e
		}
	}
	if len(q) == 0 {
		return nil
	}
	return q[0]
}

// owners returns the queues as owners of jobs.
func (q queues) owners() (all []record.Owner) {
	for _, e := range q {
		all = append(all, record.Owner(e.queue.Name()))
	}
	return all
}

// engineOf returns the engine whose queue a job belongs to. That costs a read if there are several;
// what is wrong with it, whoever asks for the job next finds, too.
func engineOf(ctx context.Context, j *Job) *Engine {
	if j.engine == nil || len(j.engine.queues) < 2 {
		return j.engine
	}
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return j.engine
	}
	return j.engine.queues.of(job.Queue)
}

// destinationOf returns the engine whose queue a start of a job's mapper would put it into.
func destinationOf(ctx context.Context, j *Job) (*Engine, error) {
	if j.engine == nil || len(j.engine.queues) < 2 {
		return j.engine, nil
	}
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil || j.engine.mappers[job.Mapper] == nil {
		return j.engine, err
	}
	return j.engine.queues.forStart(j.engine.mappers[job.Mapper], nil)
}

// asked returns an engine's jobs for somebody who waits for answers. Without an engine it says that
// there is none.
func asked(e *Engine) *lifecycle.Jobs {
	if e == nil || e.jobs == nil {
		return &lifecycle.Jobs{Store: e.store()}
	}
	return e.jobs.Asked()
}
