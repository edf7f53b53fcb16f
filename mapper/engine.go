package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/tasks"
)

// Options are the settings of an [Engine].
type Options struct {
	// Mappers are the mappers whose jobs the engine starts and runs, see [Set].
	// Required.
	Mappers []Definition

	// Logger receives what an operator should know. Entities, parameters and the
	// errors of functions are not logged: those are in the job's records.
	// Defaults to slog.Default().
	Logger *slog.Logger
}

// An Engine starts jobs, follows them, and runs their tasks. All engines with
// the same database, queue and mappers are equal: a job can be started in one
// process and run in many others.
type Engine struct {
	client  *datastore.Client
	queue   *tasks.Queue
	mappers map[string]*definition
	log     *slog.Logger
	paces   paces
}

// New returns an engine that keeps its records in the client's database and
// sends its tasks through the queue.
func New(client *datastore.Client, queue *tasks.Queue, o *Options) (*Engine, error) {
	if client == nil || queue == nil {
		return nil, errors.New("mapper: New needs a client and a queue")
	}
	if o == nil || len(o.Mappers) == 0 {
		return nil, errors.New("mapper: Options.Mappers is empty: list the mappers with mapper.Set")
	}
	e := &Engine{client: client, queue: queue, mappers: make(map[string]*definition), log: o.Logger}
	if e.log == nil {
		e.log = slog.Default()
	}
	for i, m := range o.Mappers {
		if m == nil {
			return nil, fmt.Errorf("mapper: Options.Mappers[%d] is nil", i)
		}
		def := m.definition()
		if def.err != nil {
			return nil, fmt.Errorf("mapper: Options.Mappers: mapper %q: %w", def.name, def.err)
		}
		if e.mappers[def.name] != nil {
			return nil, fmt.Errorf("mapper: Options.Mappers: two mappers have the name %q", def.name)
		}
		e.mappers[def.name] = def
	}
	return e, nil
}

// names lists the engine's mappers for an error.
func (e *Engine) names() string {
	return strings.Join(slices.Sorted(maps.Keys(e.mappers)), ", ")
}

// Handler returns what the queue's target has to serve: it runs the tasks of the
// engine's jobs. Mount it at the path of the queue's URL, with a slash at the
// end.
func (e *Engine) Handler() http.Handler {
	deliveries := e.queue.Handler(e.log, e.deliver)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/"+rangePath) {
			http.NotFound(w, r)
			return
		}
		deliveries.ServeHTTP(w, r)
	})
}

// deliver runs the task of one delivery.
func (e *Engine) deliver(ctx context.Context, d tasks.Delivery) error {
	var t rangeTask
	if err := json.Unmarshal(d.Body, &t); err != nil {
		return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
	}
	if !jobID.MatchString(t.Job) || !validRangeID.MatchString(t.Range) || t.Generation < 0 {
		return tasks.Drop(errors.New("the body is not a task of ours: it names no job and range"))
	}
	return e.run(ctx, t, d.Retries > 0)
}
