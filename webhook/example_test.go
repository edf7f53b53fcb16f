package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/webhook"
)

// A receiver that verifies the signature of each request, and a sender that sends it a change.
func Example() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // from "openssl rand -base64 32" or a secret manager
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err == nil {
			err = webhook.Verify(secret, r.Header, body)
		}
		var m webhook.Message
		if err == nil {
			err = json.Unmarshal(body, &m)
		}
		if err != nil {
			http.Error(w, "not a signed message", http.StatusUnauthorized)
			return
		}
		fmt.Println(m.Text)
	}))
	defer receiver.Close()

	hook, err := webhook.New(receiver.URL, secret, &webhook.Options{Filter: webhook.Stopped})
	if err != nil {
		fmt.Println(err)
		return
	}
	options := mapper.EngineOptions{OnStateChange: hook.Send} // and the other options of the engine

	// The engine does this when a job has ended:
	options.OnStateChange(context.Background(), mapper.StateChange{ID: "spring", Mapper: "add-credit",
		From: mapper.StateRunning, To: mapper.StateSucceededWithFailures, Time: time.Now(),
		Processed: 1200, Failures: 3})
	if err := hook.Wait(context.Background()); err != nil { // at the end of the process
		fmt.Println(err)
	}
	// Output: job succeeded with failures: spring (add-credit). 1,200 entities processed, 3 failures
}
