package forge

import (
	"crypto/x509"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A Proof is an HTTP header with which a request proves its sender, and the status code that the
// receiver must answer.
type Proof struct {
	Name   string
	Header http.Header
	Token  string // the token in Header, or "" if there is none
	Code   int    // the expected status code: 401, 403, or 200 for a valid proof

	OtherAccount bool // whether the token is valid, but for another account
}

// Proofs returns valid and false proofs for a test of a receiver, which accepts tokens of this
// forger for one account and one audience. The first proof is valid. The other forger makes tokens
// of the other kind, [OIDC] or [IAP]. The caller must serve both forgers' keys with [Forger.Keys].
//
// Each proof also has the headers that Cloud Tasks and Identity-Aware Proxy add. These headers
// prove nothing, because any sender can add them.
func (f *Forger) Proofs(other *Forger, account, audience string) []Proof {
	f.t.Helper()
	stranger := OIDC(f.t)
	if f.algorithm == jose.ES256 {
		stranger = IAP(f.t)
	}
	public, err := x509.MarshalPKIXPublicKey(f.key.Public())
	if err != nil {
		f.t.Fatal(err)
	}
	var all []Proof
	add := func(name string, code int, token string, header http.Header) {
		header = maps.Clone(header)
		if header == nil {
			header = http.Header{}
		}
		header.Set("X-CloudTasks-TaskName", "forged")
		header.Set("X-CloudTasks-QueueName", "mapper")
		header.Set("X-Goog-Authenticated-User-Email", "accounts.google.com:"+account)
		header.Set("X-Goog-Authenticated-User-Id", "accounts.google.com:1")
		all = append(all, Proof{Name: name, Header: header, Token: token, Code: code})
	}
	with := func(name string, code int, token string) { add(name, code, token, f.Header(token)) }
	claims := func(name string, code int, changes Claims) { with(name, code, f.Token(account, audience, changes)) }
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }

	good := f.Token(account, audience, nil)
	parts := strings.Split(good, ".")
	signature := "." + parts[2]
	forOther := other.Token(account, audience, nil)
	with("good", 200, good)

	// No token, or a text that is no token.
	add("plain headers only", 401, "", nil)
	with("an empty token", 401, "")
	with("garbage", 401, "a.b.c")
	with("one segment", 401, "abc")
	with("two segments", 401, parts[0]+"."+parts[1])
	with("four segments", 401, good+".x")
	with("header not JSON", 401, Segment("alg")+"."+parts[1]+signature)
	with("header of another type", 401, Segment("null")+"."+parts[1]+signature)
	with("claims not JSON", 401, parts[0]+"."+Segment("claims")+signature)
	with("claims of another type", 401, parts[0]+"."+Segment("null")+signature)
	with("not base64", 401, parts[0]+".!"+signature)
	with("truncated", 401, good[:len(good)-5])
	with("truncated claims", 401, parts[0]+"."+parts[1][:len(parts[1])-4]+signature)
	with("oversized", 401, parts[0]+"."+Segment(strings.Repeat("a", 40<<10))+signature)
	with("oversized header", 401, Segment(`{"alg":"`+string(f.algorithm)+`","kid":"`+strings.Repeat("k", 40<<10)+`"}`)+
		"."+parts[1]+signature)

	// Not signed by Google.
	with("another key", 401, stranger.Token(account, audience, nil))
	with("unknown key id", 401, f.signed(f.algorithm, jose.JSONWebKey{Key: f.key, KeyID: "unknown"}, account, audience,
		nil))
	with("no key id", 401, f.signed(f.algorithm, f.key, account, audience, nil))
	with("signature removed", 401, parts[0]+"."+parts[1]+".")
	with("signature removed by Cloud Run", 401, parts[0]+"."+parts[1]+".SIGNATURE_REMOVED_BY_GOOGLE")
	with("short signature", 401, parts[0]+"."+parts[1]+".AA")
	with("signature of zeros", 401, parts[0]+"."+parts[1]+"."+Segment(strings.Repeat("\x00", 64)))
	with("claims changed", 401, parts[0]+"."+Segment(`{"aud":"`+audience+`","iss":"`+f.issuer+`","email":"`+account+
		`","email_verified":true,"exp":9999999999}`)+signature)
	with("alg none", 401, Segment(`{"alg":"none"}`)+"."+parts[1]+".")
	with("alg none, signed", 401, Segment(`{"alg":"none","kid":"`+f.id+`"}`)+"."+parts[1]+signature)
	with("no alg", 401, Segment(`{"kid":"`+f.id+`"}`)+"."+parts[1]+signature)
	with("HS256 by the public key", 401, f.signed(jose.HS256, jose.JSONWebKey{Key: public, KeyID: f.id}, account,
		audience, nil))

	// Tokens of the other kind.
	with("the other's algorithm", 401, Segment(`{"alg":"`+string(other.algorithm)+`","kid":"`+f.id+`"}`)+"."+
		parts[1]+signature)
	with("the other kind here", 401, forOther)
	with("the other kind by this issuer", 401,
		other.Token(account, audience, Claims{"iss": f.issuer, "email_verified": true}))
	add("the other kind where it belongs", 401, forOther, other.Header(forOther))
	add("this kind where the other belongs", 401, good, other.Header(good))
	add("a token without its scheme", 401, good, http.Header{authorization: {good}})
	add("another scheme", 401, good, http.Header{authorization: {"Basic " + good}})

	// Signed by the right key, but for another account or audience, or for another time.
	claims("expired", 401, Claims{"exp": in(-time.Minute)})
	claims("no expiry", 401, Claims{"exp": nil})
	claims("issued in the future", 401, Claims{"iat": in(time.Minute)})
	claims("not yet valid", 401, Claims{"nbf": in(time.Minute)})
	claims("valid from a text", 401, Claims{"nbf": "tomorrow"})
	claims("another audience", 401, Claims{"aud": audience + "2"})
	claims("the audience among others", 401, Claims{"aud": []string{audience, "x"}})
	claims("no audience", 401, Claims{"aud": nil})
	claims("another issuer", 401, Claims{"iss": "https://evil.example"})
	claims("the other's issuer", 401, Claims{"iss": other.issuer})
	claims("no issuer", 401, Claims{"iss": nil})
	for _, email := range []string{"evil@p.iam.gserviceaccount.com", "x" + account, account + ".evil.example"} {
		claims("the account "+email, 403, Claims{"email": email})
		all[len(all)-1].OtherAccount = true
	}
	claims("no account", 403, Claims{"email": nil})
	claims("an account of another type", 403, Claims{"email": []string{account}})
	claims("account not verified", 403, Claims{"email_verified": false})
	claims("account verified by a text", 403, Claims{"email_verified": "true"})
	if f.algorithm == jose.RS256 {
		claims("account of unknown verification", 403, Claims{"email_verified": nil})
		claims("the issuer's old form", 200, Claims{"iss": "accounts.google.com"})
		add("the scheme in lower case", 200, good, http.Header{authorization: {"bearer " + good}})
	}
	claims("issued by a clock ahead", 200, Claims{"iat": in(20 * time.Second)})
	claims("valid by a clock ahead", 200, Claims{"nbf": in(20 * time.Second)})
	claims("valid for long", 200, Claims{"nbf": in(-time.Hour)})
	return all
}
