package webhook

import (
	"encoding/base64"
	"net/http"
	"testing"
	"time"
)

// TestStandardSignature signs the example of the Standard Webhooks libraries. So receivers can use
// these libraries.
func TestStandardSignature(t *testing.T) {
	const secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	key, err := keyOf(secret)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1614265330, 0)
	h := make(http.Header)
	sign(h, key, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, []byte(body))
	if got := h.Get("Webhook-Signature"); got != want || h.Get("Webhook-Timestamp") != "1614265330" {
		t.Errorf("%v, want %s", h, want)
	}
	for after, ok := range map[time.Duration]bool{0: true, Tolerance: true, -Tolerance: true,
		Tolerance + time.Second: false, -Tolerance - time.Second: false} {
		if err := verify(secret, h, []byte(body), at.Add(after)); (err == nil) != ok {
			t.Errorf("after %v: %v", after, err)
		}
	}
	for _, at := range []string{"soon", "1614265330.0", "99999999999999999999", "9223372036854775807"} {
		h.Set(headerTime, at)
		h.Set(headerSignature, signatureOf(key, h.Get(headerID), at, []byte(body)))
		if err := verify(secret, h, []byte(body), time.Unix(1614265330, 0)); err == nil {
			t.Errorf("the timestamp %s is accepted", at)
		}
	}
}

// TestKeys checks which secrets are accepted.
func TestKeys(t *testing.T) {
	for n, ok := range map[int]bool{0: false, 23: false, 24: true, 64: true, 65: false} {
		secret := base64.StdEncoding.EncodeToString(make([]byte, n))
		if key, err := keyOf(secret); (err == nil) != ok || ok && len(key) != n {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// a secret that was lost on the way must not mean that messages are not signed
	for secret, ok := range map[string]bool{"": true, " ": false, "\n": false, "whsec_": false} {
		if _, err := New("https://hooks.example.com/x", secret, nil); (err == nil) != ok {
			t.Errorf("the secret %q: %v", secret, err)
		}
	}
}
