package prebuilt_test

import (
	"context"
	"errors"
	"fmt"
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

// TestEraseStartedAgain starts an erasure again, like an operator who did not get the answer to the
// first start. Meanwhile, the job has deleted all entities of some kinds, and another job has
// started. Both starts must return the same job, until its end.
func TestEraseStartedAgain(t *testing.T) {
	for _, c := range []struct{ kinds, params string }{
		{"A", "{}"}, {"A B", "{}"}, {"A B", `{"property": "tenant", "value": "acme"}`},
	} {
		d := newDrawer(t)
		mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
			w := tenancy{t, world}
			for kind := range strings.FieldsSeq(c.kinds) {
				for i := range 20 {
					w.put("acme", kind, fmt.Sprint(i), datastore.Property{Name: "tenant", Value: "acme"})
				}
			}
			q := mapper.Query{Namespace: "acme"}
			start := func() (*mapper.Job, error) {
				return w.Engine.StartByName(t.Context(), "erase", q, []byte(c.params),
					&mapper.StartOptions{ID: "e1", PageSize: 5})
			}
			again := 0
			d.keep = func(context.Context, *prebuilt.Certificate) error {
				again++
				for i := range 20 { // more than a job with a rate of 1 has done when it is paused
					w.put("", "Other", fmt.Sprint(i))
				}
				w.paused(mapper.Query{Kind: "Other", AllNamespaces: true}, fmt.Sprint("beside-", again))
				if _, err := start(); err != nil {
					t.Errorf("%s: while it runs: %v", c.params, err)
				}
				return nil
			}
			first, err := start()
			if err != nil {
				t.Fatal(err)
			}
			if s, err := first.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || again == 0 {
				t.Fatalf("%+v, %v", s, err)
			}
			if _, err := start(); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "erased") || !strings.Contains(err.Error(), "another ID") {
				t.Errorf("%s: after its end: %v", c.params, err)
			}
		})
	}
}
