package emulator_test

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"

	"github.com/scattermap/scattermap/emulator"
)

// serve runs an HTTP server on a free loopback port, and returns its URL.
func serve(t testing.TB, server *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return "http://" + l.Addr().String() + "/"
}

// redirect is a transport that sends every request to the same URL.
type redirect struct{ to string }

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	target, err := url.Parse(r.to)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.URL = target
	return http.DefaultTransport.RoundTrip(req)
}

// TestTokens checks that Google's own library accepts the token of a delivery.
func TestTokens(t *testing.T) {
	tokens := make(chan string, 1)
	worker := serve(t, &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		tokens <- token
	})})
	e := emulator.ForTest(t, &emulator.Options{KeysAddr: "127.0.0.1:0"})
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queueName}}); err != nil {
		t.Fatal(err)
	}
	validator, err := idtoken.NewValidator(context.Background(),
		option.WithHTTPClient(&http.Client{Transport: redirect{e.KeysURL()}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ audience, want string }{{"my-service", "my-service"}, {"", worker}} {
		signed := task("")
		signed.GetHttpRequest().Url = worker
		signed.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{
			OidcToken: &cloudtaskspb.OidcToken{
				ServiceAccountEmail: "tasks@p.iam.gserviceaccount.com", Audience: c.audience,
			}}
		mustCreate(t, client, signed)
		payload, err := validator.Validate(t.Context(), <-tokens, c.want)
		if err != nil {
			t.Fatal(err)
		}
		if payload.Issuer != "https://accounts.google.com" ||
			payload.Claims["email"] != "tasks@p.iam.gserviceaccount.com" ||
			payload.Claims["email_verified"] != true || time.Unix(payload.Expires, 0).Before(time.Now()) {
			t.Errorf("payload %+v", payload)
		}
	}
}
