package prebuilt_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// TestEraseItself lets operators erase a namespace, and gives their names as words to erase. They
// start, pause and resume the erasure; some abort it when its certificate is stored. After the
// erasure, its own record must contain neither these names nor the tenant, even if the operators
// act on the job again.
func TestEraseItself(t *testing.T) {
	for _, aborts := range []bool{false, true} {
		d := newDrawer(t)
		mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
			w := tenancy{t, world}
			for i := range 20 {
				w.put("acme", "Account", alice(i), datastore.Property{Name: "n", Value: int64(i)})
			}
			ctx := mapper.WithReason(mapper.WithCaller(t.Context(), "alice@example.com"), "alice asks")
			if aborts {
				d.keep = func(context.Context, *prebuilt.Certificate) error {
					return w.Engine.Job("e1").Abort(context.WithoutCancel(ctx))
				}
			}
			job, err := w.Engine.StartByName(ctx, "erase", mapper.Query{Namespace: "acme"},
				[]byte(`{"words": ["alice@example.com"]}`),
				&mapper.StartOptions{ID: "e1", PageSize: 5, Rate: mapper.Rate{EntitiesPerSecond: 1}})
			if err != nil {
				t.Fatal(err)
			}
			for _, act := range []func(context.Context) error{job.Pause, job.Resume} {
				if err := act(ctx); err != nil {
					t.Fatal(err)
				}
			}
			want := mapper.StateSucceeded
			if aborts {
				want = mapper.StateAborted
			}
			if s, err := job.Wait(t.Context()); err != nil || s.State != want {
				t.Fatalf("%+v, %v", s, err)
			}
			if err := job.CleanUp(ctx, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if c := d.certificate(t, "e1"); c.Namespace != "acme" {
				t.Errorf("the certificate is for %q", c.Namespace)
			}
			for _, text := range []string{"alice", "acme"} {
				if found, err := grep(t.Context(), w.Client, text, nil); err != nil || len(found) > 0 {
					t.Errorf("aborted %v: %q is in %q, %v", aborts, text, found, err)
				}
			}
			acts, err := job.History(t.Context())
			if err != nil || len(acts) < 4 || !strings.HasPrefix(acts[0].Action, "started") {
				t.Errorf("its history is %+v, %v", acts, err)
			}
		})
	}
}
