package observe

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The limit of warnings and errors that say the same: so many in a minute.
const (
	maxLines = 10
	window   = time.Minute

	maxMessages = 1000 // that are remembered
)

// Limited returns a logger that writes at most ten warnings or errors with one message in a minute.
// The next line with the message says how many were left out before it, and so does
// [Observer.Flush]. Lines of lower levels are not counted.
func Limited(log *slog.Logger) *slog.Logger {
	return slog.New(limiter{log.Handler(), new(lines)})
}

// A limiter is the handler of such a logger. Those that are made of it count together.
type limiter struct {
	slog.Handler
	lines *lines
}

// lines are the messages of a logger.
type lines struct {
	mu  sync.Mutex
	all map[string]*line
}

// A line is one message.
type line struct {
	begun            time.Time // the window
	written, leftOut int       // in that window, and since the last line that said so
}

// admit reports whether a line may be written now, of which there are at most so many in a window,
// and how many were left out before it.
func (ls *lines) admit(message string, now time.Time, most int) (leftOut int, ok bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.all[message]
	if ls.all == nil || l == nil && len(ls.all) >= maxMessages {
		ls.all = make(map[string]*line)
	}
	if l == nil {
		l = &line{begun: now}
		ls.all[message] = l
	}
	if now.Sub(l.begun) >= window {
		l.begun, l.written = now, 0
	}
	if l.written++; l.written > most {
		l.leftOut++
		return 0, false
	}
	leftOut, l.leftOut = l.leftOut, 0
	return leftOut, true
}

// owed returns how many lines were left out of which nothing says so yet, by their messages: in
// windows that are over.
func (ls *lines) owed(now time.Time) map[string]int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	owed := make(map[string]int)
	for message, l := range ls.all {
		if now.Sub(l.begun) < window {
			continue
		}
		if l.leftOut > 0 {
			owed[message] = l.leftOut
		}
		delete(ls.all, message)
	}
	return owed
}

// Handle writes a record, or counts it.
func (h limiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	leftOut, ok := h.lines.admit(r.Message, r.Time, maxLines)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs returns a limiter of the same lines.
func (h limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limiter{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup returns a limiter of the same lines.
func (h limiter) WithGroup(name string) slog.Handler {
	return limiter{h.Handler.WithGroup(name), h.lines}
}
