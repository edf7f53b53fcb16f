package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/webhook"
)

// TestLostMessages ends the service while its webhook's receiver does not answer. The log must have
// the line that docs/telemetry.md names, and not the URL.
func TestLostMessages(t *testing.T) {
	got := make(chan struct{}, 10)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then, the context does not end with the connection
		got <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(silent.CloseClientConnections)
	hook, err := webhook.New(silent.URL+"/T0KEN", "", &webhook.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	go hook.Send(context.WithoutCancel(t.Context()), mapper.StateChange{ID: "spring", To: mapper.StatePaused})
	<-got
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	waitFor(ended, hook, log)
	if said := text.String(); !strings.Contains(said, `"a webhook was not told of a change"`) ||
		!strings.Contains(said, "1 message not sent") || strings.Contains(said, "T0KEN") {
		t.Errorf("the log says %q", said)
	}
	text.Reset()
	waitFor(ended, nil, log) // no webhook
	if text.Len() > 0 {
		t.Errorf("without a webhook the log says %q", &text)
	}
}
