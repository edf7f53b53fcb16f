package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// TestList lists more jobs than the dashboard reads statuses of. For the other jobs, the list must
// show only facts from the jobs' records. The test also finds jobs by state, mapper and name.
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
	if n := strings.Count(page, `class="mini`); n != 25 {
		t.Errorf("%d strips of 25 jobs", n)
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

// cells returns a letter for each cell of a job's strip in the list. The letter is the first one of
// the cell's state, in upper case if an entity of the cell has failed. The result says is the
// strip's text for screen readers.
func cells(t *testing.T, page, job string) (cells, says string) {
	t.Helper()
	_, row, found := strings.Cut(page, `href="job?id=`+job+`"`)
	row, _, _ = strings.Cut(row, "</tr>")
	svg := regexp.MustCompile(`(?s)<svg class="mini[^>]* aria-label="([^"]*)">(.*?)</svg>`).FindStringSubmatch(row)
	if !found || svg == nil {
		t.Fatalf("no strip of %s in\n%.3000s", job, page)
	}
	drawn := []byte(strings.Repeat(".", 100))
	for _, path := range regexp.MustCompile(`<path class="([a-z]+)" d="([^"]*)"`).FindAllStringSubmatch(svg[2], -1) {
		for _, run := range regexp.MustCompile(`M(\d+) (\d+)h(\d+)v`).FindAllStringSubmatch(path[2], -1) {
			at, _ := strconv.Atoi(run[1])
			n, _ := strconv.Atoi(run[3])
			for i := at; i < at+n; i++ {
				switch whole := run[2] == "0"; {
				case whole && drawn[i] != '.':
					t.Errorf("cell %d of %s is %c, and %s", i, job, drawn[i], path[1])
				case whole:
					drawn[i] = path[1][0]
				default: // the mark of failed entities, at the bottom
					drawn[i] &^= 'a' - 'A'
				}
			}
		}
	}
	return string(drawn), html.UnescapeString(svg[1])
}

// TestStrips lists jobs in several states. Each job's strip must show which parts of its key space
// are done, and where entities have failed.
func TestStrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.putAccounts(t, 2000)
	w.run(t, "good", `{"Amount": 1}`, mapper.StartOptions{PageSize: 100})
	w.fails.Store(true)
	w.run(t, "closed", `{"Amount": 1}`, mapper.StartOptions{PageSize: 100})
	w.slow.Store(int64(20 * time.Millisecond))
	half := w.start(t, "half", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.until(t, "half", 0.4)
	if err := half.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.refuses.Store(true)
	waits := w.start(t, "waits", `{"Amount": 1}`, mapper.StartOptions{AllowOverlap: true})
	for {
		if s, err := half.Status(t.Context()); err != nil {
			t.Fatal(err)
		} else if s.Phase == mapper.PhasePaused {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, page := get(t, w.url, "")
	for _, test := range []struct{ job, cells, says string }{
		{"good", "^d{100}$", "^2,000 done, 0 failed$"},
		{"closed", "^d{99}f$", "^1,980 done, 20 failed$"}, // the record does not say where entities have failed
		{"half", "^[dpsDPS]*$", "^[3-9][0-9]% done, ([0-9]+% slow, )?[1-5][0-9]% pending, [0-9]+ failed$"},
		{"waits", "^p{100}$", "^0% done, 100% pending, 0 failed$"},
	} {
		drawn, says := cells(t, page, test.job)
		if !regexp.MustCompile(test.cells).MatchString(drawn) || !regexp.MustCompile(test.says).MatchString(says) {
			t.Errorf("%s: %s, %q", test.job, drawn, says)
		}
		if test.job != "half" {
			continue
		}
		s, err := half.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := 100 - strings.Count(strings.ToLower(drawn), "p")
		if about := int(100 * s.Progress.Fraction); done < about-8 || done > about+8 {
			t.Errorf("%d of 100 cells are done, the status says %d%%: %s", done, about, drawn)
		}
		failed := int64(len(regexp.MustCompile("[A-Z]").FindAllString(drawn, -1)))
		if s.Failures == 0 || failed == 0 || failed > s.Failures {
			t.Errorf("%d cells have some of %d failures: %s", failed, s.Failures, drawn)
		}
	}
	for _, job := range []*mapper.Job{half, waits} {
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, page = get(t, w.url, "")
	if drawn, _ := cells(t, page, "half"); !strings.Contains(drawn, "d") || !strings.Contains(drawn, "p") {
		t.Errorf("the job that was aborted: %s", drawn)
	}
}

// TestStripsCostNothing checks that a strip in the list needs no calls of the database beyond the
// ones for the job's status, which the list reads anyway.
func TestStripsCostNothing(t *testing.T) {
	testflag.Sequential(t)
	cost := func(w *world, read func() error) billing.Usage {
		t.Helper()
		before := w.emulator.Usage()
		if err := read(); err != nil {
			t.Fatal(err)
		}
		return w.emulator.Usage().Sub(before)
	}
	for _, n := range []int{5, 3000} {
		w, _ := crowded(t, n)
		status := cost(w, func() error {
			_, err := w.engine.Job("many").Status(t.Context())
			return err
		})
		strip := cost(w, func() error {
			s, p, err := picture.Glance(t.Context(), w.engine, "many")
			if err == nil && (s.ID != "many" || len(p.Ranges) < min(n, 250)) {
				t.Errorf("%d ranges of %s", len(p.Ranges), s.ID)
			}
			return err
		})
		t.Logf("%d ranges: %d reads, %v", n, strip.Reads, strip.RPCs)
		if strip.Reads != status.Reads || !maps.Equal(strip.RPCs, status.RPCs) {
			t.Errorf("a status with %d ranges costs %+v, and with a picture %+v", n, status, strip)
		}
	}
}

// TestTampered shows a job with a damaged record. The request must fail with an error, and not end
// the process.
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
