package executor

import (
	"context"
	"testing"

	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/intercept"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// TestStandings checks how a delivery classifies the stored record of its range (a standing), for
// different changes since it read the record.
func TestStandings(t *testing.T) {
	known := record.Range{State: record.Pending, Generation: 3, Children: 2}
	for name, test := range map[string]struct {
		change func(r *record.Range)
		want   standing
	}{
		"as it was":                {func(*record.Range) {}, ours},
		"done":                     {func(r *record.Range) { r.State = record.Done }, done},
		"done under another task":  {func(r *record.Range) { r.State, r.Generation = record.Done, 4 }, done},
		"of another task":          {func(r *record.Range) { r.Generation = 4 }, superseded},
		"of an earlier task":       {func(r *record.Range) { r.Generation = 2 }, superseded},
		"abandoned":                {func(r *record.Range) { r.State = record.Abandoned }, superseded},
		"with more children":       {func(r *record.Range) { r.Children = 3 }, changed},
		"with fewer children":      {func(r *record.Range) { r.Children = 1 }, changed},
		"cut":                      {func(r *record.Range) { r.Cut = true }, changed},
		"with children, and moved": {func(r *record.Range) { r.Children, r.Generation = 3, 4 }, superseded},
	} {
		now := known
		test.change(&now)
		c := &delivery{record: &known, generation: 3}
		if got := c.check(&now); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestChange changes a range twice: once when it is unchanged since it was read, and once after
// another delivery has changed it. Both times, the stored record must be changed.
func TestChange(t *testing.T) {
	e, err := emulator.Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	intercept := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary))
	client, err := e.DatastoreClient(t.Context(), "test", intercept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	job := &record.Job{ID: "j", Incarnation: "0123456789abcdef01234567"}
	st := store.New(client)
	first := &record.Range{Job: job.ID, Incarnation: job.Incarnation, ID: job.Root(), State: record.Pending,
		Open: job.ID, Generation: 1}
	ctx, versions := wire.Noting(t.Context())
	if _, err := client.Mutate(ctx, first.Insert()); err != nil {
		t.Fatal(err)
	}
	first.Version = versions.Last(1)
	deliveries := make([]*delivery, 2)
	x := New(client, &lifecycle.Jobs{Store: st})
	for i := range deliveries {
		deliveries[i] = &delivery{x: x, job: job, record: first.Clone(), generation: 1}
	}
	add := func(r *record.Range) ([]*record.Range, error) { r.Attempts++; return nil, nil }
	for i, d := range deliveries {
		if s, err := d.change(context.WithoutCancel(t.Context()), add); s != ours || err != nil {
			t.Errorf("change %d: %d, %v", i+1, s, err)
		}
		if now, err := st.LoadRange(t.Context(), job.Ref(), first.ID); err != nil || now.Attempts != int64(i)+1 {
			t.Errorf("%+v, %v: want %d changes", now, err, i+1)
		}
	}
	if s, err := deliveries[1].change(t.Context(), add); s != ours || err != nil {
		t.Errorf("who has changed it can't do so again: %d, %v", s, err)
	}
}
