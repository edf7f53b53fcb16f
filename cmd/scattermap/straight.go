package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

// A straight runs the jobs API in this process, on a database and a queue that flags name. So
// operators can control jobs whose service they can't reach.
type straight struct {
	db             database
	queue          string
	target, sender string

	handler http.Handler // the jobs API; nil before the first call
}

// define defines the flags that name the database and the queue.
func (st *straight) define(flags *pflag.FlagSet) {
	flags.StringVar(&st.queue, "straight", "",
		"work without a service, on the database and on this `queue` (projects/P/locations/L/queues/Q)")
	flags.StringVar(&st.db.project, "project", "", "with --straight, the `project` of the database; by default "+
		"$DATASTORE_PROJECT_ID, $GOOGLE_CLOUD_PROJECT or the project of the queue")
	flags.StringVar(&st.db.id, "database", "",
		"with --straight, the `ID` of the database; by default the default database")
	flags.StringVar(&st.target, "target", "", "with --straight, the `URL` of the service's handler for tasks; "+
		"needed to create tasks")
	flags.StringVar(&st.sender, "task-account", "",
		"with --straight, the service `account` whose tokens the tasks carry; by default none")
}

// taskless lists the actions that create no task although they are POSTs. They do not need the URL
// of the service that runs the tasks.
var taskless = []string{"plan", "pause", "abort", "rate", "budget", "verify"}

// open connects to the database and the queue, and creates the handler of the jobs API. The
// parameters method and path are the first request's: they show whether it may create a task.
func (st *straight) open(ctx context.Context, method, path string) error {
	target := st.target
	if target == "" {
		if method != http.MethodGet && !slices.Contains(taskless, path[strings.LastIndex(path, "/")+1:]) {
			return usageError(errors.New("with --straight, this command creates tasks: set --target to the URL of " +
				"the service's handler, such as https://credit-123.europe-west1.run.app/mapper/"))
		}
		target = "http://nowhere.invalid/" // unused: the request creates no task
	}
	if st.handler != nil {
		return nil
	}
	if parts := strings.Split(st.queue, "/"); len(parts) > 1 {
		st.db.fallback = parts[1] // the name is projects/PROJECT/...: tasks.NewQueue refuses other names
	}
	client, err := st.db.open(ctx)
	if err != nil {
		return err
	}
	queues, err := tasks.NewClient(ctx)
	if err != nil {
		return err
	}
	queue, err := tasks.NewQueue(queues, st.queue, target,
		&tasks.Options{ServiceAccount: st.sender, InsecureSkipVerify: true})
	if err != nil {
		return usageError(fmt.Errorf("--straight, --target: %w", err))
	}
	log := slog.New(slog.DiscardHandler) // not needed: the answer shows the error
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: prebuilt.Mappers(), Logger: log})
	if err != nil {
		return err
	}
	failed := new(lastError)
	st.handler, err = jobsapi.NewHandler(engine, &jobsapi.Options{Allow: auth.Anybody, Logger: slog.New(failed)})
	st.handler = failed.shown(st.handler)
	return err
}

// A lastError is a slog.Handler that keeps only the last error: the cause of a failed request. The
// jobs API hides this cause from callers, but here the caller is the operator, who may see it.
type lastError struct {
	slog.Handler
	text string
}

func (*lastError) Enabled(context.Context, slog.Level) bool { return true }

func (l *lastError) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			l.text = a.Value.String()
		}
		return true
	})
	return nil
}

// shown returns a handler that calls next, and adds the last logged error to the answer of a failed
// request.
func (l *lastError) shown(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answered{header: make(http.Header), code: http.StatusOK}
		if next.ServeHTTP(a, r); a.code == http.StatusInternalServerError && l.text != "" {
			a.body.Reset()
			a.body.WriteString(l.text)
		}
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body.Bytes()) // the writer is in memory
	})
}

// An answered is an http.ResponseWriter that keeps the answer in memory.
type answered struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answered) Header() http.Header         { return a.header }
func (a *answered) WriteHeader(code int)        { a.code = code }
func (a *answered) Write(b []byte) (int, error) { return a.body.Write(b) }

// call passes a request to the handler of the jobs API, and returns the status code and the body of
// the answer.
func (st *straight) call(
	ctx context.Context, method, path string, parameters url.Values, body io.Reader,
) (code int, text []byte, err error) {
	if err := st.open(ctx, method, path); err != nil {
		return 0, nil, err
	}
	to := (&url.URL{Scheme: "http", Host: "straight"}).JoinPath("jobs", path)
	to.RawQuery = parameters.Encode()
	r, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return 0, nil, err
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	a := &answered{header: make(http.Header), code: http.StatusOK}
	st.handler.ServeHTTP(a, r)
	return a.code, a.body.Bytes(), nil
}
