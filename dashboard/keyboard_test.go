package dashboard_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/scattermap/scattermap/mapper"
)

// tree returns the roles and names in the page's accessibility tree, as a screen reader gets them.
func (b *browser) tree() (all []string) {
	b.Helper()
	found, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.Fatal(err)
	}
	text := func(v *accessibility.Value) (s string) {
		if v == nil || json.Unmarshal([]byte(v.Value), &s) != nil {
			return ""
		}
		return s
	}
	nodes := make(map[accessibility.NodeID]*accessibility.Node)
	for _, n := range found.Nodes {
		nodes[n.NodeID] = n
	}
	var walk func(n *accessibility.Node)
	walk = func(n *accessibility.Node) {
		if n == nil {
			return
		}
		if role, name := text(n.Role), text(n.Name); !n.Ignored && role != "InlineTextBox" && name != "" {
			all = append(all, role+" "+name)
		}
		for _, child := range n.ChildIDs {
			walk(nodes[child])
		}
	}
	walk(found.Nodes[0])
	return all
}

// TestScreenReader reads the list and a job's page as a screen reader does. The state, the reason
// and the progress must come before the numbers, and each control must have a unique name.
func TestScreenReader(t *testing.T) {
	chromium(t)
	t.Parallel()
	w := newWorld(t, nil)
	w.putAccounts(t, 3000)
	w.fails.Store(true)
	w.slow.Store(int64(50 * time.Millisecond))
	job := w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20})
	w.until(t, "runs", 0.2)
	ann := mapper.WithReason(mapper.WithCaller(t.Context(), "ann"), "a rest")
	if err := job.Pause(ann); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, 1280, 900, false)
	for page, want := range map[string][]string{
		"": {"navigation Pages", "heading Jobs", "navigation States", "link paused 1", "search Filter the jobs",
			"searchbox ID", "textbox Started from", "textbox Started before, in UTC", "button Pause", "button Abort …",
			"columnheader State", "checkbox Choose runs", "link runs", "StaticText paused*", "image *%*"},
		"job?id=runs": {"link Skip to the content", "heading runs", "StaticText paused*",
			"StaticText *aused by ann: a rest*", "image *%*", "form Actions", "button Resume", "textbox Reason",
			"heading Key space", "group The key space of the job*", "link *: * from the first key*", "term Processed",
			"heading Failures by cause", "button Retry these failures: account # is closed",
			"image Entities a second: at most*", "heading History"},
		"start?mapper=credit": {"heading Start credit", "group Which entities", "combobox Kind", "group How",
			"radio Rehearsal: run the function and write nothing", "textbox Amount (required)", "button Plan"},
	} {
		b.open(w.url + page)
		all := b.tree()
		for _, one := range want { // the page must have them in this order
			i := slices.IndexFunc(all, func(s string) bool { return matches(one, s) })
			if i < 0 {
				t.Errorf("%q: there is no %s, or not in its order, in:\n%s", page, one, strings.Join(all, "\n"))
				break
			}
			all = all[i+1:]
		}
		idle := func(s string) bool { return strings.Contains(s, "Enter does nothing") }
		if i := slices.IndexFunc(all, idle); i >= 0 {
			t.Errorf("%q: %s", page, all[i])
		}
	}
}

// matches reports whether a text contains the parts of a pattern between its stars, in order.
func matches(pattern, text string) bool {
	for i, part := range strings.Split(pattern, "*") {
		at := strings.Index(text, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// TestKeyboard controls a job by the keyboard alone. The page must show which element has the
// focus. The arrow keys must move from one range of the strip to the next.
func TestKeyboard(t *testing.T) {
	chromium(t)
	t.Parallel()
	w := newWorld(t, nil)
	w.putAccounts(t, 3000)
	w.slow.Store(int64(50 * time.Millisecond))
	job := w.start(t, "runs", `{"Amount": 1}`, mapper.StartOptions{PageSize: 20})
	w.until(t, "runs", 0.1)
	b := newBrowser(t, 1280, 900, false)
	b.open(w.url + "job?id=runs")
	const focused = `(() => { const e = document.activeElement, r = e.getBoundingClientRect(), s = getComputedStyle(e);
		return [e.tagName, (e.getAttribute("aria-label") || e.name || e.textContent).trim(),
			r.width > 0 && r.height > 0 && s.outlineStyle !== "none" ? "shown" : "hidden"].join("|"); })()`
	var stops []string
	to := func(key, want string) {
		t.Helper()
		for range 25 {
			b.do(chromedp.KeyEvent(key))
			at := of(b, chromedp.Evaluate[string](focused))
			if stops = append(stops, at); strings.HasSuffix(at, "|hidden") && !strings.HasPrefix(at, "BODY") {
				t.Errorf("%s: nobody sees where the focus is", at)
			}
			if strings.Contains(at, want) {
				return
			}
		}
		t.Fatalf("no stop is %q: %q", want, stops)
	}
	to("\t", "INPUT|reason")
	b.do(chromedp.KeyEvent("\r"), chromedp.Sleep(300*time.Millisecond))
	if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateRunning {
		t.Fatalf("Enter in the reason: %+v, %v", s, err)
	}
	to("\t", "SUMMARY|Rate limit")
	to("\t", "from the first key")
	to(kb.ArrowRight, "entities from /Account")
	b.open(w.url + "job?id=runs")
	to("\t", "BUTTON|do")
	b.do(chromedp.KeyEvent(" "))
	b.await("#head .state", "paused")
	if err := job.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}
