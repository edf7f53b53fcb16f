package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// termTime is the time between SIGTERM and SIGKILL, as on Cloud Run.
const termTime = 10 * time.Second

// probeTime is how long a process may take until its startup probe succeeds.
const probeTime = 30 * time.Second

// A process is an instance of the service that runs as an operating system's process.
type process struct {
	http.Handler
	cmd       *exec.Cmd
	url       *url.URL
	transport *http.Transport
	ended     chan struct{}

	mu  sync.Mutex
	err error
}

// launch starts a program as an instance. The function lost answers requests that the process does
// not answer.
func launch(
	program string, environment []string, log io.Writer, lost func(http.ResponseWriter, *http.Request),
) (*process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // to find a port that is free now
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	p := &process{
		cmd: exec.Command(program), url: &url.URL{Scheme: "http", Host: "127.0.0.1:" + port},
		transport: &http.Transport{MaxIdleConnsPerHost: 1000}, ended: make(chan struct{}),
	}
	p.Handler = &httputil.ReverseProxy{
		Transport:    p.transport,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(p.url) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) { lost(w, r) },
	}
	p.cmd.Env = append(environment[:len(environment):len(environment)], "HOST=127.0.0.1", "PORT="+port)
	p.cmd.Stderr = log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.fail(p.cmd.Wait())
		p.transport.CloseIdleConnections()
		close(p.ended)
	}()
	return p, nil
}

// fail records why the process has ended, unless an earlier error is known.
func (p *process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && err != nil {
		p.err = fmt.Errorf("%w (-log shows its log)", err)
	}
}

// Ready repeats the request GET /ready until the answer has the status 200.
func (p *process) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTime, fmt.Errorf("/ready was not answered 200 within %v",
		probeTime))
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url.JoinPath("ready").String(), nil)
		if err != nil {
			return err
		}
		if answer, err := p.transport.RoundTrip(r); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ended:
			return errors.Join(errors.New("the process ended before it was ready"), p.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *process) Pause() { pause(p.cmd.Process) }

func (p *process) Continue() { proceed(p.cmd.Process) }

func (p *process) Terminate() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that the process has ended
	time.AfterFunc(termTime, func() {
		select {
		case <-p.ended:
		default:
			p.fail(fmt.Errorf("it was still there %v after SIGTERM, and was killed", termTime))
			p.Kill()
		}
	})
}

func (p *process) Kill() { _ = p.cmd.Process.Kill() } // an error means that the process has ended

func (p *process) Ended() <-chan struct{} { return p.ended }

func (p *process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
