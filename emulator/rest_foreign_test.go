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
		for name, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "text/plain")
			req.Header.Set(name, value)
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
