package dashboard_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/scattermap/scattermap/mapper"
)

// TestReadmeScreens makes the pictures of the README, in the folder $README_SCREENS:
// README_SCREENS=$PWD/docs/images go test ./dashboard -run ReadmeScreens.
func TestReadmeScreens(t *testing.T) {
	folder := os.Getenv("README_SCREENS")
	if folder == "" {
		t.Skip("left out: $README_SCREENS names no folder for the pictures of the README")
	}
	chromium(t)
	w := newWorld(t, nil)
	w.putAccounts(t, 12_000)
	w.run(t, "touch-2026-11-25", `{"Amount": 0}`, mapper.StartOptions{PageSize: 100})
	w.fails.Store(true)
	w.run(t, "winter-credit", `{"Amount": 5}`, mapper.StartOptions{PageSize: 100})
	w.slow.Store(int64(4 * time.Millisecond))
	if err := w.start(t, "backfill-plan", `{"Amount": 0}`,
		mapper.StartOptions{PageSize: 20, AllowOverlap: true}).Pause(mapper.WithCaller(t.Context(),
		"ben@example.com")); err != nil {
		t.Fatal(err)
	}
	w.hot.Store(3100)
	job := w.start(t, "spring-credit", `{"Amount": 10}`, mapper.StartOptions{PageSize: 40, AllowOverlap: true})
	for {
		s, err := job.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Progress.Fraction > 0.5 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.slow.Store(int64(40 * time.Millisecond)) // so slow that the job still runs while the pictures are made
	save := func(name string, data []byte) {
		t.Helper()
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shoot := func(name, page string, width, height int64, dark bool) {
		b := newBrowser(t, width, height, dark)
		b.open(w.url + page)
		save(name, of(b, chromedp.CaptureScreenshot()))
	}
	shoot("job.png", "job?id=spring-credit", 1100, 860, false)
	shoot("jobs.png", "", 1100, 580, true)
	w.slow.Store(int64(time.Millisecond))
	if _, err := job.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // wait until the cache has dropped its data
	_, text := get(t, w.url+"replay.svg?id=spring-credit", "")
	save("replay.svg", []byte(text))
}
