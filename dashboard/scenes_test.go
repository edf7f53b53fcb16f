package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

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
	{"slow", "spring-credit", func(t *testing.T, w *world) {
		w.putAccounts(t, 12_000)
		w.slow.Store(int64(2 * time.Millisecond))
		w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
		w.until(t, "spring-credit", 0.3)
		w.busy.Store(true)
		time.Sleep(25 * time.Second)
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
	{"undo", "undo-spring-credit", undone, map[string]string{"left": "left?id=undo-spring-credit"}},
	{"undone", "spring-credit", undone, map[string]string{"clean": "act?do=clean-up&id=spring-credit",
		"verify": "act?do=verify&id=spring-credit", "replay": "replay?id=spring-credit&frame=12"}},
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

// undone runs and undoes a job. Before the undo, it changes some of the job's entities, which the
// undo then can't restore.
func undone(t *testing.T, w *world) {
	w.putAccounts(t, 6_000)
	w.run(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40})
	keys, all := make([]*datastore.Key, 100), make([]account, 100)
	for i := range keys {
		keys[i], all[i] = accountKey(int64(i+1)), account{-1}
	}
	if _, err := w.client.PutMulti(t.Context(), keys, all); err != nil {
		t.Fatal(err)
	}
	u, err := w.engine.Job("spring-credit").Undo(mapper.WithReason(mapper.WithCaller(t.Context(), "ann@example.com"),
		"wrong amount"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Wait(t.Context()); err != nil {
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
// desk and on a phone, each light and dark.
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
			}{{"light", 1440, false}, {"dark", 1440, true}, {"phone", 390, false}, {"night", 390, true}} {
				t.Run(view.name, func(t *testing.T) {
					b := newBrowser(t, view.width, 900, view.dark)
					b.screen = s.name + "-" + view.name
					pages := map[string]string{"job": "job?id=" + s.job, "jobs": ""}
					maps.Copy(pages, s.also)
					for name, at := range pages {
						b.open(w.url + at)
						b.shoot(name)
					}
				})
			}
		})
	}
}
