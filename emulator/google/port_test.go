package google

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/scattermap/scattermap/internal/nightly"
)

// TestGooglePortTaken makes a server answer like an emulator on the port that Start tries first. It
// checks that the emulator starts on the next port, and that an error says so if all ports are
// taken.
func TestGooglePortTaken(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	nightly.Leave(t)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer other.Close()
	u, err := url.Parse(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	taken := func() (string, error) { return u.Port(), nil }

	for p, l := range launches {
		t.Run(string(p), func(t *testing.T) {
			asked := 0
			g, err := l.startOn(t.Context(), p, func() (string, error) {
				if asked++; asked == 1 {
					return taken()
				}
				return freePort()
			})
			if errors.Is(err, ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			if asked < 2 || g.Addr == u.Host {
				t.Errorf("started at %s after %d ports, and %s was taken", g.Addr, asked, u.Host)
			}
			if g, err := l.startOn(t.Context(), p, taken); !errors.Is(err, errPortTaken) {
				if err == nil {
					g.Close()
				}
				t.Errorf("where all ports are taken: error %v, want %v", err, errPortTaken)
			}
		})
	}
}
