package executor

import (
	"context"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// TestFirst checks where First cuts the root of a job.
func TestFirst(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int64
		change func(j *record.Job)
		refuse string
		short  bool // whether the searches for boundaries find none
		pieces int
	}{
		{name: "a page", n: 5, pieces: 1},
		{name: "a full page", n: 10, pieces: 1},
		{name: "nothing", n: 0},
		{name: "several pages for one worker", n: 35},
		{name: "a survey takes long", n: 2000,
			change: func(j *record.Job) { j.Workers, j.PageSize = 4, 100 }},
		{name: "for four workers", n: 300, change: func(j *record.Job) { j.Workers, j.PageSize = 4, 100 }, pieces: 4},
		{name: "this build does not have the mapper", n: 5, change: func(j *record.Job) { j.Mapper = "new" }},
		{name: "the database has no masks", n: 5, change: func(j *record.Job) { j.Masks = false }},
		{name: "over several kinds", n: 5, change: func(j *record.Job) {
			j.Query = []byte(`{"kinds":["K","Sheet"]}`)
		}},
		{name: "by a fixed strategy", n: 300, change: func(j *record.Job) {
			j.Workers, j.PageSize, j.Splitting = 4, 100, []byte(`{"first":4,"fan_out":1}`)
		}},
		{name: "a page by a fixed strategy", n: 5, change: func(j *record.Job) {
			j.Splitting = []byte(`{"first":4,"fan_out":1}`)
		}},
		{name: "it is shorter than it was", n: 1000, change: func(j *record.Job) { j.Workers, j.PageSize = 4, 100 },
			short: true},
		{name: "a query that can't be read", n: 5, change: func(j *record.Job) { j.Query = []byte(`{`) }},
		{name: "the database does not answer", n: 5, refuse: "RunQuery"},
		{name: "it does not count", n: 300, change: func(j *record.Job) { j.Workers, j.PageSize = 4, 100 },
			refuse: "RunAggregationQuery", pieces: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, c.n, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				if c.change != nil {
					c.change(j)
				}
				if c.refuse != "" {
					refuse(w, c.refuse, errInjected)
				}
				if c.short {
					w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
						call grpc.UnaryHandler) (any, error) {
						if q, ok := req.(*pb.RunQueryRequest); ok && q.GetQuery().GetOffset() > 0 {
							q.GetQuery().Offset = 1 << 20
						}
						return call(ctx, req)
					})
				}
				begun := time.Now()
				first := x.First(w.Context(), j)
				if c.pieces == 0 && first.EntitySize > 0 {
					w.Errorf("it cuts nothing, and says that entities have %d bytes", first.EntitySize)
				}
				if len(first.Pieces) != c.pieces || time.Since(begun) > firstTime {
					w.Errorf("%d pieces after %v, want %d: %+v", len(first.Pieces), time.Since(begun), c.pieces, first)
				}
				if c.pieces == 1 && (first.Pieces[0].Start != nil || first.Pieces[0].End != nil) {
					w.Errorf("the page is %+v", first.Pieces[0])
				}
				if c.pieces > 1 && first.EntitySize == 0 {
					w.Error("it does not say how large entities are")
				}
			})
		})
	}
}

// TestFirstInTime checks that a start does not wait for a database that answers slowly.
func TestFirstInTime(t *testing.T) {
	inWorld(t, 5, function.Update, nil, func(w *testworld.World, x *Executor) {
		on(w, "RunQuery", func(_ int, call func() (any, error)) (any, error) {
			time.Sleep(time.Minute)
			return call()
		})
		begun := time.Now()
		if first := x.First(w.Context(), w.NewJob("j", "m")); first.Pieces != nil || time.Since(begun) != firstTime {
			w.Errorf("%+v after %v", first, time.Since(begun))
		}
		time.Sleep(2 * time.Minute) // until the calls have ended
	})
}
