package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/prebuilt"
)

// The code of docs/guide.md equals the code of this file.

// serveOperators serves the command line and the dashboard to the callers whom allow admits.
func serveOperators(mux *http.ServeMux, engine *mapper.Engine, allow auth.Func) error {
	jobs, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: allow})
	if err != nil {
		return err
	}
	mux.Handle("/jobs", jobs) // the command line, and programs
	mux.Handle("/jobs/", jobs)
	mux.Handle("/dashboard/", dashboard.NewHandler(engine, &dashboard.Options{Allow: allow}))
	return nil
}

// TestServeOperators sends requests to the handlers that docs/guide.md shows, from this machine and
// from another one.
func TestServeOperators(t *testing.T) {
	mappertest.Run(t, prebuilt.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		mux := http.NewServeMux()
		if err := serveOperators(mux, w.Engine, auth.Loopback); err != nil {
			t.Fatal(err)
		}
		for from, want := range map[string]int{"127.0.0.1:5": http.StatusOK, "192.0.2.1:5": http.StatusForbidden} {
			for _, path := range []string{"/jobs", "/dashboard/"} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost:8080"+path, nil)
				r.RemoteAddr = from
				answer := httptest.NewRecorder()
				mux.ServeHTTP(answer, r)
				if answer.Code != want {
					t.Errorf("%s from %s: %d %s, want %d", path, from, answer.Code, answer.Body, want)
				}
			}
		}
	})
}
