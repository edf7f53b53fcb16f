package claims_test

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/claims"
)

// TestOf reads the claims of tokens, and of texts that are no tokens.
func TestOf(t *testing.T) {
	encode := base64.RawURLEncoding.EncodeToString
	payload := encode([]byte(`{"aud":"a","email":"ann@example.com","exp":1000}`))
	want := claims.Claims{Audience: "a", Email: "ann@example.com", Expires: 1000}
	for token, ok := range map[string]bool{
		"h." + payload + ".s":                           true,
		"h." + payload + ".SIGNATURE_REMOVED_BY_GOOGLE": true,
		"h." + payload + "==.":                          true,
		"":                                              false,
		"ya29.access":                                   false,
		"h." + payload:                                  false,
		"h.%%.s":                                        false,
		"h." + encode([]byte(`{"aud":["a"]}`)) + ".s": false,
	} {
		if got, is := claims.Of(token); is != ok || ok && got != want || !ok && got != (claims.Claims{}) {
			t.Errorf("%q has %+v, %v", token, got, is)
		}
	}
	if want.Expired(time.Unix(999, 0)) || !want.Expired(time.Unix(1001, 0)) ||
		(claims.Claims{}).Expired(time.Unix(1, 0)) {
		t.Error("a token expires at another time")
	}
}
