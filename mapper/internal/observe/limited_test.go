package observe

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestLimited writes many lines with two messages and several levels, through loggers that share
// their limits.
func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		jn := &Observer{Log: log, Flaws: Limited(log)}
		lines := func() []string {
			defer out.Reset()
			return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		}
		for i := range 25 {
			jn.Flaws.With("i", i).Warn("bad")
			jn.Flaws.WithGroup("g").Error("worse")
			jn.Flaws.Info("good")
		}
		got := strings.Join(lines(), "\n")
		if bad, worse, good := strings.Count(got, "msg=bad"), strings.Count(got, "msg=worse"), strings.Count(got,
			"msg=good"); bad != maxLines || worse != maxLines || good != 25 || strings.Contains(got, "left_out") {
			t.Errorf("%d, %d and %d lines:\n%s", bad, worse, good, got)
		}
		jn.Flush(t.Context()) // writes nothing: in this minute, another line may still report what was left out
		time.Sleep(window)
		jn.Flaws.Warn("bad")
		jn.Flaws.Warn("bad")
		if got := lines(); len(got) != 2 || !strings.HasSuffix(got[0], "msg=bad left_out=15") ||
			strings.Contains(got[1], "left_out") {
			t.Errorf("in the next minute: %q", got)
		}
		jn.Flush(t.Context())
		if got := lines(); len(got) != 1 ||
			!strings.HasSuffix(got[0], `msg="lines were left out" line=worse left_out=15`) {
			t.Errorf("of lines that nothing follows: %q", got)
		}
		jn.Flush(t.Context())
		if out.Len() > 0 {
			t.Errorf("once more: %s", out.String())
		}
		for range maxLines + 5 { // two lines were already written in this minute
			jn.Flaws.Warn("bad")
		}
		lines()
		jn.Changed(t.Context(), "", &record.Job{State: record.Running}, "started")
		if got := lines(); len(got) != 2 ||
			!strings.HasSuffix(got[0], `msg="lines were left out" line=bad left_out=7`) {
			t.Errorf("before a change of a job's state: %q", got)
		}
		for i := range 3 * maxMessages { // counts are kept for at most maxMessages messages
			jn.Flaws.Warn(fmt.Sprint(i))
		}
		if n := len(jn.Flaws.Handler().(limiter).lines.all); n > maxMessages {
			t.Errorf("%d messages are remembered", n)
		}
	})
}
