package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// TestList lists more jobs than those whose statuses are read. For the others the list shows only
// known facts. The test finds jobs by state, mapper and name.
func TestList(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 50)
	w.run(t, "good", `{"Amount": 1}`, mapper.StartOptions{})
	w.slow.Store(int64(50 * time.Millisecond))
	for i := range 24 {
		job := w.start(t, fmt.Sprintf("stopped-%02d", i), `{"Amount": 1}`,
			mapper.StartOptions{PageSize: 10, AllowOverlap: true})
		if i < 12 {
			if err := job.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, page := get(t, w.url, "")
	if n := strings.Count(page, `data-label="Cost" class="num">$`); n != 25 {
		t.Errorf("the cost of %d jobs is said, of 25", n)
	}
	if n := strings.Count(page, `class="bar"`); n != 12 {
		t.Errorf("%d bars of 12 paused jobs", n)
	}
	for filter, want := range map[string]int{"?state=paused": 12, "?state=aborted": 12, "?mapper=credit": 25,
		"?mapper=look": 0, "?name=stopped-0": 10, "?name=good&state=succeeded": 1, "?name=good&state=failed": 0,
		"?all=true": 25, "?all=false": 25} {
		_, text := get(t, w.url+filter, "application/json")
		var list struct {
			Jobs     []mapper.JobInfo
			Searched int
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Jobs) != want {
			t.Errorf("%s: %d jobs, %v, want %d", filter, len(list.Jobs), err, want)
		}
		if strings.Contains(filter, "name=s") && list.Searched != 25 {
			t.Errorf("%s: %d jobs were looked through, of 25", filter, list.Searched)
		}
	}
}

// TestTampered shows a job with a damaged record. The request fails, and the process goes on.
func TestTampered(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 200)
	w.fails.Store(true)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{})
	var all []datastore.PropertyList
	keys, err := w.client.GetAll(t.Context(), datastore.NewQuery("ScattermapRange"), &all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		var kept datastore.PropertyList
		for _, p := range all[i] {
			if p.Name != "start" && p.Name != "done" {
				kept = append(kept, p)
			}
		}
		all[i] = kept
	}
	if _, err := w.client.PutMulti(t.Context(), keys, all); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"job?id=j", "failures?id=j", "replay?id=j", "replay.svg?id=j", "job?id=j&format=json"} {
		if code, text := get(t, w.url+at, ""); code != http.StatusInternalServerError ||
			strings.Contains(text, "goroutine") {
			t.Errorf("%s: %d %.300s", at, code, text)
		}
	}
	if code, _ := get(t, w.url, ""); code != http.StatusOK {
		t.Errorf("the list: %d", code)
	}
}
