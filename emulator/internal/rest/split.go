package rest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// preface is the text that a gRPC client sends first. An HTTP/1.1 client never sends it.
const preface = "PRI * HTTP/2.0"

// prefaceTime is how long a connection may take to send its first bytes.
const prefaceTime = 10 * time.Second

// Split divides a listener's connections between two listeners. The first one accepts the gRPC
// connections, and the second one all others. The caller has to accept from both. Closing the first
// one closes l.
func Split(l net.Listener) (grpc, other net.Listener) {
	s := &split{Listener: l, ended: make(chan struct{})}
	a := &half{split: s, conns: make(chan net.Conn), closed: make(chan struct{}), owner: true}
	b := &half{split: s, conns: make(chan net.Conn), closed: make(chan struct{})}
	go s.run(a, b)
	return a, b
}

type split struct {
	net.Listener
	ended chan struct{}
	once  sync.Once
	err   error
}

// run passes each connection to one of the listeners, until l is closed.
func (s *split) run(grpc, other *half) {
	for {
		conn, err := s.Accept()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				continue
			}
			s.once.Do(func() { s.err = err; close(s.ended) })
			return
		}
		go func() {
			first := make([]byte, len(preface))
			_ = conn.SetReadDeadline(time.Now().Add(prefaceTime)) // if it fails, the read below fails
			n := 0
			var err error
			for err == nil && n < len(first) && bytes.HasPrefix([]byte(preface), first[:n]) {
				var more int
				more, err = conn.Read(first[n:])
				n += more
			}
			_ = conn.SetReadDeadline(time.Time{})
			if n == 0 {
				_ = conn.Close()
				return
			}
			to := other
			if string(first[:n]) == preface {
				to = grpc
			}
			c := &begun{Conn: conn, rest: io.MultiReader(bytes.NewReader(first[:n]), conn)}
			select {
			case to.conns <- c:
			case <-to.closed:
				_ = conn.Close()
			case <-s.ended:
				_ = conn.Close()
			}
		}()
	}
}

// A half is one of the two listeners that Split returns.
type half struct {
	*split
	conns chan net.Conn
	owner bool // whether closing this half closes the divided listener

	closed chan struct{}
	close  sync.Once
}

func (h *half) Close() error {
	h.close.Do(func() { close(h.closed) })
	if h.owner {
		return h.Listener.Close()
	}
	return nil
}

func (h *half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.ended:
		return nil, h.err
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// begun is a connection whose first bytes were already read. Its Read returns these bytes first.
type begun struct {
	net.Conn
	rest io.Reader
}

func (b *begun) Read(p []byte) (int, error) { return b.rest.Read(p) }
