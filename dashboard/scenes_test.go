package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/scattermap/scattermap/mapper"
)

// A scene brings a job into a state that an operator has to recognise on its page.
type scene struct {
	name string
	job  string
	set  func(t *testing.T, w *world)
	also map[string]string // the addresses of further pages, by the names of their pictures
}

// scenes are the states that an operator meets.
var scenes = []scene{
	{"well", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(50 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.3)
	}, map[string]string{"mappers": "start", "form": "start?mapper=credit", "abort": "act?do=abort&id=spring-credit",
		"nobody": "job?id=nobody", "nowhere": "nowhere", "wrong": "job?id=spring-credit&colour=red",
		"none": "?state=failed"}},
	{"refused", "spring-mail", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.late.Store(int64(2 * time.Millisecond))
		w.mail(t, "spring-mail")
		w.until(t, "spring-mail", 0.3)
		w.busy.Store(true)
		w.troubled(t, "spring-mail")
	}, nil},
	{"slow", "spring-mail", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.late.Store(int64(20 * time.Millisecond))
		w.mail(t, "spring-mail")
		time.Sleep(12 * time.Second)
		w.late.Store(int64(400 * time.Millisecond))
		time.Sleep(20 * time.Second)
	}, nil},
	{"queued", "autumn-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(200 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 200})
		time.Sleep(3 * time.Second)
		w.start(t, "autumn-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40, AllowOverlap: true})
		time.Sleep(12 * time.Second)
	}, nil},
	{"failing", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.fails.Store(true)
		w.slow.Store(int64(50 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.3)
	}, map[string]string{"failures": "failures?id=spring-credit", "pace": "job?id=spring-credit&colour=pace"}},
	{"failed", "spring-upload", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.upload(t, "spring-upload")
	}, map[string]string{"abort": "act?do=abort&id=spring-upload"}},
	{"some", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.fails.Store(true)
		w.slow.Store(int64(time.Millisecond))
		w.run(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
	}, map[string]string{"undo": "act?do=undo&id=spring-credit"}},
	{"allfail", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 3_000)
		w.fails.Store(true)
		w.all.Store(true)
		w.run(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
	}, map[string]string{"replay": "replay?id=spring-credit&frame=7"}},
	{"budget", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40,
			Budget: mapper.Budget{Dollars: 0.01}})
		w.until(t, "spring-credit", 0.9)
	}, nil},
	{"undo", "undo-spring-credit", undone(100), map[string]string{"left": "left?id=undo-spring-credit"}},
	{"undone", "spring-credit", undone(100), map[string]string{"clean": "act?do=clean-up&id=spring-credit",
		"verify": "act?do=verify&id=spring-credit", "replay": "replay?id=spring-credit&frame=12"}},
	{"restored", "undo-spring-credit", undone(0), map[string]string{"undone": "job?id=spring-credit"}},
	{"unrestored", "undo-spring-credit", undone(6_000), map[string]string{"undone": "job?id=spring-credit"}},
	{"list", "spring-failing", list, nil},
	{"many", "run-2", many, map[string]string{"running": "?state=running", "sorted": "?sort=failures"}},
}

// many creates about seventy jobs in all states.
func many(t *testing.T, w *world) {
	w.putAccounts(t, 1500)
	quick := mapper.StartOptions{PageSize: 50, AllowOverlap: true, FailureLimit: mapper.Unlimited}
	for i := range 50 {
		w.fails.Store(i%9 == 4)
		w.all.Store(i%18 == 4)
		w.run(t, fmt.Sprintf("nightly-%03d", i), `{"Amount": 1}`, quick)
	}
	w.all.Store(false)
	w.fails.Store(true)
	w.slow.Store(int64(20 * time.Millisecond))
	for i := range 12 {
		id := fmt.Sprintf("%s-%d", []string{"halt", "stop"}[i%2], i)
		job := w.start(t, id, `{"Amount": 1}`, quick)
		w.until(t, id, 0.05*float64(i+1))
		end := map[bool]func(context.Context) error{true: job.Pause, false: job.Abort}[i%2 == 0]
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.upload(t, "broken")
	w.slow.Store(int64(100 * time.Millisecond))
	for i := range 4 {
		w.start(t, fmt.Sprintf("run-%d", i), `{"Amount": 1}`, quick)
		time.Sleep(8 * time.Second)
	}
}

// list creates one job in each state that the other scenes show.
func list(t *testing.T, w *world) {
	undone(0)(t, w)
	w.again(t, "summer-credit", 6_000)
	w.upload(t, "spring-upload")
	quick := mapper.StartOptions{PageSize: 40, AllowOverlap: true}
	w.fails.Store(true)
	w.run(t, "some-closed", `{"Amount": 10}`, quick)
	w.fails.Store(false)
	w.start(t, "tight-budget", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40, AllowOverlap: true,
		Budget: mapper.Budget{Dollars: 0.005}})
	w.until(t, "tight-budget", 0.99)
	w.late.Store(int64(4 * time.Millisecond))
	w.mail(t, "spring-mail")
	w.until(t, "spring-mail", 0.3)
	w.busy.Store(true)
	w.fails.Store(true)
	w.slow.Store(int64(100 * time.Millisecond))
	w.start(t, "spring-failing", `{"Amount": 10}`, quick)
	w.until(t, "spring-failing", 0.1)
	w.start(t, "autumn-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 200, AllowOverlap: true})
	w.troubled(t, "spring-mail")
	time.Sleep(10 * time.Second)
}

// undone returns a function that runs and undoes a job. Before the undo, it changes the given
// number of the job's entities, which the undo then can't restore.
func undone(changed int) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		w.putAccounts(t, 6_000)
		w.again(t, "spring-credit", changed)
	}
}

// again runs a job, changes some of its entities, and undoes the job.
func (w *world) again(t *testing.T, id string, changed int) {
	t.Helper()
	w.run(t, id, `{"Amount": 10}`, mapper.StartOptions{PageSize: 40, AllowOverlap: true})
	w.putBalances(t, changed, -1)
	u, err := w.engine.Job(id).Undo(mapper.WithReason(mapper.WithCaller(t.Context(), "ann@example.com"),
		"wrong amount"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// mail starts a job of the mapper mail, which calls a service.
func (w *world) mail(t *testing.T, id string) {
	t.Helper()
	if _, err := w.engine.StartByName(mapper.WithCaller(t.Context(), "ann@example.com"), "mail",
		mapper.Query{Kind: "Account"}, []byte("{}"), &mapper.StartOptions{ID: id, PageSize: 40}); err != nil {
		t.Fatal(err)
	}
}

// upload runs a job of the mapper upload, which fails.
func (w *world) upload(t *testing.T, id string) {
	t.Helper()
	job, err := w.engine.StartByName(mapper.WithCaller(t.Context(), "ann@example.com"), "upload",
		mapper.Query{Kind: "Account"}, []byte("{}"), &mapper.StartOptions{ID: id, PageSize: 20})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateFailed {
		t.Fatalf("%+v, %v", s, err)
	}
}

// troubled waits until the status of a running job shows an error.
func (w *world) troubled(t *testing.T, id string) {
	t.Helper()
	for {
		s, err := w.engine.Job(id).Status(t.Context())
		if err != nil || s.State != mapper.StateRunning {
			t.Fatalf("%+v, %v", s, err)
		}
		if s.Error != "" {
			return
		}
		time.Sleep(time.Second)
	}
}

var errBusy = errors.New("mail service: 429 Too Many Requests")

// until waits until the fraction part of a job is done, or until the job has stopped.
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
// desk and on a phone, each light and dark. The pictures in the subfolder first have what fits on
// the screen.
func TestScenes(t *testing.T) {
	folder := os.Getenv("SCENES")
	if folder == "" {
		t.Skip("left out: $SCENES names no folder for the pictures of jobs in each state")
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t, nil)
			s.set(t, w)
			for _, view := range []struct {
				width, height int64
				dark          bool
			}{{1440, 900, false}, {1440, 900, true}, {390, 844, false}, {390, 844, true}} {
				theme := map[bool]string{true: "dark", false: "light"}[view.dark]
				b := newBrowser(t, view.width, view.height, view.dark)
				b.screen = fmt.Sprintf("%s-%d-%s", s.name, view.width, theme)
				pages := map[string]string{"job": "job?id=" + s.job, "jobs": ""}
				maps.Copy(pages, s.also)
				for name, at := range pages {
					b.open(w.url + at)
					b.save(filepath.Join(folder, "first"), name, of(b, chromedp.CaptureScreenshot()))
					b.save(folder, name, of(b, chromedp.FullScreenshot(100)))
				}
			}
		})
	}
}
