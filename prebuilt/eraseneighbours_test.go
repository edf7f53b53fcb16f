package prebuilt_test

import (
	"fmt"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// TestEraseNeighbours erases a namespace whose name occurs in names of other namespaces, or in IDs
// of their jobs. The jobs of the other namespaces must keep their failures, counters and undo. Some
// of them are paused, and must not prevent the erasure.
func TestEraseNeighbours(t *testing.T) {
	for namespace, others := range map[string]map[string]string{ // the namespaces of other jobs, by the jobs' IDs
		"acme": {"check-acme-eu": "acme-eu", "nightly": "acme_2", "my-acme-2026": "my-acme"},
		"0":    {"other-0": "other", "check-1-0": "1.0", "nightly-0-0": "shop-1"},
		"2026": {"nightly-2026-11-25": "other", "check": "2026-11"},
	} {
		t.Run(namespace, func(t *testing.T) {
			d := newDrawer(t)
			mappertest.Run(t, append(prebuilt.Mappers(), d.erase()), nil, func(t *testing.T, world *mappertest.Env) {
				w := tenancy{t, world}
				w.neighbour(namespace, "own")
				for id, other := range others {
					w.neighbour(other, id)
					if err := w.quietly("touch", other, "{}", id+"-paused", 1).Pause(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				job, err := w.Engine.StartByName(t.Context(), "erase", mapper.Query{Namespace: namespace}, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Written != 30 {
					t.Fatalf("%+v, %v", s, err)
				}
				for _, id := range []string{"own", "own-set", "own-count"} {
					if s := w.status(id); !s.CleanedUp || s.Query.Namespace != "" || len(s.Counters) > 0 {
						t.Errorf("the job %s of the namespace: %+v", id, s)
					}
				}
				for id, other := range others {
					w.keeps(id, other)
				}
			})
		})
	}
}

// quietly starts a job over a namespace. Its history does not name a tenant.
func (w tenancy) quietly(name, namespace, params, id string, rate float64) *mapper.Job {
	w.Helper()
	job, err := w.Engine.StartByName(w.Context(), name, mapper.Query{Namespace: namespace, Kind: "Account"},
		[]byte(params), &mapper.StartOptions{ID: id, Rate: mapper.Rate{EntitiesPerSecond: rate}})
	if err != nil {
		w.Fatal(err)
	}
	return job
}

// neighbour puts entities into a namespace, and runs jobs over them whose IDs start with the given
// one. The names of keys contain the name of the namespace.
func (w tenancy) neighbour(namespace, id string) {
	w.Helper()
	of := datastore.NameKey("Tenant", "of-"+namespace+"-x", nil)
	of.Namespace = namespace
	for i := range 30 {
		w.put(namespace, "Account", fmt.Sprintf("of-%s-%d", namespace, i),
			datastore.Property{Name: "n", Value: int64(i)}, datastore.Property{Name: "of", Value: of})
	}
	for _, job := range []*mapper.Job{
		w.quietly("check", namespace, `{"condition": "n >= 5"}`, id, 0),
		w.quietly("set", namespace, `{"property": "seen", "value": true}`, id+"-set", 0),
		w.quietly("count", namespace, `{"by": "of"}`, id+"-count", 0),
	} {
		if _, err := job.Wait(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
}

// keeps checks that the jobs that neighbour has run still have their records, and undoes one.
func (w tenancy) keeps(id, namespace string) {
	w.Helper()
	if s := w.status(id); s.CleanedUp || s.Query.Namespace != namespace {
		w.Errorf("the job %s of another namespace: %+v", id, s)
	}
	if failures, _, err := w.Engine.Job(id).FailuresPage(w.Context(), ""); err != nil || len(failures) != 5 {
		w.Errorf("the job %s of another namespace has the failures %v; %v", id, failures, err)
	}
	if s := w.status(id + "-count"); s.CleanedUp || len(s.Counters) != 2 {
		w.Errorf("the job %s-count of another namespace: %+v", id, s)
	}
	undo, err := w.Engine.Job(id+"-set").Undo(w.Context(), nil)
	if err != nil {
		w.Fatalf("undo of the job %s-set of another namespace: %v", id, err)
	}
	if s, err := undo.Wait(w.Context()); err != nil || s.State != mapper.StateSucceeded {
		w.Errorf("undo of the job %s-set of another namespace: %+v, %v", id, s, err)
	}
}
