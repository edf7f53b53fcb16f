package executor

import (
	"context"
	"path"
	"sync"

	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// insert stores the records of a job and of ranges.
func insert(w *testworld.World, j *record.Job, ranges ...*record.Range) {
	w.Helper()
	if _, err := w.Client.Mutate(w.Context(), j.Insert()); err != nil {
		w.Fatal(err)
	}
	for _, r := range ranges {
		if _, err := w.Client.Mutate(w.Context(), r.Insert()); err != nil {
			w.Fatal(err)
		}
	}
}

// load loads a delivery of a stored range, and fails the test if the delivery has no work.
func load(w *testworld.World, x *Executor, j *record.Job, r *record.Range, queued tasks.Delivery) *delivery {
	w.Helper()
	t, err := body.ParseRange(body.TaskOf(r, j).Body)
	if err != nil {
		w.Fatal(err)
	}
	d, err := x.load(w.Context(), t, queued)
	if err != nil || d == nil {
		w.Fatalf("%v, %v", d, err)
	}
	return d
}

// loaded stores a job with its root, and loads the first delivery of the root.
func loaded(w *testworld.World, x *Executor, j *record.Job, change ...func(r *record.Range)) *delivery {
	w.Helper()
	r := j.RootRange()
	for _, f := range change {
		f(r)
	}
	insert(w, j, r)
	return load(w, x, j, r, tasks.Delivery{})
}

// at returns the positions of the entities with these IDs.
func at(ids ...int64) (all []*keyspace.Position) {
	for _, id := range ids {
		all = append(all, keyspace.At(testworld.Key(id)))
	}
	return all
}

// on passes the calls of a method to do, with their numbers from 1 on.
func on(w *testworld.World, method string, do func(n int, call func() (any, error)) (any, error)) {
	var mu sync.Mutex
	n := 0
	w.Intercept(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if path.Base(info.FullMethod) != method {
			return handler(ctx, req)
		}
		mu.Lock()
		n++
		now := n
		mu.Unlock()
		return do(now, func() (any, error) { return handler(ctx, req) })
	})
}

// refuse makes the calls of a method fail.
func refuse(w *testworld.World, method string, err error) {
	on(w, method, func(int, func() (any, error)) (any, error) { return nil, err })
}
