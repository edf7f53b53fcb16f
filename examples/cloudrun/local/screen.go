package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/scattermap/scattermap/mapper"
)

// A screen prints the program's output: lines with their time and, on a terminal, a bar below them.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	bar   *progressbar.ProgressBar
	total int64
	begun time.Time
}

// newScreen returns a screen that writes lines to out, and a bar to a terminal.
func newScreen(out, bar io.Writer, total int64) *screen {
	s := &screen{out: out, total: total, begun: time.Now()}
	if f, ok := bar.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(f),
			progressbar.OptionSetDescription("crediting"),
			progressbar.OptionSetItsString("accounts"), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish())
	}
	return s
}

// print prints a text without the time.
func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // errors of the bar are ignored
	}
	fmt.Fprintf(s.out, format+"\n", args...)
}

// say prints a line with the time since the start.
func (s *screen) say(format string, args ...any) {
	s.print("%6.2f s  %s", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}

// progress sets the bar to the progress in a status.
func (s *screen) progress(status *mapper.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		// the status of a running job is an estimate, and may exceed the total
		_ = s.bar.Set64(min(status.Processed, s.total))
	}
}
