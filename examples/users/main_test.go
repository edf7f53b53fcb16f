package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/mapper/picture"
)

// users runs the command, and returns its result.
func users(t *testing.T, args ...string) (r result, err error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		return r, err
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// agree checks that all forms in the same order have checked the same users.
func agree(t *testing.T, r result) {
	t.Helper()
	if len(r.Outcomes) != len(forms) {
		t.Fatalf("%+v", r)
	}
	first := make(map[string]outcome)
	for i, o := range r.Outcomes {
		f := forms[i]
		if _, there := first[o.Over]; !there {
			first[o.Over] = o
		}
		if o.Form != f.name || o.Over != f.over.name || o.Checked != o.Active || o.Active != first[o.Over].Active ||
			o.Invalid != first[o.Over].Invalid {
			t.Errorf("%+v, want what %+v has", o, first[o.Over])
		}
		if o.Seconds <= 0 || o.Ratio <= 0 || f.name == adaptiveName && o.Ratio != 1 {
			t.Errorf("%s over %s: %.2f s, ratio %.2f", o.Form, o.Over, o.Seconds, o.Ratio)
		}
	}
}

// TestWhichForms checks which forms run, depending on the flags and the Datastore.
func TestWhichForms(t *testing.T) {
	want := []form{
		{byUserID, "adaptive", mapper.Splitting{}},
		{byUserID, "chain", mapper.Splitting{First: 1, FanOut: 1}},
		{byUserID, "ten shards", mapper.Splitting{First: 10, FanOut: 1}},
		{byUserID, "page, then ten", mapper.Splitting{First: 1, FanOut: 10, Bisect: true}},
		{byJoined, "adaptive", mapper.Splitting{}},
		{byJoined, "ten shards", mapper.Splitting{First: 10, FanOut: 1}},
		{byJoined, "page, then ten", mapper.Splitting{First: 1, FanOut: 10, Bisect: true}},
		{byKey, "adaptive", mapper.Splitting{}},
		{byKey, "ten shards", mapper.Splitting{First: 10, FanOut: 1}},
		{byKey, "page, then ten", mapper.Splitting{First: 1, FanOut: 10, Bisect: true}},
	}
	same := func(a, b form) bool {
		return a.over.name == b.over.name && a.name == b.name && a.splitting == b.splitting
	}
	if !slices.EqualFunc(forms, want, same) {
		t.Errorf("the forms are %+v, want %+v", forms, want)
	}
	if byUserID.query.ShardBy != "userid" || byJoined.query.ShardBy != "joined" || byKey.query.ShardBy != "" {
		t.Errorf("users are cut by %+v, %+v, %+v", byUserID.query, byJoined.query, byKey.query)
	}
}

func TestForms(t *testing.T) {
	for _, n := range []int{0, 1, 2000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r, err := users(t, "-users", fmt.Sprint(n), "-latency", "0")
			if err != nil {
				t.Fatal(err)
			}
			agree(t, r)
			if n == 2000 {
				wantShapes(t, r)
			}
		})
	}
}

// wantShapes checks the trees of tasks for 2,000 users in pages of 100. Some 1,330 of the users are
// active.
func wantShapes(t *testing.T, r result) {
	t.Helper()
	for _, o := range r.Outcomes {
		depth, tasks := -1, int64(-1)
		switch {
		case o.Form == "chain":
			depth, tasks = 0, 1
		case o.Form == "ten shards":
			depth, tasks = 1, 10
		case o.Form == inTenName && o.Over != byJoined.name:
			depth = 2 // a page of 100, ten shards of some 123, and ten shards in each of these
		}
		if depth >= 0 && o.Depth != depth || tasks >= 0 && o.Tasks != tasks || o.Without > 0 != (o.Over != byKey.name) {
			t.Errorf("%s over %s: depth %d, %d tasks, %d without the property; want %d, %d", o.Form, o.Over, o.Depth,
				o.Tasks, o.Without, depth, tasks)
		}
	}
	wantTree(t, r)
}

// wantTree checks the depths of a tree in which each task has ten children. Each depth must start
// after the depth above it.
func wantTree(t *testing.T, r result) {
	t.Helper()
	if len(r.Tree) != 3 || r.Tree[0].Ranges != 1 || r.Tree[0].Users != 100 ||
		r.Tree[1].Ranges != 10 || r.Tree[1].Users < 900 || r.Tree[2].Ranges < 50 {
		t.Fatalf("the tree is %+v", r.Tree)
	}
	for i, l := range r.Tree {
		if l.Until <= l.From || i == 0 && l.From > r.Tree[1].From || i > 0 && l.From < r.Tree[i-1].From {
			t.Errorf("depth %d goes from %f to %f s", i, l.From, l.Until)
		}
	}
}

// TestTimes compares how long the job takes in each form, in virtual time, with 20 workers and 1 ms
// for each user.
func TestTimes(t *testing.T) {
	took := make(map[string]time.Duration)
	for _, f := range forms {
		_, took[f.name+" over "+f.over.name] = inVirtualTime(t, f, 1000, 20)
	}
	for name, d := range took {
		over := name[strings.Index(name, " over "):]
		if best := took[adaptiveName+over]; d < best {
			t.Errorf("%s takes %v, and adaptive %v", name, d, best)
		}
	}
	if chain, ten := took["chain over random ids"], took["ten shards over random ids"]; chain < 8*ten {
		t.Errorf("the chain takes %v, and ten shards of about as many users %v", chain, ten)
	}
	if even, not := took["ten shards over random ids"], took["ten shards over joined"]; not < 2*even {
		t.Errorf("ten shards of as many users take %v, and ten in which they are uneven %v", even, not)
	}
}

// TestLogarithm runs forms over n and 10n users, with a worker for each task. The chain must take
// ten times as long for 10n users. "page, then ten" must take only one page's time longer.
func TestLogarithm(t *testing.T) {
	page := 20 * time.Millisecond
	for n, levels := range map[int]int{300: 3, 3000: 4} {
		s, took := inVirtualTime(t, form{byUserID, inTenName, inTen}, n, 2000)
		if pages := int(took / page); pages >= levels+1 {
			t.Errorf("%d active users in %d tasks take as long as %d pages one after the other, want %d levels at most",
				s.Processed, s.Tasks, pages, levels)
		}
		s, took = inVirtualTime(t, form{byUserID, "chain", chain}, n, 2000)
		if pages, want := int(took/page), int(s.Processed)/20; pages < want {
			t.Errorf("the chain takes %d pages, want %d", pages, want)
		}
	}
}

// inVirtualTime runs the job in one form over n users in pages of 20. A user takes 1 ms, and calls
// take no time.
func inVirtualTime(t *testing.T, f form, n, workers int) (s *mapper.Status, took time.Duration) {
	t.Helper()
	slow := mapper.Update("check-user-slowly",
		func(_ context.Context, u *mapper.Entity[User], _ mapper.NoParams) error {
			time.Sleep(time.Millisecond)
			u.Value.Active = false
			u.Value.Checked++
			return nil
		})
	mappertest.Run(t, []mapper.AnyMapper{slow}, &mappertest.Options{Workers: workers},
		func(t *testing.T, w *mappertest.Env) {
			want, err := writeUsers(t.Context(), w.Client, n, f.over)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			job, err := slow.Start(t.Context(), w.Engine, f.over.query, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 20, ExpectedWorkers: workers, Splitting: f.splitting})
			if err != nil {
				t.Fatal(err)
			}
			if s, err = job.Wait(t.Context()); err != nil || s.Processed != want.active {
				t.Fatalf("%+v, %v, want %d", s, err, want.active)
			}
			took = s.Ended.Sub(begun)
		})
	return s, took
}

// TestOffsets checks that reading by offsets also reads the skipped entities. So twice as many
// users must cost four times as much.
func TestOffsets(t *testing.T) {
	for _, n := range []int{0, 1, 100, 101, 1000, 2000} {
		c, err := parse([]string{"-users", fmt.Sprint(n), "-latency", "0"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		o, err := readByOffsets(t.Context(), c)
		if want := offsetReads(n, 100); err != nil || o.Reads != want || o.CursorReads != int64(n) {
			t.Errorf("%d users: %d reads by offsets, %d by cursors, %v; want %d and %d", n, o.Reads, o.CursorReads, err,
				want, n)
		}
	}
	if one, two := offsetReads(1_000_000, 100), offsetReads(2_000_000, 100); one != 5_000_500_000 ||
		two < 4*one*99/100 {
		t.Errorf("%d reads of a million users, %d of two", one, two)
	}
}

// TestPrinted checks the output of the command.
func TestPrinted(t *testing.T) {
	c, err := parse([]string{"-users", "500", "-latency", "0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"500 users in the embedded Datastore, 0s a call; 20 workers, pages of 100.\n",
		"random ids  adaptive", "\n            page, then ten", "\nAll 500 users, read in 5 pages",
		"\noffsets, at once      1500  ",
		"\ndepth   tasks   users    from   until\n    0       1     100    0.00  ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	_, err = parse([]string{"-h"}, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "    \t", "        ")
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("wider than a terminal: %s", line)
		}
	}
}

// TestTree checks the drawing of a tree with two depths. The tasks of the second depth start after
// half of the time.
func TestTree(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }
	p := &picture.Picture{Begun: begun, Until: at(8), Ranges: []picture.Range{
		{Depth: 0, Created: at(0), Done: at(4), Entities: 100, Weight: 1},
		{Depth: 1, Created: at(6), Done: at(7), Entities: 10, Weight: 1},
		{Depth: 1, Created: at(4), Done: at(8), Entities: 20, Weight: 1},
		{Depth: 1, Created: at(4), Done: at(5), Entities: 1, Weight: 1},
		{Depth: 1, Created: at(1), Done: at(9), Entities: 1, Weight: 1, Alone: true},
	}}
	gap := &picture.Picture{Begun: begun, Ranges: []picture.Range{{Depth: 1, Created: at(2), Done: at(3), Weight: 1}}}
	if got := fmt.Sprint(levelsOf(gap)); got != "[{0 0 0 0 0} {1 1 0 2 3}]" {
		t.Errorf("a sample without a task of depth 0 has the levels %s", got)
	}
	r := result{Tree: levelsOf(p)}
	if fmt.Sprint(r.Tree) != "[{0 1 100 0 4} {1 3 31 4 8}]" {
		t.Errorf("the levels are %v", r.Tree)
	}
	half := strings.Repeat("█", barWide/2)
	want := "    0       1     100    0.00    4.00  " + half + "\n    1       3      31    4.00    8.00  " +
		strings.Repeat(" ", barWide/2) + half + "\n"
	if !strings.HasSuffix(r.tree(), want) {
		t.Errorf("%s\nwant at its end\n%s", r.tree(), want)
	}
	r.Sampled = true
	if !strings.Contains(r.tree(), "estimated") {
		t.Errorf("a sample is drawn as if it were all:\n%s", r.tree())
	}
	r = result{Tree: []level{{}}}
	if got := r.tree(); !strings.Contains(got, "0.00  █") {
		t.Errorf("a job of no time is drawn so:\n%s", got)
	}
}

// TestSays checks that the output describes the Datastore and the number of users correctly.
func TestSays(t *testing.T) {
	for args, want := range map[string]struct{ has, not string }{
		"-users 300":                     {"the embedded Datastore, 30ms a call", "emulator"},
		"-users 300 -datastore google":   {"Google's classic emulator", "30ms"},
		"-users 20000 -datastore google": {"Google's emulators bill\nnothing", "embedded"},
		"-users 300 -latency 1s":         {"the embedded Datastore, 1s a call", "emulator"},
		"-datastore firestore":           {"Google's Firestore emulator", "embedded"},
		"-users 20000":                   {"\nAll 20000 users", "not all"},
		"-users 20001":                   {"\n20000 users, not all 20001, read in 200 pages", "All 20000"},
	} {
		c, err := parse(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		o := offsets{Users: min(c.users, mostByOffset), Pages: min(c.users, mostByOffset) / c.Page}
		said := c.where() + o.report(c)
		if !strings.Contains(said, want.has) || strings.Contains(said, want.not) {
			t.Errorf("%s: %s\nwant %q, and not %q", args, said, want.has, want.not)
		}
	}
}

// TestGoogle runs forms on Google's emulators if they are installed. At night these are forms that
// cut by arithmetic, and the adaptive one, on both. Otherwise it is one on the classic emulator.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			if name == "firestore" {
				nightly.Leave(t)
			}
			t.Parallel()
			// Some 200 of 300 users are active: several pages for several workers.
			n, page := testflag.Size(t, 0, 300, 600), testflag.Size(t, 0, 25, 50)
			c, err := parse([]string{"-datastore", name, "-users", fmt.Sprint(n), "-page", fmt.Sprint(page)},
				io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			some := []form{{byUserID, inTenName, inTen}}
			if nightly.Is() {
				some = append(some, form{byKey, inTenName, inTen}, form{byJoined, adaptiveName, adaptive})
			}
			for _, f := range some {
				o, err := runForm(t.Context(), c, f)
				if errors.Is(err, google.ErrNotInstalled) {
					t.Skipf("left out: %v", err)
				}
				if err != nil {
					t.Fatal(err)
				}
				if o.Checked != o.Active || f.name == inTenName && o.Depth < 1 {
					t.Errorf("%+v", o)
				}
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-users -1":        "-users",
		"-page 0":          "-page",
		"-workers 5001":    "-workers",
		"-latency -1s":     "-latency",
		"-datastore cloud": `-datastore is "cloud"`,
		"-colour":          "-colour",

		"-latency 1s -datastore google": "-latency is of the embedded Datastore",
		"more":                          `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
