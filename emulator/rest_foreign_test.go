package emulator_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator"
)

// TestForeignSites sends what a web page of another site can make a browser send without asking the
// server first: a POST of plain text. It must not empty a developer's emulator, or change data.
func TestForeignSites(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	for url, body := range map[string]string{
		e.DatastoreAddr() + "/reset":                        "",
		e.DatastoreAddr() + "/v1/projects/p:commit":         `{"mode":"NON_TRANSACTIONAL"}`,
		e.TasksAddr() + "/v2/projects/p/locations/l/queues": `{"name":"projects/p/locations/l/queues/q"}`,
	} {
		for name, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site",
			"Host": "evil.example:8081"} { // by DNS rebinding, the page's own name stands for this machine
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "text/plain")
			if name == "Host" {
				req.Host = value
				req.Header.Set("Origin", "http://"+value)
			} else {
				req.Header.Set(name, value)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s %s: %s, want 403", url, name, value, resp.Status)
			}
		}
	}
}

// TestAllowedHosts reads the queues under several names of the machine, as a browser does: without
// an Origin.
func TestAllowedHosts(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{TasksAddr: "127.0.0.1:0", AllowedHosts: []string{"devbox.example"}})
	for host, want := range map[string]int{e.TasksAddr(): 200, "devbox.example:80": 200, "evil.example:80": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+e.TasksAddr()+"/v2/projects/p/locations/l/queues", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("for the host %s: %s, want %d", host, resp.Status, want)
		}
	}
}
