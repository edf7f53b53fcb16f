package dashboard_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// A scene is a job in a state that an operator has to recognise.
type scene struct {
	name string
	job  string
	set  func(t *testing.T, w *world)
}

// scenes are the states that an operator meets.
var scenes = []scene{
	{"well", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(10 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.4)
	}},
	{"slow", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(2 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.3)
		w.busy.Store(true)
		time.Sleep(25 * time.Second)
	}},
	{"queued", "autumn-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(200 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 200})
		time.Sleep(3 * time.Second)
		w.start(t, "autumn-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40, AllowOverlap: true})
		time.Sleep(12 * time.Second)
	}},
	{"failing", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.fails.Store(true)
		w.slow.Store(int64(10 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.5)
	}},
	{"failed", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.fails.Store(true)
		w.slow.Store(int64(time.Millisecond))
		w.run(t, "spring-credit", `{"Amount": 10, "note": "a\u0000b"}`, mapper.StartOptions{PageSize: 40})
	}},
	{"allfail", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 3_000)
		w.fails.Store(true)
		w.all.Store(true)
		w.run(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
	}},
	{"budget", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40,
			Budget: mapper.Budget{Dollars: 0.01}})
		w.until(t, "spring-credit", 0.9)
	}},
	{"undo", "undo-spring-credit", undone},
	{"undone", "spring-credit", undone},
}

// undone undoes a job. Some of its entities were changed since.
func undone(t *testing.T, w *world) {
	w.putAccounts(t, 6_000)
	w.run(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
	w.putAccounts(t, 100)
	u, err := w.engine.Job("spring-credit").Undo(mapper.WithReason(mapper.WithCaller(t.Context(), "ann@example.com"),
		"wrong amount"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

var errBusy = errors.New("mail service: 429 Too Many Requests")

// until waits until a part of a job is done, or until it has stopped.
func (w *world) until(t *testing.T, id string, part float64) {
	t.Helper()
	for {
		s, err := w.engine.Job(id).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Progress.Fraction > part || s.State.Ended() || s.State == mapper.StatePaused {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestScenes makes pictures of the pages of jobs in each state that an operator meets, in the
// folder $SCENES: SCENES=/tmp/scenes go test ./dashboard -run Scenes. Each state has a view on a
// desk, in the dark, and on a phone.
func TestScenes(t *testing.T) {
	folder := os.Getenv("SCENES")
	if folder == "" {
		t.Skip("left out: $SCENES names no folder for the pictures of jobs in each state")
	}
	t.Setenv("SCREENS", folder)
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t, nil)
			s.set(t, w)
			for _, view := range []struct {
				name  string
				width int64
				dark  bool
			}{{"light", 1440, false}, {"dark", 1440, true}, {"phone", 390, false}} {
				t.Run(view.name, func(t *testing.T) {
					b := newBrowser(t, view.width, 900, view.dark)
					b.screen = s.name + "-" + view.name
					for name, at := range map[string]string{"job": "job?id=" + s.job, "jobs": ""} {
						b.open(w.url + at)
						b.shoot(name)
					}
				})
			}
		})
	}
}
