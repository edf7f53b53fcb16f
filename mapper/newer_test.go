package mapper_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// rewrite changes the record of a job, as a newer build would write it.
func (w *world) rewrite(id string, change func(datastore.PropertyList) datastore.PropertyList) {
	w.Helper()
	key, list := datastore.NameKey(record.JobKind, id, nil), datastore.PropertyList{}
	if err := w.client.Get(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
	list = change(list)
	if _, err := w.client.Put(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
}

// replaceInQuery returns a change of a text in the query of a job.
func replaceInQuery(was, is string) func(datastore.PropertyList) datastore.PropertyList {
	return func(list datastore.PropertyList) datastore.PropertyList {
		i := slices.IndexFunc(list, func(p datastore.Property) bool { return p.Name == "query" })
		list[i].Value = []byte(strings.Replace(string(list[i].Value.([]byte)), was, is, 1))
		return list
	}
}

// TestJobOfNewerBuild has this build find a job that has more than it knows, as after going back to
// it: it processes nothing, says so, and can abort the job. A build that knows the job goes on with
// it.
func TestJobOfNewerBuild(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const field, filter = `{"sample":7,`, `{"filters":[{"property":"__key__","op":"sample","value":"7"}],`
	type change = func(datastore.PropertyList) datastore.PropertyList
	for name, c := range map[string]struct{ unknown, known change }{
		"a field":  {replaceInQuery("{", field), replaceInQuery(field, "{")},
		"a filter": {replaceInQuery("{", filter), replaceInQuery(filter, "{")},
		"a setting": {
			func(list datastore.PropertyList) datastore.PropertyList {
				return append(list, datastore.Property{Name: "needs", Value: []any{"sample"}, NoIndex: true})
			},
			func(list datastore.PropertyList) datastore.PropertyList {
				return slices.DeleteFunc(list, func(p datastore.Property) bool { return p.Name == "needs" })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(4)}, slowCredit)
				var deploying atomic.Bool // nobody takes tasks
				engine := w.handler
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if deploying.Load() {
						rw.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					engine.ServeHTTP(rw, r)
				})
				keys := names(1000)
				w.putAccounts(keys)
				job := w.startSlow()
				time.Sleep(time.Second)
				if err := job.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				done := w.status(job).Processed
				w.rewrite(job.ID, c.unknown)
				refused := func(what string, err error) {
					t.Helper()
					if !errors.Is(err, mapper.ErrNewer) || !strings.Contains(err.Error(), "sample") ||
						operator.Code(err) != http.StatusConflict {
						t.Errorf("%s: %v, want ErrNewer, a conflict, that says what is not known", what, err)
					}
				}
				_, err := job.Status(t.Context())
				refused("status", err)
				refused("resume", job.Resume(t.Context()))
				if jobs, _, err := w.engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) != 1 {
					t.Errorf("the list of jobs: %+v, %v", jobs, err)
				}
				// A newer build resumes it, and this one gets its tasks.
				w.rewrite(job.ID, c.known)
				deploying.Store(true)
				if err := job.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.rewrite(job.ID, c.unknown)
				deploying.Store(false)
				time.Sleep(5 * time.Minute)
				if now := w.credited(1000); now != done {
					t.Errorf("%d accounts were credited, and %d five minutes later", done, now)
				}
				if name == "a filter" {
					if err := job.Abort(t.Context()); err != nil {
						t.Errorf("abort: %v", err)
					}
					return
				}
				w.rewrite(job.ID, c.known)
				if s := w.wait(job); s.State != mapper.StateSucceeded || s.Processed != 1000 {
					t.Errorf("%+v", s)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}
