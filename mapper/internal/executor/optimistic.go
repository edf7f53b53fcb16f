package executor

import (
	"context"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// An optimistic page of an Update has its entities read ahead, by a query, and not in a transaction. Its commit is one
// call, and takes place only if nobody has changed its entities since they were read, nor the record of its range. If
// somebody has, the page is done once more in a transaction. So no lock is held, and nobody is in the way of others,
// while the function runs.
//
// An entity that the function does not change is not compared: that it was so when it was read is all that the function
// knows. But where it puts or deletes other entities it may rely on that, so such a page has to be a transaction.

// mayBeOptimistic reports whether the delivery's next page may be optimistic.
func mayBeOptimistic(d *delivery) bool {
	if d.planner.Mode != function.Update || d.record.Version == 0 || d.record.Alone {
		return false
	}
	known := d.x.cache.at(d.job.Ref())
	return (!known.puts.Load() || d.planner.Query.Unread(true)) && known.optimism.Hopes()
}

// processOptimistic does a page of a delivery, if it may be optimistic, and reports whether that has taken effect. Otherwise,
// unless there is an error, it has to be a transaction.
func processOptimistic(ctx context.Context, d *delivery, run page.Page, p planner.Plan) (settled bool, err error) {
	if !d.planner.Optimistic || d.record.Version == 0 || d.record.Alone {
		return false, nil
	}
	if _, ok := d.planner.Versions(run.At); !ok {
		return false, nil
	}
	d.planner.Optimistic = false // for another attempt
	known, unread := d.x.cache.at(d.job.Ref()), d.planner.Query.Unread(true)
	versions, puts := make(map[*keyspace.Position]wire.Stamp, len(run.At)), false
	run.Read = reading(d.planner.ReaderAhead(ctx), func(at []*keyspace.Position) {
		of, _ := d.planner.Versions(at)
		for i, p := range at {
			versions[p] = of[i]
			d.updated[p.Key] = of[i].At
		}
	})
	var mutations []wire.Mutation
	run.Accept = func(at *keyspace.Position, e *function.Effect) error {
		for _, m := range e.Mutations {
			own, on := m.Key.Equal(at.Key), m.On
			puts = puts || !own && !unread
			if own && (on == (wire.Condition{}) || on.Free) {
				on.Version, on.Free = versions[at].Version, false
			}
			mutations = append(mutations, wire.Mutation{Mutation: m.Mutation, Condition: on})
		}
		return nil
	}
	ends := run.Ends
	run.Ends = func() bool { return puts || ends() }
	o, err := d.runPage(ctx, &run)
	if puts {
		known.puts.Store(true)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := give(ctx, d, &p, o); err != nil {
		return false, err
	}
	var after committed
	settled = d.changeKnown(ctx, mutations, func(r *record.Range) (children []*record.Range, err error) {
		children, after, err = d.putOutcome(r, p, o)
		return children, err
	})
	known.optimism.Ended(settled)
	if settled {
		d.takeOver(ctx, after)
	} else {
		d.x.Telemetry.Conflict(ctx, d.job.Mapper)
	}
	return settled, nil
}

// reading returns a reader that calls seen with what it has read.
func reading(read source.Reader, seen func(at []*keyspace.Position)) source.Reader {
	return func(at []*keyspace.Position) (entities []*pb.Entity, missing []bool, err error) {
		entities, missing, err = read(at)
		if err == nil {
			seen(at)
		}
		return entities, missing, err
	}
}
