package dashboard_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// TestLegal brings a job into each state. In each state the job's page must offer exactly the
// actions that the job accepts.
func TestLegal(t *testing.T) {
	testflag.Sequential(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 200)
	prepare := map[mapper.State]func(id string){
		mapper.StateSucceeded: func(id string) {
			w.fails.Store(false)
			w.run(t, id, `{"Amount": 1}`, mapper.StartOptions{})
		},
		mapper.StateSucceededWithFailures: func(id string) {
			w.fails.Store(true)
			w.run(t, id, `{"Amount": 1}`, mapper.StartOptions{})
		},
		mapper.StateRunning: func(id string) {
			w.slow.Store(int64(150 * time.Millisecond))
			w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, AllowOverlap: true})
		},
		mapper.StatePaused: func(id string) {
			w.slow.Store(int64(150 * time.Millisecond))
			if err := w.start(t, id, `{"Amount": 1}`,
				mapper.StartOptions{PageSize: 10, AllowOverlap: true}).Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		mapper.StateFailed: func(id string) {
			w.fails.Store(true)
			w.all.Store(true)
			defer w.all.Store(false)
			if s := w.run(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 20}); s.State != mapper.StateFailed {
				t.Fatalf("%+v", s)
			}
		},
		mapper.StateAborted: func(id string) {
			w.slow.Store(int64(150 * time.Millisecond))
			if err := w.start(t, id, `{"Amount": 1}`,
				mapper.StartOptions{PageSize: 10, AllowOverlap: true}).Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	}
	n := 0
	for state, start := range prepare {
		for _, verb := range []string{"pause", "resume", "retry", "abort", "rate", "undo", "clean-up", "verify"} {
			n++
			id := fmt.Sprint("j", n)
			w.slow.Store(0)
			start(id)
			_, page := get(t, w.url+"job?id="+id, "")
			offered := strings.Contains(page, `value="`+verb+`"`) || strings.Contains(page, "do="+verb)
			code, text := post(t, w.url+"act", "do="+verb+"&confirmed=yes&id="+id)
			switch {
			case offered && code >= 400:
				t.Errorf("%s is offered for a job that is %s, and refused: %d %.400s", verb, state, code,
					text[strings.Index(text, "<main"):])
			case !offered && code < 400 && !harmless[fmt.Sprint(state, " ", verb)]:
				t.Errorf("%s is not offered for a job that is %s, and done: %d", verb, state, code)
			}
			_ = w.engine.Job(id).Abort(t.Context())
		}
	}
}

// harmless are actions that a job accepts in some states, although its page does not offer them.
// They have no effect then, or only enqueue lost tasks again.
var harmless = map[string]bool{
	"running resume": true, "running retry": true, "paused retry": true, "paused pause": true, "succeeded retry": true,
	"aborted abort": true, "aborted undo": true,
	"running verify": true, "failed retry": true, "failed undo": true, "paused verify": true,
}

// TestMany acts on several jobs at once. Jobs that refuse the action are listed with the reason.
func TestMany(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 100)
	w.slow.Store(int64(100 * time.Millisecond))
	for _, id := range []string{"a", "b"} {
		w.start(t, id, `{"Amount": 1}`, mapper.StartOptions{PageSize: 10, AllowOverlap: true})
	}
	if code, text := post(t, w.url+"act", "do=pause&id=a&id=b&reason=lunch"); code != http.StatusSeeOther {
		t.Fatalf("%d %.300s", code, text)
	}
	for _, id := range []string{"a", "b"} {
		if s, err := w.engine.Job(id).Status(t.Context()); err != nil || s.State != mapper.StatePaused {
			t.Errorf("%s: %+v, %v", id, s, err)
		}
	}
	code, text := post(t, w.url+"act", "do=resume&id=a&id=nobody&id=b", "Accept", "application/json")
	var done struct {
		Done   []string
		Failed []struct{ ID, Error string }
	}
	if err := json.Unmarshal([]byte(text), &done); err != nil || code != http.StatusOK ||
		!slices.Equal(done.Done, []string{"a", "b"}) || len(done.Failed) != 1 || done.Failed[0].ID != "nobody" {
		t.Errorf("%d %s", code, text)
	}
	if code, text := post(t, w.url+"act", "do=abort&id=a&id=b"); code != http.StatusOK ||
		!strings.Contains(text, "can&#39;t be resumed") || strings.Count(text, `name="id"`) != 2 {
		t.Errorf("%d %.2000s", code, text)
	}
	for _, test := range []struct {
		form string
		code int
	}{
		{"do=abort", 400}, {"do=undo&id=a&id=b", 400}, {"do=x&id=a", 400}, {"do=rate&id=a&rate=x", 400},
		{"do=rate&id=a&rate=-2", 400}, {"do=rate&id=a&rate=NaN", 400}, {"do=rate&id=a&for=x", 400},
		{"do=pause&id=nobody", 404}, {"do=abort&id=a&confirmed=yes", 303}, {"do=resume&id=a", 409},
		{"do=retry&id=b&cause=x", 400}, {"do=retry&id=b&of=x", 400},
	} {
		if code, text := post(t, w.url+"act", test.form); code != test.code {
			t.Errorf("%s: %d %.300s, want %d", test.form, code, text, test.code)
		}
	}
}

// TestForeign shows the page of a job whose queue is not the engine's. The page must offer only
// actions that are possible.
func TestForeign(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 200)
	w.slow.Store(int64(150 * time.Millisecond))
	w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 10})
	other, err := tasks.NewQueue(w.queues, location+"/queues/other", "http://other.test/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	ours := w.engine
	if w.engine, err = mapper.NewEngine(w.client, other,
		&mapper.EngineOptions{Mappers: w.mappers, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	url := w.serve(t, &dashboard.Options{AllQueues: true})
	if _, page := get(t, url, ""); !strings.Contains(page, `job?id=j"`) {
		t.Error("it is not listed")
	}
	_, page := get(t, url+"job?id=j", "")
	for _, verb := range []string{"pause", "abort", "rate", "retry"} {
		if strings.Contains(page, `value="`+verb+`"`) {
			t.Errorf("%s is offered", verb)
		}
		if code, text := post(t, url+"act", "do="+verb+"&confirmed=yes&id=j"); code != http.StatusConflict ||
			!strings.Contains(text, "queue") {
			t.Errorf("%s: %d %s", verb, code, text)
		}
	}
	if !strings.Contains(page, `value="move"`) {
		t.Error("it can't be moved")
	}
	if err := ours.Job("j").Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestRate sets a job's rate in the form on its page. The values that the viewer does not change in
// the form must stay.
func TestRate(t *testing.T) {
	w := newWorld(t, nil)
	w.putAccounts(t, 500)
	w.slow.Store(int64(150 * time.Millisecond))
	job := w.start(t, "j", `{"Amount": 1}`,
		mapper.StartOptions{PageSize: 10, Rate: mapper.Rate{EntitiesPerSecond: 1000, WritesPerSecond: 770,
			CallsPerSecond: 330, Ramp: true}})
	_, page := get(t, w.url+"job?id=j", "")
	form := url.Values{"do": {"rate"}, "id": {"j"}}
	for _, n := range elements(t, page) {
		if name := attribute(n, "name"); n.Data == "input" &&
			slices.Contains([]string{"rate", "writes", "calls", "ramp", "for"}, name) {
			form.Set(name, attribute(n, "value"))
		}
	}
	form.Set("rate", "500")
	if code, text := post(t, w.url+"act", form.Encode()); code != http.StatusSeeOther {
		t.Fatalf("%d %s", code, text)
	}
	s, err := job.Status(t.Context())
	want := mapper.Rate{EntitiesPerSecond: 500, WritesPerSecond: 770, CallsPerSecond: 330, Ramp: true}
	if err != nil || s.Settings.Rate != want {
		t.Errorf("%+v, %v, want %+v", s.Settings.Rate, err, want)
	}
	// an entered 0 may mean that nothing is allowed, so it does not lift a limit
	for _, bad := range []string{"rate=0", "rate=500&writes=0.0", "calls=-0", "rate=5&for=0", "rate=5&for=0s",
		"rate=1,5",
		"rate=1e309", "rate=%2B", "rate=5&for=1e9", "rate=5&for=9999999h"} {
		code, text := post(t, w.url+"act", "do=rate&id=j&"+bad)
		if code != http.StatusBadRequest || !strings.Contains(text, "It was not done:") {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
	if s, err := job.Status(t.Context()); err != nil || s.Settings.Rate != want {
		t.Errorf("%+v, %v, want %+v", s.Settings.Rate, err, want)
	}
	if err := job.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}
