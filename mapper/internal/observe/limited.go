package observe

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of a logger from [Limited]: it writes at most maxLines warnings or errors with the same
// message in each window of time.
const (
	maxLines = 10
	window   = time.Minute

	maxMessages = 1000 // number of different messages that are counted at the same time
)

// Limited returns a logger that writes at most ten warnings or errors a minute with the same
// message, and leaves out the rest. The number of lines left out is in the next line with this
// message, or in a line of [Observer.Flush]. Lines of lower levels are not limited.
func Limited(log *slog.Logger) *slog.Logger {
	return slog.New(limiter{log.Handler(), new(lines)})
}

// A limiter is the slog.Handler of a logger from [Limited]. Handlers that WithAttrs and WithGroup
// make from it share its limits.
type limiter struct {
	slog.Handler
	lines *lines
}

// A lines counts the lines that a logger from [Limited] has written and left out, by message.
type lines struct {
	mu  sync.Mutex
	all map[string]*line
}

// A line counts the lines of a logger that have one message.
type line struct {
	begun time.Time // when the current window started
	// numbers of lines: written in this window, and left out without a report so far
	written, leftOut int
}

// admit reports whether a line with the message may be written now. In each window of time, the
// first most lines may. If so, leftOut is the number of lines that were left out since the last
// line, which the caller has to report.
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

// owed returns, for each message, how many lines were left out in past windows and not reported
// yet.
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

// Handle writes a log record, or only counts it if its message has reached the limit.
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

// WithAttrs returns a handler that shares the limits.
func (h limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limiter{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup returns a handler that shares the limits.
func (h limiter) WithGroup(name string) slog.Handler {
	return limiter{h.Handler.WithGroup(name), h.lines}
}
