package emulator

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
)

// HandlerTransport returns a transport that passes every request to a handler in this process,
// whatever the request's host. Set it as [Options].Transport. Deliveries of tasks then need no
// network, and stay inside a testing/synctest bubble.
//
// If a request's deadline passes, the sender stops waiting, but the handler continues, as over a
// network.
func HandlerTransport(h http.Handler) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		body, err := readAll(req.Body)
		if err != nil {
			return nil, err
		}
		in := req.Clone(req.Context())
		in.Body = io.NopCloser(bytes.NewReader(body))
		in.RequestURI = req.URL.RequestURI()
		in.Host = req.URL.Host
		in.RemoteAddr = "127.0.0.1:0"
		answer := make(chan *http.Response, 1)
		go func() {
			recorder := httptest.NewRecorder()
			h.ServeHTTP(recorder, in)
			answer <- recorder.Result()
		}()
		select {
		case resp := <-answer:
			resp.Request = req
			return resp, nil
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	})
}

func readAll(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer body.Close()
	return io.ReadAll(body)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
