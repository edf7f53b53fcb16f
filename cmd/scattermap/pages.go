package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

// A pagesServer serves the dashboard of an emulator. The dashboard shows the jobs of all queues of
// a project. It can start only jobs of the prebuilt mappers, in a queue of its own, because other
// mappers' functions exist only in the user's services.
type pagesServer struct {
	project, url string

	closers []func()
}

// Close stops the server.
func (p *pagesServer) Close() {
	for _, f := range p.closers {
		f()
	}
}

// openPages starts a server for the dashboard of an emulator at an address. The project is the one
// in the queue's name, or "local" without a queue.
func openPages(ctx context.Context, e *emulator.Emulator, queue, addr string) (_ *pagesServer, err error) {
	p := &pagesServer{project: "local"}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	parent, _, _ := strings.Cut(queue, "/queues/")
	if parts := strings.Split(parent, "/"); len(parts) == 4 {
		p.project = parts[1]
	} else {
		parent = "projects/local/locations/local"
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usageError(fmt.Errorf("--dashboard is %q, it has to be HOST:PORT", addr))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, usageError(fmt.Errorf("--dashboard is %q, it has to be an address of this machine: the dashboard "+
			"checks no tokens", addr))
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--dashboard: %w", err)
	}
	p.closers = append(p.closers, func() { listener.Close() })
	base := "http://" + listener.Addr().String()
	client, err := e.DatastoreClient(ctx, p.project, mapper.ClientOption())
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { client.Close() })
	taskClient, err := e.TasksClient(ctx)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { taskClient.Close() })
	own := parent + "/queues/dashboard"
	if err := createQueue(ctx, e, own); err != nil {
		return nil, err
	}
	on, err := tasks.NewQueue(taskClient, own, base+"/mapper/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	warnings := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	engine, err := mapper.NewEngine(client, on, &mapper.EngineOptions{Mappers: prebuilt.Mappers(), Logger: warnings})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/mapper/", engine.Handler())
	mux.Handle("/",
		dashboard.NewHandler(engine, &dashboard.Options{Allow: auth.Loopback, AllQueues: true, Logger: warnings}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			warnings.Error("dashboard", "error", err)
		}
	}()
	p.closers = append([]func(){func() { server.Close() }}, p.closers...)
	p.url = base + "/"
	return p, nil
}
