package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A browser is a page of headless Chromium.
type browser struct {
	*testing.T
	ctx    context.Context
	noJS   bool
	width  int64
	screen string // a part of the names of the screenshots
}

// chromium returns the path of Chromium, or skips the test if it is not installed.
func chromium(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: -short leaves browsers out")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if at, err := exec.LookPath(name); err == nil {
			return at
		}
	}
	t.Skip("left out: Chromium is not installed (apt-get install chromium)")
	return ""
}

// axe returns the source of axe-core, which checks pages for accessibility.
func axe(t *testing.T) string {
	t.Helper()
	at := os.Getenv("AXE")
	if at == "" {
		at = "../.ci/node/node_modules/axe-core/axe.min.js"
	}
	source, err := os.ReadFile(at)
	if err != nil {
		t.Skip("left out: axe-core is not installed (npm install --prefix .ci/node axe-core@4.14.1)")
	}
	return string(source)
}

// newBrowser opens a page of the given size, in dark colours if dark is set.
func newBrowser(t *testing.T, width, height int64, dark bool) *browser {
	t.Helper()
	at := chromium(t)
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(at), chromedp.NoSandbox,
		chromedp.WindowSize(int(width), int(height)),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx, width: width}
	if err := chromedp.Do(ctx); err != nil { // opens the browser, which lives as long as this context
		t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, height,
		func(p1 *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p1.Mobile = width < 600
		}))
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		t.Fatal(err)
	}
	return b
}

// do carries out steps in the browser. The test fails if a step does.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	of(b, chromedp.Steps(steps...))
}

// of returns the result of a step in the browser.
func of[T any](b *browser, a chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testflag.Patience)
	defer cancel()
	v, err := steadily(ctx, func() (T, error) { return chromedp.Run(ctx, a) })
	if err != nil {
		ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
		defer cancel()
		text, _ := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("main")))
		b.Fatalf("%v; the page says:\n%.1500s", err, text)
	}
	return v
}

// steadily calls do until it succeeds, up to five times. A call may fail if the page refreshes
// itself, and replaces an element just after do has found it.
func steadily[T any](ctx context.Context, do func() (T, error)) (v T, err error) {
	for range 5 {
		if v, err = do(); err == nil || ctx.Err() != nil {
			return v, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return v, err
}

func (b *browser) open(url string) {
	b.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("main")))
}

// click clicks the element with a CSS selector, and waits for the next page.
func (b *browser) click(selector string) {
	b.Helper()
	b.turn("click "+selector, chromedp.ScrollIntoView(chromedp.CSS(selector)), chromedp.Click(chromedp.CSS(selector)))
}

// turn carries out steps that lead to another page, and waits until that page is loaded. Errors
// call the steps what.
func (b *browser) turn(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testflag.Patience)
	defer cancel()
	_, err := steadily(ctx, func() (any, error) { return chromedp.RunResponse(ctx, steps...) })
	if err != nil {
		b.Fatalf("%s: %v; the page says:\n%.1500s", what, err, b.text("main"))
	}
	b.do(chromedp.WaitReady(chromedp.CSS("main")))
}

func (b *browser) text(selector string) string {
	b.Helper()
	return of(b, chromedp.Text(chromedp.CSS(selector)))
}

// await waits until the text of the element with a CSS selector contains want. With JavaScript the
// page refreshes itself; otherwise await reloads it.
func (b *browser) await(selector, want string) {
	b.Helper()
	for begun := time.Now(); ; {
		text := b.text(selector)
		if strings.Contains(text, want) {
			return
		}
		if time.Since(begun) > testflag.Patience {
			b.Fatalf("%s says:\n%.1500s\nwant %q", selector, text, want)
		}
		time.Sleep(200 * time.Millisecond)
		if b.noJS {
			b.do(chromedp.Reload(), chromedp.WaitReady(chromedp.CSS("main")))
		}
	}
}

// attribute returns an attribute of the element with a CSS selector, or "" if there is no such
// element now.
func (b *browser) attribute(selector, name string) (value string) {
	b.Helper()
	all := of(b, chromedp.AttributesAll(chromedp.CSSAll(selector), chromedp.AtLeast(0)))
	if len(all) == 0 {
		return ""
	}
	return all[0][name]
}

// shoot writes a screenshot of the whole page to the folder $SCREENS, if that is set.
func (b *browser) shoot(name string) {
	b.Helper()
	if folder := os.Getenv("SCREENS"); folder != "" {
		b.save(folder, name, of(b, chromedp.FullScreenshot(100)))
	}
}

// save writes a screenshot to a folder.
func (b *browser) save(folder, name string, png []byte) {
	b.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, b.screen+"-"+name+".png"), png, 0o644); err != nil {
		b.Fatal(err)
	}
}

// TestBrowser controls jobs in a browser from the start to the end, on a large screen and on a
// phone's, with JavaScript and without.
func TestBrowser(t *testing.T) {
	for _, test := range []struct {
		name          string
		width, height int64
		noJS, dark    bool
	}{{"desk", 1280, 800, false, false}, {"phone", 390, 844, false, false}, {"dark", 1280, 800, false, true},
		{"plain", 1280, 800, true, false}} {
		t.Run(test.name, func(t *testing.T) {
			if test.name != "desk" {
				nightly.Leave(t)
			}
			t.Parallel()
			b := newBrowser(t, test.width, test.height, test.dark)
			b.noJS, b.screen = test.noJS, test.name
			if test.noJS {
				if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
					emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
					t.Fatal(err)
				}
			}
			b.live(newWorld(t, nil))
		})
	}
}

func (b *browser) live(w *world) {
	w.putAccounts(b, 6000)
	w.fails.Store(true)
	w.slow.Store(int64(20 * time.Millisecond))

	// Start a job from the form, with its plan.
	b.open(w.url)
	b.shoot("empty")
	b.click(`nav a[href="start"]`)
	b.shoot("mappers")
	b.click(`a[href="start?mapper=credit"]`)
	b.do(chromedp.SendKeys(chromedp.CSS(`input[name=kind]`), "Account"),
		chromedp.SendKeys(chromedp.CSS(`input[name="p.Amount"]`), "ten"),
		chromedp.SetValue(chromedp.CSS(`input[name=id]`), "spring"),
		chromedp.SendKeys(chromedp.CSS(`input[name=reason]`), "the spring campaign"))
	b.do(chromedp.Click(chromedp.CSS(`#more-settings summary`)),
		chromedp.SetValue(chromedp.CSS(`input[name=page_size]`), "50"))
	b.click(`.plan button[value=plan]`)
	b.await("main", `"ten" is no whole number`)
	b.shoot("start-wrong")
	b.do(chromedp.SetValue(chromedp.CSS(`input[name="p.Amount"]`), "10"))
	for range 2 { // pressing Enter plans the job, and does not start it
		b.turn("enter", chromedp.SendKeys(chromedp.CSS(`input[name=id]`), "\r"))
		b.await(".plan", "6,000")
	}
	b.shoot("start-planned")
	b.click(`button[value=start]`)

	// Wait until the job's progress bar grows.
	b.await("h1", "spring")
	b.grows()
	b.shoot("job-running")

	// Pause and resume the job. Enter in the field for the reason does nothing.
	b.do(chromedp.SendKeys(chromedp.CSS(`#acts input[name=reason]`), "lunch\r"), chromedp.Sleep(500*time.Millisecond))
	if s, err := w.engine.Job("spring").Status(b.Context()); err != nil || s.State != mapper.StateRunning {
		b.Errorf("Enter made the job %v, %v", s, err)
	}
	b.click(`#acts button[value=pause]`)
	b.await("#head .state", "paused")
	b.await("#head", "press Resume")
	b.shoot("job-paused")
	w.slow.Store(0)
	b.click(`#acts button[value=resume]`)
	b.await("#head .state", "succeeded with failures")
	b.shoot("job-failures")
	for _, colour := range []string{"pace", "attempts", "time"} {
		b.click(fmt.Sprintf(`.tabs a[href*="colour=%s"]`, colour))
		b.shoot("job-" + colour)
	}

	// Open a failure, and a range.
	b.click(`#facts a[href^="failures?"]`)
	b.await("main", "account 97 is closed")
	b.shoot("failures")
	b.open(w.url + "job?id=spring")
	b.click(`#ranges a[href^="range?"]`)
	b.await("main", "is closed")
	b.shoot("range")

	// Repair the cause of the failures, and retry them.
	w.fails.Store(false)
	b.open(w.url + "failures?id=spring")
	b.click(`form button[value=retry]`)
	b.await("#head .state", "succeeded")
	b.await("#facts", "Failures\n0")
	b.await("#acted", "its failures")
	b.await("#acted", "the spring campaign")

	// Verify the job, and play its replay.
	b.click(`#acts button[value=verify]`)
	b.shoot("verify")
	b.click(`button[value=verify]`)
	b.await("main", "It holds.")
	b.shoot("proof")
	b.open(w.url + "replay?id=spring&frame=1")
	first := b.attribute("[data-final]:nth-child(1)", "class")
	if b.noJS {
		b.do(chromedp.SetValue(chromedp.CSS("#frame"), "30"))
		b.click(`a[aria-label="The next frame"]`)
	} else {
		b.do(chromedp.Click(chromedp.CSS("#play")), chromedp.Sleep(1500*time.Millisecond),
			chromedp.Click(chromedp.CSS("#play")))
		b.shoot("replay")
		of(b, chromedp.Evaluate[any](`frame.value = 30; frame.oninput(); 1`))
		if last := b.attribute("[data-final]:nth-child(1)", "class"); last != "done" && last != "slow" ||
			first != "pending" && first != "uncut" {
			b.Errorf("the first range is %q in the first frame, and %q in the last", first, last)
		}
	}

	// Abort another job, after a confirmation.
	w.slow.Store(int64(20 * time.Millisecond))
	w.start(b, "autumn", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50, FailureShare: 0.5})
	b.open(w.url + "?state=running")
	b.await("#list", "autumn")
	b.do(chromedp.Click(chromedp.CSS(`input[name=id][value=autumn]`)))
	b.shoot("jobs-chosen")
	b.click(`.many button[value=abort]`)
	b.await("main", "can't be resumed")
	b.shoot("abort")
	b.click(`button.danger[value=abort]`)
	b.await("#head .state", "aborted")
	b.open(w.url)
	b.await("#list", "autumn")
	b.shoot("jobs")
	b.open(w.url + "job?id=nobody")
	b.shoot("error")

	// Start that job again under another ID.
	w.slow.Store(0)
	b.open(w.url + "job?id=autumn")
	b.click(`#acts a[href="start?clone=autumn"]`)
	b.await("main", "failure share: 0.5") // the form has no input for it
	b.shoot("clone")
	b.do(chromedp.SetValue(chromedp.CSS(`input[name=id]`), "winter"))
	b.click(`.plan button[value=plan]`)
	b.await(".plan", "6,000")
	b.click(`button[value=start]`)
	b.await("h1", "winter")
	b.await("#head .state", "succeeded")
}

// grows waits until a job's progress bar has grown twice.
func (b *browser) grows() {
	b.Helper()
	var widths []float64
	for begun := time.Now(); len(widths) < 3; time.Sleep(100 * time.Millisecond) {
		var width float64
		_, _ = fmt.Sscan(b.attribute("#head .about", "width"), &width)
		if len(widths) == 0 || width > widths[len(widths)-1] {
			widths = append(widths, width)
		}
		if time.Since(begun) > testflag.Patience {
			b.Fatalf("the bar grows no more: %v", widths)
		}
		if b.noJS {
			b.do(chromedp.Reload(), chromedp.WaitReady(chromedp.CSS("main")))
		}
	}
}

// runAxe is JavaScript that checks a page with axe-core. It returns the number of rules that
// passed, and the elements that violate a rule.
const runAxe = `axe.run(document, {
	resultTypes: ["violations"],
	runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}).then((r) => JSON.stringify({
	passes: r.passes.length,
	violations: r.violations.map((v) => ({
		id: v.id,
		help: v.help,
		nodes: v.nodes.slice(0, 3).map((n) => n.html + " " + n.failureSummary),
	})),
}))`

// TestAccessible checks each page with axe-core, in light and dark colours, and on a phone's
// screen.
func TestAccessible(t *testing.T) {
	chromium(t)
	source := axe(t)
	t.Parallel()
	w := newWorld(t, nil)
	w.putAccounts(t, 3000)
	w.fails.Store(true)
	w.run(t, "failed-some", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	w.slow.Store(int64(50 * time.Millisecond))
	w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 50})
	id := w.rangeOf(t, "failed-some")
	pages := []string{"", "job?id=failed-some", "job?id=failed-some&colour=pace", "job?id=runs",
		"failures?id=failed-some", "range?job=failed-some&range=" + id,
		"replay?id=failed-some&frame=7", "start", "start?mapper=credit", "start?clone=failed-some",
		"act?do=abort&id=runs", "act?do=clean-up&id=failed-some", "act?do=undo&id=failed-some", "act?do=rate&id=runs",
		"act?do=abort&id=runs&id=failed-some", "?sort=failures&state=running", "?name=nothing", "job?id=nobody",
		"nowhere"}
	for _, view := range []struct {
		width int64
		dark  bool
		often bool
	}{{1280, false, true}, {1280, true, false}, {390, false, false}, {390, true, true}} {
		if !view.often && !nightly.Is() {
			t.Logf("left out: .ci/nightly looks at pages %d wide, dark %v", view.width, view.dark)
			continue
		}
		b := newBrowser(t, view.width, 900, view.dark)
		for _, page := range pages {
			b.open(w.url + page)
			of(b, chromedp.Evaluate[any](source+"; 1"))
			said := of(b, chromedp.Evaluate[string](runAxe, chromedp.EvalAwaitPromise))
			var found struct {
				Passes     int
				Violations []struct {
					ID, Help string
					Nodes    []string
				}
			}
			if err := json.Unmarshal([]byte(said), &found); err != nil {
				t.Fatalf("%s: %v: %.200s", page, err, said)
			}
			if found.Passes < 5 {
				t.Errorf("%s: axe-core has looked at nothing: %.300s", page, said)
			}
			for _, v := range found.Violations {
				t.Errorf("%q, %d wide, dark %v: %s: %s\n%s", page, view.width, view.dark, v.ID, v.Help,
					strings.Join(v.Nodes, "\n"))
			}
			if of(b, chromedp.Evaluate[bool](
				`document.documentElement.scrollWidth > document.documentElement.clientWidth`)) {
				t.Errorf("%q, %d wide: the page has to be moved sideways to be read", page, view.width)
			}
		}
	}
}

// TestWidths opens the list and a job's page on screens of many widths. No page may need horizontal
// scrolling.
func TestWidths(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.putAccounts(t, 300)
	w.fails.Store(true)
	counter := strings.Repeat("counter", 14)
	w.run(t, "backfill-plans-of-2026", `{"Amount": 1, "note": "`+counter+`"}`, mapper.StartOptions{PageSize: 50})
	w.slow.Store(int64(100 * time.Millisecond))
	w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 5})
	b := newBrowser(t, 1280, 900, false)
	// wider lists the elements that reach beyond the window.
	const wider = `[...document.querySelectorAll("body *")]
		.filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
		.map(e => e.outerHTML.slice(0, 200)).join("\n")`
	for _, width := range []int64{360, 600, 740, 800, 1024, 1100, 1300} {
		b.do(chromedp.EmulateViewport(width, 900))
		for _, page := range []string{"", "job?id=runs", "job?id=backfill-plans-of-2026"} {
			b.open(w.url + page)
			if of(b, chromedp.Evaluate[bool](
				`document.documentElement.scrollWidth > document.documentElement.clientWidth`)) {
				t.Errorf("%q, %d wide: the page has to be moved sideways, because of %s", page, width,
					of(b, chromedp.Evaluate[string](wider)))
			}
			if page != "" || width < 1024 {
				continue
			}
			const wide = `(s => s.scrollWidth > s.clientWidth)(document.querySelector(".scroll"))`
			if of(b, chromedp.Evaluate[bool](wide)) {
				t.Errorf("%d wide: the list has to be moved sideways", width)
			}
		}
	}
}

// TestLivePage opens pages that refresh themselves. A refresh must not disturb what the viewer
// types; the page shows the changes afterwards. A list that was empty must be complete after a
// refresh that adds the first job.
func TestLivePage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b := newBrowser(t, 1280, 900, false)
	b.open(w.url)
	b.await("#list", "No jobs yet.")
	w.putAccounts(t, 600)
	w.slow.Store(int64(500 * time.Millisecond)) // so slow that the job does not end during the test
	w.start(t, "j", `{"Amount": 1}`, mapper.StartOptions{PageSize: 5})
	b.await("#list", "Chosen jobs")
	b.open(w.url + "job?id=j&did=start")
	b.await("main", "The job is started.")
	b.do(chromedp.SendKeys(chromedp.CSS(`#acts input[name=reason]`), "half a reas"))
	w.slow.Store(0)
	b.await("#head .state", "succeeded")
	if text := b.text("#acts"); !strings.Contains(text, "Pause") {
		t.Errorf("what somebody writes into was replaced: %s", text)
	}
	b.do(chromedp.SendKeys(chromedp.CSS(`#acts input[name=reason]`), "on"))
	b.do(chromedp.Blur(chromedp.CSS(`#acts input[name=reason]`)))
	b.await("#acts", "Verify")
	if text := b.text("main"); strings.Contains(text, "Pause") {
		t.Errorf("the page says what is over:\n%.600s", text)
	}
	for begun := time.Now(); strings.Contains(b.text("main"),
		"The job is started."); time.Sleep(200 * time.Millisecond) {
		if time.Since(begun) > testflag.Patience {
			t.Fatal("the page says still that the job is started")
		}
	}
	if reason := of(b, chromedp.Value(chromedp.CSS(`#acts input[name=reason]`))); reason != "half a reason" {
		t.Errorf("what was written is %q now", reason)
	}
}
