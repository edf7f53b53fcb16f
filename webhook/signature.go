package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a signed request. The package's documentation describes them.
const (
	headerID        = "Webhook-Id"
	headerTime      = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

// Tolerance is the largest difference between a request's timestamp and the receiver's clock with
// which [Verify] accepts the request.
const Tolerance = 5 * time.Minute

// Limits of a secret in bytes, which the Standard Webhooks specification sets.
const minSecret, maxSecret = 24, 64

// keyOf decodes a secret. No error contains it.
func keyOf(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(secret), "whsec_"))
	if err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("webhook: the secret has to be %d to %d bytes in base64, as \"openssl rand -base64 "+
			"32\" prints them", minSecret, maxSecret)
	}
	return key, nil
}

// version is the start of a signature. It names the algorithm.
const version = "v1,"

// signatureOf returns the signature of a request.
func signatureOf(key []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return version + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// sign adds the headers of a signed request.
func sign(h http.Header, key []byte, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	h.Set(headerID, id)
	h.Set(headerTime, at)
	h.Set(headerSignature, signatureOf(key, id, at, body))
}

// Verify returns nil if a request was signed with the secret, and its timestamp differs from the
// clock by at most [Tolerance]. The arguments are the request's header, and its whole body before
// it is decoded. Answer requests that Verify refuses with 401. To refuse repeated requests, remember
// their Webhook-Id for twice the tolerance.
func Verify(secret string, header http.Header, body []byte) error {
	return verify(secret, header, body, time.Now())
}

func verify(secret string, header http.Header, body []byte, now time.Time) error {
	key, err := keyOf(secret)
	if err != nil {
		return err
	}
	id, at, given := header.Get(headerID), header.Get(headerTime), header.Get(headerSignature)
	if id == "" || at == "" || given == "" {
		return fmt.Errorf("webhook: the request is not signed: it needs the headers %s, %s and %s", headerID,
			headerTime, headerSignature)
	}
	want, ok := []byte(signatureOf(key, id, at, body)), 0
	for one := range strings.FieldsSeq(given) { // a sender that changes its secret sends a signature for each
		ok |= equal([]byte(one), want)
	}
	if ok == 0 {
		return errors.New("webhook: the signature is wrong: sender and receiver need the same secret")
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return fmt.Errorf("webhook: %s is not a number", headerTime)
	}
	if d := now.Sub(time.Unix(seconds, 0)); d > Tolerance || d < -Tolerance {
		return fmt.Errorf("webhook: the request was signed at %d, and it is %d here: it is repeated, or a clock is "+
			"wrong", seconds, now.Unix())
	}
	return nil
}

// equal returns 1 if two signatures are equal. Its time does not depend on where they differ.
func equal(a, b []byte) int {
	if hmac.Equal(a, b) {
		return 1
	}
	return 0
}
