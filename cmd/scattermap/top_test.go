package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/creack/pty"

	"github.com/scattermap/scattermap/mapper"
)

// A screenOf is the user's side of a terminal in which a program runs. It keeps everything that the
// program writes.
type screenOf struct {
	*os.File
	mu    sync.Mutex
	shown bytes.Buffer
}

// read reads the output until the terminal closes.
func (s *screenOf) read() {
	b := make([]byte, 4096)
	for {
		n, err := s.Read(b)
		s.mu.Lock()
		s.shown.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits until the program has written the text what, since the last call of await.
func (s *screenOf) await(t *testing.T, what string) {
	t.Helper()
	for range 600 {
		s.mu.Lock()
		text := s.shown.String()
		if _, after, found := strings.Cut(text, what); found {
			s.shown.Reset()
			s.shown.WriteString(after)
		} else {
			text = ""
		}
		s.mu.Unlock()
		if text != "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the terminal does not show %q: %q", what, s.shown.String())
}

// TestTop runs the command top on a terminal, and controls a job by its keys.
func TestTop(t *testing.T) {
	newService(t, 4000)
	binary := program(t)
	start := "start add-credit --kind Account --params '{\"Amount\": 10}' --rate 100 --page-size 20 --id one"
	if out, errs, code := command(t, "", words(start)...); code != 0 {
		t.Fatal(out, errs)
	}
	cmd := exec.Command(binary, "top")
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 20, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	terminal := &screenOf{File: file}
	go terminal.read()
	press := func(keys string) {
		if _, err := file.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	job := func(what string, is func(*mapper.Status) bool) {
		t.Helper()
		var job mapper.Status
		for range 200 {
			out, errs, code := command(t, "", "describe", "one", "-o", "json")
			if code != 0 || json.Unmarshal([]byte(out), &job) != nil {
				t.Fatal(out, errs)
			}
			if is(&job) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatalf("the job is not %s: %+v", what, job)
	}
	state := func(want mapper.State) {
		t.Helper()
		job(string(want), func(s *mapper.Status) bool { return s.State == want })
	}
	terminal.await(t, "1 running, 0 paused")
	terminal.await(t, "█")
	press("p")
	state(mapper.StatePaused)
	terminal.await(t, "paused by")
	press("r")
	state(mapper.StateRunning)
	press("s50\r")
	job("slower", func(s *mapper.Status) bool { return s.Settings.Rate.EntitiesPerSecond == 50 })
	press("\r")
	terminal.await(t, "Parameters:")
	press("\ran") // the screen asks for a confirmation, and the test types n
	press("p")
	state(mapper.StatePaused)
	press("ay")
	state(mapper.StateAborted)
	press("q")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %q", err, terminal.shown.String())
	}

	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"top"}, exitUsage, "it needs a terminal"},
		{[]string{"top", "one"}, exitUsage, "it takes no argument"},
	} {
		out, errs, code := command(t, "", test.args...)
		if code != test.code || !strings.Contains(errs, test.says) {
			t.Errorf("%q: code %d: %s%s", test.args, code, errs, out)
		}
	}

	cmd = exec.Command(binary, "top", "--service", "http://127.0.0.1:1")
	if file, err = pty.Start(cmd); err != nil {
		t.Fatal(err)
	}
	shown, _ := io.ReadAll(file) // the error says that the terminal is closed
	failed := new(exec.ExitError)
	if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != exitError ||
		!strings.Contains(string(shown), "does not answer") || strings.Contains(string(shown), "\x1b[?1049h") {
		t.Errorf("a service that does not answer: %v: %q", err, shown)
	}
}

// TestScreen draws the screen on terminals of all sizes, with jobs whose names contain escape
// sequences.
func TestScreen(t *testing.T) {
	s := &screen{address: "http://localhost:1", at: time.Now()}
	var jobs []*topJob
	for i := range 60 {
		job := &topJob{JobInfo: mapper.JobInfo{ID: fmt.Sprintf("job-%d-\x1b[31m%s", i, strings.Repeat("x", i)),
			Mapper: "mapper", State: []mapper.State{mapper.StateRunning, mapper.StatePaused, mapper.StateSucceeded,
				mapper.StateFailed}[i%4], Error: "an\nerror"}}
		if i%4 < 2 {
			job.status = &mapper.Status{ID: job.ID, State: job.State, Processed: 1 << 40, Failures: 12,
				Bottleneck: "why\x1b[2J not", Progress: mapper.Progress{Fraction: float64(i) / 40,
					EntitiesPerSecond: 1e6, TimeLeft: time.Hour}}
		}
		jobs = append(jobs, job)
	}
	for _, size := range [][2]int{{1, 1}, {20, 5}, {40, 10}, {80, 24}, {120, 40}, {300, 100}} {
		s.width, s.height = size[0], size[1]
		s.take(loadedMsg{jobs: jobs, at: time.Now()})
		for _, key := range []string{"", "down", "end", "home", "pgdown", "enter", "esc", "e", "up", "s", "5", "x",
			"backspace", "enter", "a", "n", "u", "n", "e"} {
			s.press(key)
			drawn := s.draw()
			lines := strings.Split(drawn, "\n")
			if len(lines) > max(3, s.height) {
				t.Errorf("%v after %q: %d lines", size, key, len(lines))
			}
			for _, l := range lines {
				if lipgloss.Width(l) > s.width {
					t.Errorf("%v after %q: a line of %d columns: %q", size, key, lipgloss.Width(l), l)
				}
			}
			if strings.Contains(drawn, "\x1b[2J") || strings.Contains(drawn, "job-0-\x1b[31m") {
				t.Errorf("%v after %q: a name has its effect on the terminal: %q", size, key, drawn)
			}
		}
	}
	s.take(loadedMsg{err: errors.New("it is down")})
	if s.width = 120; !strings.Contains(s.draw(), "it is down") || !strings.Contains(s.draw(), "job-0") {
		t.Errorf("a service that is down: %s", s.draw())
	}
}

// TestScreenRate types a new rate for a job while the list of jobs changes. The command must set
// the rate of the right job, and keep the rate's other limits.
func TestScreenRate(t *testing.T) {
	job := func(id string, state mapper.State) *topJob {
		j := &topJob{JobInfo: mapper.JobInfo{ID: id, State: state}}
		if j.status = (&mapper.Status{ID: id, State: state}); id == "a" {
			j.status.Settings.Rate = mapper.Rate{EntitiesPerSecond: 9, WritesPerSecond: 7, Ramp: true}
		}
		return j
	}
	s := &screen{width: 80, height: 24}
	s.take(loadedMsg{jobs: []*topJob{job("a", mapper.StateRunning), job("b", mapper.StateRunning)}})
	s.press("e") // this key hides ended jobs
	s.press("s")
	s.press("5")
	s.take(loadedMsg{jobs: []*topJob{job("b", mapper.StateRunning), job("a", mapper.StateSucceeded)}})
	s.press("0")
	if does, _ := s.press("enter"); does.job != "a" || does.verb != "rate" ||
		does.rate != (mapper.Rate{EntitiesPerSecond: 50, WritesPerSecond: 7, Ramp: true}) || s.chosen != "b" {
		t.Errorf("%+v, chosen is %s", does, s.chosen)
	}
}
