package tasks_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/forge"
	"github.com/scattermap/scattermap/tasks"
)

// A pipes is a net.Listener of connections in memory. Unlike with sockets, their deadlines follow
// the virtual time of testing/synctest.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return new(net.TCPAddr) }

// serve runs an HTTP server with the handler until the test ends, and returns a function that opens
// connections to it. It is for tests in virtual time.
func serve(t *testing.T, handler http.Handler) (open func() net.Conn) {
	listener := make(pipes)
	server := &http.Server{Handler: handler}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		close(listener)
		server.Close()
		served.Wait()
	})
	return func() net.Conn {
		here, there := net.Pipe()
		listener <- there
		return here
	}
}

// drip sends the header of a request, and then a byte of its body a second, until the connection is
// closed. It returns the code of the answer, and the time until the answer.
func drip(conn net.Conn, header string) (code int, took time.Duration) {
	begun := time.Now()
	_ = conn.SetDeadline(begun.Add(10 * time.Minute))
	var sender sync.WaitGroup
	defer sender.Wait()
	defer conn.Close()
	sender.Go(func() {
		_, err := io.WriteString(conn, header+"Host: x\r\nContent-Length: 300\r\n\r\n")
		for err == nil {
			time.Sleep(time.Second)
			_, err = conn.Write([]byte("x"))
		}
	})
	r := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(r, nil); err == nil {
		code = resp.StatusCode
	}
	_, _ = io.Copy(io.Discard, r)
	return code, time.Since(begun)
}

// TestDrippingBodies opens many connections that send a body slowly, byte by byte. Requests without
// a token must be refused at once. The handler may wait for the body of the others only for a
// limited time.
func TestDrippingBodies(t *testing.T) {
	run := func(context.Context, tasks.Delivery) error { return errors.New("it runs") }
	log := slog.New(slog.DiscardHandler)
	verified := newHandled(t, &tasks.Options{ServiceAccount: account, KeysURL: "http://127.0.0.1:1/"})
	verifier, err := auth.NewOIDC(audience, []string{account}, "http://127.0.0.1:1/")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		handler http.Handler
		request string
		want    int
		longest time.Duration
	}{
		"no token": {verified.Handler(log, run), "POST /run HTTP/1.1\r\n", 401, 2 * time.Second},
		"garbage": {verified.Handler(log, run), "POST /run HTTP/1.1\r\nAuthorization: Bearer x.y.z\r\n", 401,
			2 * time.Second},
		"another method": {verified.Handler(log, run), "PUT /run HTTP/1.1\r\n", 405, 2 * time.Second},
		"a handler apart": {verifier.Require(log, http.NotFoundHandler()), "POST /jobs HTTP/1.1\r\n", 401,
			2 * time.Second},
		"no tokens": {newHandled(t, &tasks.Options{InsecureSkipVerify: true}).Handler(log, run),
			"POST /run HTTP/1.1\r\n",
			408, 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				open := serve(t, c.handler)
				var strangers sync.WaitGroup
				for range 300 {
					strangers.Go(func() {
						if code, took := drip(open(), c.request); code != c.want || took > c.longest {
							t.Errorf("answer %d after %v, want %d", code, took, c.want)
						}
					})
				}
				strangers.Wait()
			})
		})
	}
}

// TestLongDelivery checks that the time limit of a body does not limit the delivery itself.
func TestLongDelivery(t *testing.T) {
	q := newHandled(t, &tasks.Options{InsecureSkipVerify: true})
	synctest.Test(t, func(t *testing.T) {
		open := serve(t, q.Handler(slog.New(slog.DiscardHandler), func(ctx context.Context, _ tasks.Delivery) error {
			select {
			case <-ctx.Done():
			case <-time.After(9 * time.Minute):
			}
			return ctx.Err()
		}))
		conn := open()
		defer conn.Close()
		go func() { _, _ = io.WriteString(conn, "POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}") }()
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%+v, %v", resp, err)
		}
	})
}

// TestLogOfStrangers sends headers and paths that are too long, and checks that the log shows only
// a part of them.
func TestLogOfStrangers(t *testing.T) {
	google := forge.OIDC(t)
	long := strings.Repeat("x", 900_000)
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	var got tasks.Delivery
	fails := func(_ context.Context, d tasks.Delivery) error { got = d; return errors.New(long) }
	verified := newHandled(t, &tasks.Options{ServiceAccount: account, KeysURL: google.Keys()})
	verifier, err := auth.NewOIDC(audience, []string{account}, google.Keys())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		handler http.Handler
		path    string
		header  map[string]string
	}{
		"names": {verified.Handler(logger, fails), "", map[string]string{"X-CloudTasks-TaskName": long,
			"X-CloudTasks-TaskRetryCount": long}},
		"algorithm": {verified.Handler(logger, fails), "",
			map[string]string{"Authorization": "Bearer " + forge.Segment(`{"alg":"`+long+`"}`) + ".e30.AA"}},
		"issuer": {verified.Handler(logger, fails), "",
			map[string]string{"Authorization": "Bearer " + google.Token(account, audience, forge.Claims{"iss": long})}},
		"path": {verifier.Require(logger, http.NotFoundHandler()), long, nil},
		"error": {newHandled(t, &tasks.Options{InsecureSkipVerify: true}).Handler(logger, fails), "",
			map[string]string{"X-CloudTasks-TaskName": long}},
		"broken text": {verifier.Require(logger, http.NotFoundHandler()), "%ff" + long, nil},
	} {
		r := httptest.NewRequest(http.MethodPost, audience+c.path, strings.NewReader("{}"))
		for key, value := range c.header {
			r.Header.Set(key, value)
		}
		log.Reset()
		c.handler.ServeHTTP(httptest.NewRecorder(), r)
		if log.Len() == 0 || log.Len() > 4000 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: the log has %d bytes", name, log.Len())
		}
	}
	if len(got.TaskID) != 500 {
		t.Errorf("a task's ID has %d bytes", len(got.TaskID))
	}
}
