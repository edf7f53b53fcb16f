// Command cloudrun is a service for Cloud Run: it runs the tasks of its jobs, and serves the jobs
// API (package jobsapi) and the dashboard to operators. config.go describes its environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/cloudlog"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
	"github.com/scattermap/scattermap/webhook"
)

// mappers are the mappers that the service runs. Add yours.
var mappers = []mapper.AnyMapper{bank.AddCredit}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := configFrom(os.Getenv)
	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: c.project}))
	if err == nil {
		err = run(ctx, c, log)
	}
	if err != nil {
		log.Error("the service has ended", "error", err)
		os.Exit(1)
	}
}

// Time limits at the end of the process. Cloud Run kills a process 10 s after SIGTERM. Running
// requests get the time grace to finish. After that, exporting the last telemetry may take
// flushTime.
const (
	grace     = 8500 * time.Millisecond
	flushTime = time.Second
)

// run runs the service until ctx ends, and then lets the running requests finish.
func run(ctx context.Context, c config, log *slog.Logger) (err error) {
	flush, err := startTelemetry(ctx, c)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
		if err := flush(ctx); err != nil { // an error, such as a missing collector, does not stop the service
			log.Warn("the last telemetry was not exported", "error", err)
		}
	}()
	var hook *webhook.Sender
	if c.newHook != nil {
		if hook, err = c.newHook(log); err != nil {
			return err
		}
	}
	engine, handler, closers, err := newService(ctx, c, hook, log)
	defer closers.close()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	// Requests continue after ctx has ended, for as long as the shutdown allows.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:           withinTime(handler),
		ReadHeaderTimeout: readTime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Info("serving", "addr", listener.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// If an entity takes longer than the shutdown, its page is interrupted, and commits nothing.
	// The queue delivers its task again.
	log.Info("shutting down")
	limited, end := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer end()
	err = errors.Join(engine.Drain(limited), server.Shutdown(limited))
	waitFor(limited, hook, log)
	if err != nil {
		cancel()
		return fmt.Errorf("shutdown: %w", errors.Join(err, server.Close()))
	}
	log.Info("shut down")
	return nil
}

// waitFor waits until the hook, which may be nil, has sent all messages. A lost message does not make
// the shutdown fail.
func waitFor(ctx context.Context, hook *webhook.Sender, log *slog.Logger) {
	if hook == nil {
		return
	}
	if err := hook.Wait(ctx); err != nil {
		log.Warn("a webhook was not told of a change", "error", err)
	}
}

// readTime limits how long the header of a request may take to arrive, and also its body.
const readTime = 10 * time.Second

// withinTime returns a handler that limits how long the body of a request may take to arrive. A
// handler that works longer after it has read the body removes the limit.
func withinTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// can't fail: every connection of a server has a deadline
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
		}
		next.ServeHTTP(w, r)
	})
}

type closers []func() error

func (c closers) close() {
	for _, f := range c {
		_ = f() // an error does not matter at the end of the process
	}
}

// newService connects to Datastore and Cloud Tasks, and returns the service's engine and handler. The
// hook learns when jobs end or pause; nil: nobody does.
func newService(
	ctx context.Context, c config, hook *webhook.Sender, log *slog.Logger,
) (*mapper.Engine, http.Handler, closers, error) {
	client, err := mapper.NewClientWithDatabase(ctx, c.databaseProject, c.database)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("datastore: %w", err)
	}
	open := closers{client.Close}
	taskClient, err := tasks.NewClient(ctx)
	if err != nil {
		return nil, nil, open, fmt.Errorf("cloud tasks: %w", err)
	}
	open = append(open, taskClient.Close)
	queues, err := newQueues(ctx, taskClient, c, log)
	if err != nil {
		return nil, nil, open, err
	}
	options := mapper.EngineOptions{Mappers: mappers, Logger: log, OtherQueues: queues[1:]}
	if hook != nil {
		options.OnStateChange = hook.Send
	}
	engine, err := mapper.NewEngine(client, queues[0], &options)
	if err != nil {
		return nil, nil, open, err
	}
	go checkQueues(ctx, queues, c.service, log) // does not stop the service: it only logs
	allow, err := operators(c, log)
	if err != nil {
		return nil, nil, open, err
	}
	jobs, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: allow, Logger: log})
	if err != nil {
		return nil, nil, open, err
	}
	pages := dashboard.NewHandler(engine, &dashboard.Options{Allow: allow, Logger: log,
		LogURL: dashboard.CloudLoggingURL(c.project)})
	mux := http.NewServeMux()
	mux.Handle("/mapper/", engine.Handler())                                   // Cloud Tasks calls these
	mux.Handle("/jobs", jobs)                                                  // for operators
	mux.Handle("/jobs/", jobs)                                                 // for operators
	mux.Handle("/dashboard/", pages)                                           // for operators, in a browser
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {}) // answers as long as the process runs
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if err := engine.CheckReady(r.Context()); err != nil {
			log.Warn("not ready", "error", err)
			http.Error(w, "not ready: the service's log says why", http.StatusServiceUnavailable)
		}
	})
	return engine, mux, open, nil
}

// operators returns the function that decides who may start, see and control jobs.
func operators(c config, log *slog.Logger) (func(*http.Request) (string, error), error) {
	switch {
	case c.iapAudience != "":
		v, err := auth.NewIAP(c.iapAudience, c.operators, c.iapKeysURL)
		if err != nil {
			return nil, err
		}
		return v.Authenticate, nil
	case c.verified:
		v, err := auth.NewOIDC(c.url, c.operators, c.keysURL)
		if err != nil {
			return nil, err
		}
		return v.Authenticate, nil
	case c.serviceAccount != "": // Cloud Run has verified the tokens
		return auth.Claimed, nil
	}
	log.Warn("AUTH=off: everybody who reaches this service can start jobs and run tasks. It is for emulators only")
	return auth.Anybody, nil
}
