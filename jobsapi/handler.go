package jobsapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/oldnames"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/stranger"
	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/mapper"
)

// Options are the settings of a handler. The zero value refuses every request.
type Options struct {
	// Allow returns who sent a request, or an error if it is not allowed: for example
	// [auth.Verifier.Authenticate]. Without Allow every request is refused.
	Allow auth.Func

	// Prefix is the path of the list of jobs, without a slash at its end. Defaults to "/jobs".
	Prefix string

	// Logger receives the errors of requests that were refused or failed. Defaults to
	// slog.Default().
	Logger *slog.Logger
}

// NewHandler returns a handler of the jobs of an engine. Mount it at [Options].Prefix and below it.
// It returns an error if the engine is nil or the prefix is not a path.
func NewHandler(e *mapper.Engine, o *Options) (http.Handler, error) {
	if e == nil {
		return nil, errors.New("jobsapi: the engine is nil")
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Prefix == "" {
		opts.Prefix = "/jobs"
	}
	if !strings.HasPrefix(opts.Prefix, "/") || strings.HasSuffix(opts.Prefix, "/") ||
		strings.ContainsAny(opts.Prefix, "{} ") {
		return nil, fmt.Errorf("jobsapi: Options.Prefix is %q, it has to be a path like /jobs", opts.Prefix)
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := service{e, opts.Logger}
	mux := http.NewServeMux()
	handle := func(pattern string, do func(*http.Request) (any, error)) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+opts.Prefix+path, s.answer(do))
	}
	handle("POST ", s.start)
	handle("POST /plan", s.plan)
	handle("GET ", s.list)
	handle("GET /mappers", s.mappers) // names.Word has this word, and plan
	handle("GET /{id}", s.status)
	handle("GET /{id}/failures", s.failures)
	handle("GET /{id}/causes", s.causes)
	handle("GET /{id}/history", s.history)
	handle("GET /{id}/left", s.left)
	handle("GET /{id}/examples", s.examples)
	handle("POST /{id}/retry", s.retry)
	handle("POST /{id}/undo", s.undo)
	handle("POST /{id}/rate", s.rate)
	handle("POST /{id}/budget", s.budget)
	handle("POST /{id}/clean-up", s.cleanUp)
	handle("POST /{id}/verify", s.verify)
	for name, do := range map[string]func(*mapper.Job, context.Context) error{
		"pause": (*mapper.Job).Pause, "resume": (*mapper.Job).Resume, "abort": (*mapper.Job).Abort,
		"move": (*mapper.Job).Move,
	} {
		handle("POST /{id}/"+name, func(r *http.Request) (any, error) {
			ctx, err := because(r)
			if err == nil {
				err = noBody(r)
			}
			if err != nil {
				return nil, err
			}
			return s.after(r, do(s.job(r), ctx))
		})
	}
	refuse := func(w http.ResponseWriter, code int, text string) { write(w, code, failure{Error: text}) }
	same := http.NewCrossOriginProtection()
	same.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "a browser sends this request from another site")
	}))
	return same.Handler(operator.Allowed(opts.Allow, opts.Logger, refuse, routes(mux))), nil
}

// routes returns a handler that passes requests to mux. If mux has no route for a request, the
// handler answers 404 or 405 in JSON; mux alone would answer in plain text.
func routes(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			w = &noRoute{ResponseWriter: w}
		}
		mux.ServeHTTP(w, r)
	})
}

// A noRoute is an http.ResponseWriter for a request without a route. It replaces the plain text
// with which http.ServeMux answers (404 or 405) by an error in JSON.
type noRoute struct {
	http.ResponseWriter

	refused bool
}

func (n *noRoute) WriteHeader(code int) {
	text := "there is no such path: docs/jobs-api.md lists them"
	switch code {
	case http.StatusNotFound:
	case http.StatusMethodNotAllowed:
		text = "this path has only the methods " + n.Header().Get("Allow")
	default:
		n.ResponseWriter.WriteHeader(code)
		return
	}
	n.refused = true
	write(n.ResponseWriter, code, failure{Error: text})
}

func (n *noRoute) Write(text []byte) (int, error) {
	if n.refused {
		return len(text), nil
	}
	return n.ResponseWriter.Write(text)
}

// A service answers the requests of operators.
type service struct {
	engine *mapper.Engine
	log    *slog.Logger
}

// because returns the context of a request that changes a job. The context has the request's
// parameter "reason", which the engine writes to the job's history.
func because(r *http.Request) (context.Context, error) {
	q, err := parameters(r, "reason")
	return mapper.WithReason(r.Context(), q.Get("reason")), err
}

// after returns the answer to a request that was to change a job. If err, the error of the change,
// is nil, the answer is the job's new status. Otherwise after returns err.
func (s service) after(r *http.Request, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return s.job(r).Status(r.Context())
}

// status returns the status of a job.
func (s service) status(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	return s.job(r).Status(r.Context())
}

// job returns the job whose ID is in a request's path.
func (s service) job(r *http.Request) *mapper.Job { return s.engine.Job(r.PathValue("id")) }

// settings are the fields of a request's body that set a job's options. Older clients send some of
// them under old names, which are in oldnames.Start.
type settings struct {
	mapper.StartOptions
	oldnames.Start
}

// current returns the options, including the values that were sent under old names.
func (s settings) current() *mapper.StartOptions {
	o := s.StartOptions
	o.DryRun, o.AllowOverlap = o.DryRun || s.Rehearse, o.AllowOverlap || s.Beside
	o.ExpectedWorkers = cmp.Or(o.ExpectedWorkers, s.Workers)
	o.EntityTimeout = cmp.Or(o.EntityTimeout, s.Timeout)
	return &o
}

// start starts a job.
func (s service) start(r *http.Request) (any, error) {
	var start struct {
		Mapper string          `json:"mapper"`
		Query  mapper.Query    `json:"query"`
		Params json.RawMessage `json:"params"`
		settings
	}
	ctx, err := because(r)
	if err != nil {
		return nil, err
	}
	if err := decode(r, "a job", &start); err != nil {
		return nil, err
	}
	if start.ID == "" {
		return nil, operator.BadRequest(`"id" is empty: choose one, so that a repeated request starts no second job`)
	}
	job, err := s.engine.StartByName(ctx, start.Mapper, start.Query, start.Params, start.current())
	if err != nil {
		return nil, err
	}
	return job.Status(r.Context())
}

// plan estimates the entities, time and cost of a job.
func (s service) plan(r *http.Request) (any, error) {
	var plan struct {
		Mapper    string          `json:"mapper"`
		Query     mapper.Query    `json:"query"`
		PerEntity time.Duration   `json:"per_entity_ns"`
		Before    time.Duration   `json:"per_entity" old:"per_entity_ns"` // older clients send it
		Writes    float64         `json:"writes"`
		Calls     float64         `json:"calls"`
		Params    json.RawMessage `json:"params"` // a plan validates them like a start
		settings
	}
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	if err := decode(r, "a plan", &plan); err != nil {
		return nil, err
	}
	return s.engine.PlanByName(r.Context(), plan.Mapper, plan.Query, &mapper.PlanOptions{
		StartOptions: *plan.current(), TimePerEntity: cmp.Or(plan.PerEntity, plan.Before), WritesPerEntity: plan.Writes,
		CallsPerEntity: plan.Calls, Params: plan.Params,
	})
}

// mappers lists the mappers whose jobs can be started, the queues, and the kinds of the database if
// the request asks for them.
func (s service) mappers(r *http.Request) (any, error) {
	q, err := parameters(r, "kinds")
	if err != nil {
		return nil, err
	}
	kinds, err := truth(q, "kinds")
	if err != nil {
		return nil, err
	}
	answer := operator.MapperList{Mappers: []operator.Mapper{}}
	for _, m := range operator.Mappers(s.engine) {
		answer.Mappers = append(answer.Mappers, m.Told())
	}
	for _, queue := range s.engine.Queues() {
		answer.Queues = append(answer.Queues, queue.Name())
	}
	if kinds {
		answer.Kinds, err = operator.Suggestions(r.Context(), s.engine.Client(), "__kind__")
	}
	return answer, err
}

// list lists jobs.
func (s service) list(r *http.Request) (any, error) {
	q, err := parameters(r, "state", "mapper", "all", "cursor")
	if err != nil {
		return nil, err
	}
	all, err := truth(q, "all")
	if err != nil {
		return nil, err
	}
	o := &mapper.JobsOptions{State: mapper.State(q.Get("state")), Mapper: q.Get("mapper"), AllQueues: all}
	jobs, next, err := s.engine.JobsPage(r.Context(), o, q.Get("cursor"))
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
	failures, next, err := s.job(r).FailuresPage(r.Context(), q.Get("cursor"))
	return struct {
		Failures []mapper.Failure `json:"failures"`
		Next     string           `json:"next,omitempty"`
	}{append([]mapper.Failure{}, failures...), next}, err
}

// causes lists the causes of a job's failures.
func (s service) causes(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	causes, err := s.job(r).FailureCauses(r.Context())
	return struct {
		Causes []mapper.FailureCause `json:"causes"`
	}{append([]mapper.FailureCause{}, causes...)}, err
}

// retry processes the failures of a job again, or only the failures of one cause.
func (s service) retry(r *http.Request) (any, error) {
	q, err := parameters(r, "reason", "cause")
	if err != nil {
		return nil, err
	}
	if q.Has("cause") && q.Get("cause") == "" {
		return nil, operator.BadRequest("the parameter cause is empty: leave it out for all failures")
	}
	if err := noBody(r); err != nil {
		return nil, err
	}
	ctx := mapper.WithReason(r.Context(), q.Get("reason"))
	return s.after(r, s.job(r).Retry(ctx, &mapper.RetryOptions{Cause: q.Get("cause")}))
}

// undo starts the undo of a job. A request without a body has the defaults.
func (s service) undo(r *http.Request) (any, error) {
	var o struct {
		mapper.UndoOptions
		oldnames.Start // older clients send these names
	}
	ctx, err := because(r)
	if err == nil && r.ContentLength != 0 {
		err = decode(r, "an undo", &o)
	}
	if err != nil {
		return nil, err
	}
	o.DryRun = o.DryRun || o.Rehearse
	o.ExpectedWorkers = cmp.Or(o.ExpectedWorkers, o.Workers)
	undo, err := s.job(r).Undo(ctx, &o.UndoOptions)
	if err != nil {
		return nil, err
	}
	return undo.Status(r.Context())
}

// left lists the entities that an undo did not restore.
func (s service) left(r *http.Request) (any, error) {
	q, err := parameters(r, "cursor")
	if err != nil {
		return nil, err
	}
	left, next, err := s.job(r).NotUndonePage(r.Context(), q.Get("cursor"))
	return struct {
		Left []mapper.NotUndone `json:"left"`
		Next string             `json:"next,omitempty"`
	}{append([]mapper.NotUndone{}, left...), next}, err
}

// examples lists what a rehearsal would do to some entities.
func (s service) examples(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	examples, err := s.job(r).Examples(r.Context())
	return struct {
		Examples []mapper.Example `json:"examples"`
	}{append([]mapper.Example{}, examples...)}, err
}

// history lists who did what to a job.
func (s service) history(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	acts, err := s.job(r).History(r.Context())
	return struct {
		History []mapper.HistoryEntry `json:"history"`
	}{append([]mapper.HistoryEntry{}, acts...)}, err
}

// verify checks that a job's records cover its query.
func (s service) verify(r *http.Request) (any, error) {
	q, err := parameters(r, "entities", "read_time")
	if err == nil {
		err = noBody(r)
	}
	if err != nil {
		return nil, err
	}
	var o mapper.VerifyOptions
	if o.Entities, err = truth(q, "entities"); err != nil {
		return nil, err
	}
	if at := q.Get("read_time"); at != "" {
		if o.ReadTime, err = time.Parse(time.RFC3339, at); err != nil || o.ReadTime.IsZero() || !o.Entities {
			return nil, operator.BadRequest(fmt.Sprintf("the parameter \"read_time\" is %.100q: it has to be like "+
				"2006-01-02T15:04:05Z, and needs entities=true", at))
		}
	}
	return s.job(r).Verify(r.Context(), &o)
}

// truth returns the value of a request's parameter that is true or false. By default it is false.
func truth(q url.Values, name string) (bool, error) {
	switch v := q.Get(name); v {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, operator.BadRequest(fmt.Sprintf("the parameter %q is %q, it has to be true or false", name, v))
	}
}

// rate sets the rate limit of a job.
func (s service) rate(r *http.Request) (any, error) {
	var rate struct {
		mapper.Rate
		For *time.Duration `json:"for_ns"`
	}
	ctx, err := because(r)
	if err == nil {
		err = decode(r, "a rate", &rate)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case rate.Rate == (mapper.Rate{}):
		return nil, operator.BadRequest(`the rate is empty: set "entities", "writes" or "calls", or {"entities": -1} ` +
			`for no limit`)
	case rate.For == nil:
		return s.after(r, s.job(r).SetRate(ctx, rate.Rate))
	}
	return s.after(r, s.job(r).SetRateFor(ctx, rate.Rate, *rate.For))
}

// budget sets the budget of a job.
func (s service) budget(r *http.Request) (any, error) {
	var budget mapper.Budget
	ctx, err := because(r)
	if err == nil {
		err = decode(r, "a budget", &budget)
	}
	switch {
	case err != nil:
		return nil, err
	case budget == mapper.Budget{}:
		return nil, operator.BadRequest(`the budget is empty: set "dollars" or "operations", or {"dollars": -1} for ` +
			`none`)
	}
	return s.after(r, s.job(r).SetBudget(ctx, budget))
}

// cleanUp starts the deletion of a job's records. A request without a body has the defaults. The
// answer is the job's status, or {} if the job's own record is already deleted.
func (s service) cleanUp(r *http.Request) (any, error) {
	var o struct {
		mapper.CleanUpOptions
		Before time.Duration `json:"expire" old:"expire_ns"` // older clients send it
	}
	ctx, err := because(r)
	if err == nil && r.ContentLength != 0 {
		err = decode(r, "a clean-up", &o)
	}
	if err != nil {
		return nil, err
	}
	o.ExpireAfter = cmp.Or(o.ExpireAfter, o.Before)
	if err := s.job(r).CleanUp(ctx, &o.CleanUpOptions); err != nil {
		return nil, err
	}
	status, err := s.job(r).Status(r.Context())
	if errors.Is(err, mapper.ErrNoSuchJob) {
		return struct{}{}, nil
	}
	return status, err
}

// bodyTime is the time in which the body of a request must arrive.
const bodyTime = 10 * time.Second

// read reads the body of a request into memory, and makes it the request's new body. It returns an
// error if the body does not arrive within bodyTime. The time limit applies only to the body.
func read(w http.ResponseWriter, r *http.Request) error {
	// the error is ignored: a test's request has no connection
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return operator.BadRequest("the body can't be read: " + err.Error())
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return nil
}

// decode decodes the body of a request into v. The body must be one JSON value. Errors call the
// body by the name in what, such as "a plan".
func decode(r *http.Request, what string, v any) error {
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = strictjson.DecodeNulls(text, v)
	}
	if err != nil {
		return operator.Bad("the body is not %s: %w", what, err)
	}
	return checkLimits(text)
}

// checkLimits returns an error if a body sets a limit of failures to 0. In [mapper.StartOptions] 0
// means the default, which allows failures. A client that sends 0 probably means that no failure is
// allowed.
func checkLimits(text []byte) error {
	var body struct {
		FailureLimit *float64 `json:"failure_limit"`
		FailureShare *float64 `json:"failure_share"`
	}
	if json.Unmarshal(text, &body) != nil {
		return nil // the body is not a start; decode reports this
	}
	is0 := func(n *float64) bool { return n != nil && *n == 0 }
	switch {
	case is0(body.FailureLimit):
		return operator.BadRequest(`"failure_limit" is 0: leave it out for 1,000, set at least 1 to pause when more ` +
			`entities than that have failed, or -1 for no limit`)
	case is0(body.FailureShare):
		return operator.BadRequest(`"failure_share" is 0: leave it out for no such limit, or set more than 0`)
	}
	return nil
}

// noBody returns an error if a request has a body with fields, which would be ignored.
func noBody(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	if err := decode(r, "empty", new(struct{})); !errors.Is(err, strictjson.ErrMissing) && err != nil {
		return operator.Bad("%w: the URL has all parameters of this request", err)
	}
	return nil
}

// parameters returns the parameters in a request's URL. It returns an error if one of them is
// unknown.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, operator.BadRequest("the URL's parameters can't be read: " + err.Error())
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			have := cmp.Or(strings.Join(known, ", "), "none")
			return nil, operator.BadRequest(fmt.Sprintf("unknown parameter %q: have %s", name, have))
		}
		if len(values) > 1 {
			return nil, operator.BadRequest(fmt.Sprintf("the parameter %q has several values: send one", name))
		}
	}
	return q, nil
}

// answer returns a handler that calls do, and sends its result as JSON. If the request is at fault,
// the answer has the error's text. For other errors the answer has only a cause that callers may
// see, and the log has the error.
func (s service) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := any(nil), read(w, r)
		if err == nil {
			body, err = do(r)
		}
		code := operator.Code(err)
		if err != nil {
			body = said(err)
		}
		if code == http.StatusInternalServerError {
			id := requestID()
			s.log.Log(r.Context(), operator.FailureLevel(r), "request failed", "request", id,
				"path", stranger.Shown(r.URL.Path), "error", err)
			w.Header().Set("X-Request-Id", id)
			body = failure{Request: id, Error: fmt.Sprintf("the request failed: %s; the service's log says more, in "+
				"the line of request %s", operator.SafeCause(err), id)}
		}
		write(w, code, body)
	}
}

// requestID returns a random text that an answer and a log line share, so that an operator finds
// the line.
func requestID() string { return strconv.FormatUint(rand.Uint64(), 36) }

// write answers with a code and a body, which it encodes as JSON.
func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client is gone
}

// A failure is the JSON of an answer to a request that failed.
type failure struct {
	Error string `json:"error"`

	// Parts is the text in parts, if the error names settings: every second part is the name of a
	// setting. Clients replace these names by their own, such as flags.
	Parts []string `json:"error_parts,omitempty"`

	Request string `json:"request,omitempty"` // the ID of the request's line in the log; only for code 500
}

// said converts an error into the JSON with which the handler answers.
func said(err error) failure {
	text, parts := operator.InJSON(err)
	if len(parts) == 1 {
		parts = nil
	}
	return failure{Error: text, Parts: parts}
}
