package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestMounted mounts the dashboard at several paths, with and without http.StripPrefix, and checks
// that each link leads to a page.
func TestMounted(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 20)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	h := dashboard.NewHandler(w.engine, &dashboard.Options{Allow: auth.Loopback})
	for name, mount := range map[string]func(*http.ServeMux) (path string){
		"at the root":         func(m *http.ServeMux) string { m.Handle("/", h); return "/" },
		"without StripPrefix": func(m *http.ServeMux) string { m.Handle("/admin/jobs/", h); return "/admin/jobs/" },
		"with StripPrefix": func(m *http.ServeMux) string {
			m.Handle("/d/job/", http.StripPrefix("/d/job", h))
			return "/d/job/"
		},
		"with StripPrefix's /": func(m *http.ServeMux) string {
			m.Handle("/d/", http.StripPrefix("/d/", h))
			return "/d/"
		},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			path := mount(mux)
			server := httptest.NewServer(mux)
			defer server.Close()
			w.url = server.URL + path
			if texts := everyPage(t, w); len(texts) < 10 {
				t.Errorf("%d pages", len(texts))
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/a/b", http.StripPrefix("/a/b", h))
	server := httptest.NewServer(mux)
	defer server.Close()
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}).Get(server.URL + "/a/b?state=running")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if to, err := resp.Location(); err != nil || to.Path != "/a/b/" {
		t.Errorf("%v, %v", to, err)
	}
	rec := httptest.NewRecorder()
	dashboard.NewHandler(nil, everybody).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusInternalServerError || !strings.Contains(rec.Body.String(), "no engine") {
		t.Errorf("without an engine: %d %s", rec.Code, rec.Body)
	}
}
