package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// newJobs returns the handler for operators:
//
//	POST /jobs                starts a job, or finds it: {"mapper", "id", "query": {"kind", "namespace", "filters"},
//	                          "params", "allow_empty"} (params are {} for a mapper that takes none; a filter is
//	                          {"property": "seen", "op": "<", "value": {"time": "2026-10-24T00:00:00Z"}}, see
//	                          mapper.Filter; allow_empty is mapper.StartOptions.AllowEmpty)
//	GET  /jobs                lists jobs, the one that was started last first: ?state=running&mapper=add-credit;
//	                          all=true lists those of other queues, too
//	GET  /jobs/{id}           tells how a job stands
//	POST /jobs/{id}/pause     has it begin no more pages
//	POST /jobs/{id}/resume    has it go on
//	POST /jobs/{id}/abort     ends it
//	POST /jobs/{id}/retry     has it process its failures again
//	POST /jobs/{id}/move      has it belong to this service's queue
//	POST /jobs/{id}/rate      sets how fast it goes: {"entities", "writes", "ramp"}
//	GET  /jobs/{id}/failures  lists its failures
//
// Lists have pages: "next", if there is one, is the cursor of the next: ?cursor=NEXT. Whatever is about
// one job answers with its status, or else with {"error"}: 400 for a request that is wrong, 404 for a job
// that there is not, and 409 for one that is in another state, belongs to another queue, or was started
// with other arguments.
//
// The log of the jobs says who has asked, if the service has verified that.
func newJobs(e *mapper.Engine, log *slog.Logger) http.Handler {
	s := service{e, log}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs", s.answer(s.start))
	mux.HandleFunc("GET /jobs", s.answer(s.list))
	mux.HandleFunc("GET /jobs/{id}", s.answer(func(r *http.Request) (any, error) { return s.job(r).Status(r.Context()) }))
	mux.HandleFunc("GET /jobs/{id}/failures", s.answer(s.failures))
	mux.HandleFunc("POST /jobs/{id}/rate", s.answer(s.rate))
	for name, do := range map[string]func(*mapper.Job, context.Context) error{
		"pause": (*mapper.Job).Pause, "resume": (*mapper.Job).Resume, "abort": (*mapper.Job).Abort,
		"retry": (*mapper.Job).Retry, "move": (*mapper.Job).Move,
	} {
		mux.HandleFunc("POST /jobs/{id}/"+name, s.answer(func(r *http.Request) (any, error) {
			if err := do(s.job(r), r.Context()); err != nil {
				return nil, err
			}
			return s.job(r).Status(r.Context())
		}))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(mapper.WithCaller(r.Context(), tasks.Account(r.Context()))))
	})
}

// A service answers the requests of operators.
type service struct {
	engine *mapper.Engine
	log    *slog.Logger
}

// job returns the job of a request's path.
func (s service) job(r *http.Request) *mapper.Job { return s.engine.Job(r.PathValue("id")) }

// start starts a job.
func (s service) start(r *http.Request) (any, error) {
	var start struct {
		Mapper string          `json:"mapper"`
		ID     string          `json:"id"`
		Query  mapper.Query    `json:"query"`
		Params json.RawMessage `json:"params"`
		Empty  bool            `json:"allow_empty"`
	}
	if err := decode(r, "a job", &start); err != nil {
		return nil, err
	}
	if start.ID == "" {
		return nil, badRequest(`"id" is empty: it makes repeated requests start one job`)
	}
	job, err := s.engine.StartNamed(r.Context(), start.Mapper, start.Query, start.Params, &mapper.StartOptions{ID: start.ID, AllowEmpty: start.Empty})
	if err != nil {
		return nil, err
	}
	return job.Status(r.Context())
}

// list lists jobs.
func (s service) list(r *http.Request) (any, error) {
	q, err := parameters(r, "state", "mapper", "all", "cursor")
	if err != nil {
		return nil, err
	}
	all := q.Get("all")
	if all != "" && all != "true" && all != "false" {
		return nil, badRequest(fmt.Sprintf("the parameter all is %q, it has to be true or false", all))
	}
	o := &mapper.JobsOptions{State: mapper.State(q.Get("state")), Mapper: q.Get("mapper"), AllQueues: all == "true"}
	jobs, next, err := s.engine.Jobs(r.Context(), o, q.Get("cursor"))
	return struct {
		Jobs []mapper.JobInfo `json:"jobs"`
		Next string           `json:"next,omitempty"`
	}{append([]mapper.JobInfo{}, jobs...), next}, err // an empty list is no null
}

// failures lists the failures of a job.
func (s service) failures(r *http.Request) (any, error) {
	q, err := parameters(r, "cursor")
	if err != nil {
		return nil, err
	}
	failures, next, err := s.job(r).Failures(r.Context(), q.Get("cursor"))
	return struct {
		Failures []mapper.Failure `json:"failures"`
		Next     string           `json:"next,omitempty"`
	}{append([]mapper.Failure{}, failures...), next}, err
}

// rate sets how fast a job goes.
func (s service) rate(r *http.Request) (any, error) {
	var rate mapper.Rate
	if err := decode(r, "a rate", &rate); err != nil {
		return nil, err
	}
	if err := s.job(r).SetRate(r.Context(), rate); err != nil {
		return nil, err
	}
	return s.job(r).Status(r.Context())
}

// badRequest is what is wrong with a request.
type badRequest string

func (e badRequest) Error() string { return string(e) }

// read reads the body of a request, which has its time for that, see withinTime. What the request is for may
// take longer.
func read(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return badRequest("the body can't be read: " + err.Error())
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return nil
}

// decode decodes a body that is one JSON value.
func decode(r *http.Request, what string, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest("the body is not " + what + ": " + err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRequest("the body has more than one JSON value")
	}
	return nil
}

// parameters returns the parameters of a request's URL, if it has no others than these.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the parameters are wrong: " + err.Error())
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, badRequest(fmt.Sprintf("there is no parameter %q: have %q", name, known))
		}
		if len(values) > 1 {
			return nil, badRequest(fmt.Sprintf("the parameter %s has several values", name))
		}
	}
	return q, nil
}

// answer returns a handler that answers with what a function returns: with an error in full if it is
// about the request.
func (s service) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := any(nil), read(w, r)
		if err == nil {
			body, err = do(r)
		}
		code := codeOf(err)
		if err != nil {
			body = failure{err.Error()}
		}
		if code == http.StatusInternalServerError {
			s.log.ErrorContext(r.Context(), "jobs", "path", tasks.Shown(r.URL.Path), "error", err)
			body = failure{"the request failed: see the log"}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // the client has gone
	}
}

type failure struct {
	Error string `json:"error"`
}

// codeOf is the table from errors to answers.
func codeOf(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, mapper.ErrNoSuchJob):
		return http.StatusNotFound
	case errors.Is(err, mapper.ErrOtherArguments), errors.Is(err, mapper.ErrState), errors.Is(err, mapper.ErrOtherQueue):
		return http.StatusConflict
	case errors.As(err, new(badRequest)), errors.Is(err, mapper.ErrUnknownMapper), errors.Is(err, mapper.ErrArguments):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}
