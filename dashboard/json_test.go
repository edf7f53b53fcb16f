package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// names returns the names of all members in JSON, with dots between nested names. For an array it
// returns the names in its first element.
func names(v any, prefix string) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, inside := range v {
			all = append(all, prefix+name)
			all = append(all, names(inside, prefix+name+".")...)
		}
	case []any:
		if len(v) > 0 {
			all = names(v[0], prefix)
		}
	}
	slices.Sort(all)
	return all
}

// TestJSON checks the names in JSON that package documentation promises to keep. It requests JSON
// by a header and by a parameter.
func TestJSON(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 300)
	w.fails.Store(true)
	w.run(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.slow.Store(int64(time.Second))
	w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	id := w.rangeOf(t, "j")
	for at, want := range map[string]string{
		"?name=runs": "counts counts.running jobs jobs.counted jobs.created jobs.dollars jobs.failures jobs.id " +
			"jobs.mapper jobs.processed jobs.progress jobs.progress.about jobs.progress.at_least " +
			"jobs.progress.at_most jobs.progress.overall jobs.progress.rate jobs.queue jobs.state",
		"job?id=j": "causes causes.cause causes.count causes.digest causes.estimated causes.example " +
			"causes.example.attempts causes.example.error causes.example.key causes.example.time estimated history " +
			"history.action history.state history.time kept levels levels.depth levels.entities levels.open " +
			"levels.ranges pages pages.entities pages.per_entity pages.seconds ranges ranges.attempts " +
			"ranges.continues ranges.created ranges.depth ranges.done ranges.end ranges.entities ranges.id " +
			"ranges.ran_ns ranges.refusals ranges.weight ranges.state ranges.written series series.busy series.from " +
			"series.rate status status.params status.query status.settings",
		"range?job=j&range=" + id: "job range range.alone range.attempts range.continues range.created range.deaths " +
			"range.depth range.done range.entities range.error range.full range.id range.page_size range.ran_ns " +
			"range.refusals range.weight range.start range.state range.written",
		"failures?id=j": "causes causes.cause causes.count causes.digest causes.estimated causes.example " +
			"causes.example.attempts causes.example.error causes.example.key causes.example.time failures " +
			"failures.attempts failures.error failures.key failures.time",
		"replay?id=j": "frames ranges ranges.id ranges.state times",
		"start?mapper=credit": "mappers mappers.fields mappers.fields.kind mappers.fields.name " +
			"mappers.fields.optional mappers.fields.required mappers.name mappers.visit",
	} {
		for _, way := range []string{"accept", "format"} {
			var text string
			var code int
			if way == "accept" {
				code, text = get(t, w.url+at, "text/html;q=0.8, application/json")
			} else {
				code, text = get(t, w.url+at+"&format=json", "text/html")
			}
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil || code != http.StatusOK {
				t.Errorf("%s by %s: %d %v %.100s", at, way, code, err, text)
				continue
			}
			have := names(v, "")
			for name := range strings.FieldsSeq(want) {
				if !slices.Contains(have, name) {
					t.Errorf("%s by %s has no %s: %q", at, way, name, have)
				}
			}
		}
	}
	for at, want := range map[string]int{"job?id=nobody": 404, "nowhere": 404, "job": 400, "?state=x": 400,
		"?cursor=x": 400, "range?job=j&range=x": 404, "replay?id=j&frame=31": 400, "job?id=j&colour=red": 400,
		"start?mapper=x": 400, "act?do=x&id=j": 400} {
		code, text := get(t, w.url+at, "application/json")
		var failed struct{ Error string }
		if err := json.Unmarshal([]byte(text), &failed); err != nil || code != want || failed.Error == "" {
			t.Errorf("%s: %d %s, want %d", at, code, text, want)
		}
		if code, text = get(t, w.url+at, ""); code != want || !strings.Contains(text, "<h1>"+fmt.Sprint(want)) {
			t.Errorf("%s: %d %.300s, want %d", at, code, text, want)
		}
	}
}
