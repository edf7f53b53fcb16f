package observe

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of a logger from Limited: maxLines warnings or errors with the same message in each
// window.
const (
	maxLines = 10
	window   = time.Minute

	maxMessages = 1000 // how many messages are remembered
)

// Limited returns a logger that writes at most ten warnings or errors a minute with the same
// message. The next line with that message says how many were left out, or else [Observer.Flush]
// does. Lines of lower levels are not limited.
func Limited(log *slog.Logger) *slog.Logger {
	return slog.New(limiter{log.Handler(), new(lines)})
}

// A limiter is the slog.Handler of a logger from Limited. Handlers derived from it share the limit.
type limiter struct {
	slog.Handler
	lines *lines
}

// lines has the numbers of lines that a logger has written, by message.
type lines struct {
	mu  sync.Mutex
	all map[string]*line
}

// A line has the numbers of lines with one message.
type line struct {
	begun time.Time // when the present window started
	// lines written in this window, and lines left out since a line has last said how many
	written, leftOut int
}

// admit reports whether a line with the message may be written now. In each window, the first most
// lines may. It also returns how many lines were left out before this one.
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

// owed returns, by message, how many lines were left out in windows that are over, if no later line
// has said so.
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

// Handle writes a log record, or counts it as left out.
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

// WithAttrs returns a limiter that shares the limit.
func (h limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limiter{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup returns a limiter that shares the limit.
func (h limiter) WithGroup(name string) slog.Handler {
	return limiter{h.Handler.WithGroup(name), h.lines}
}
