package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// A verb is an action on a job that a page offers, such as pause.
type verb struct {
	Name    string
	Label   string // the text of the action's button
	Did     string // the text that a page shows after the action
	Warns   string // the question before the action, if it costs money or can't be undone; empty: none
	Many    bool   // whether the list offers the action for several jobs at once
	Settles string // the fields of the action's form: rate, budget, clean-up or undo; empty: none
	Past    string // what the action makes of a job, such as "paused"

	// whether pages offer the action for a job; the methods of mapper.Job decide whether it is
	// possible
	when func(*mapper.Status) bool
	do   func(context.Context, *mapper.Job, url.Values) error
	// called in place of the field do, if the action starts another job
	starts func(context.Context, *mapper.Job, url.Values) (*mapper.Job, error)
}

func in(states ...mapper.State) func(*mapper.Status) bool {
	return func(s *mapper.Status) bool { return slices.Contains(states, s.State) }
}

// plain converts a method of [mapper.Job] without parameters into the do function of a verb.
func plain(do func(*mapper.Job, context.Context) error) func(context.Context, *mapper.Job, url.Values) error {
	return func(ctx context.Context, j *mapper.Job, _ url.Values) error { return do(j, ctx) }
}

// verbs are all actions, in the order in which they are shown.
var verbs = []verb{
	{Name: "pause", Label: "Pause", Did: "It is paused.", Many: true, Past: "paused", when: in(mapper.StateRunning),
		do: plain((*mapper.Job).Pause)},
	{Name: "resume", Label: "Resume", Did: "It continues.", Many: true, Past: "resumed",
		when: in(mapper.StatePaused, mapper.StateFailed), do: plain((*mapper.Job).Resume)},
	{Name: "retry", Label: "Retry failures", Did: "Its failures are retried.",
		when: func(s *mapper.Status) bool {
			return s.Failures > 0 && s.State != mapper.StateAborted && !s.CleanedUp && !s.CleaningUp && s.UndoneBy == ""
		}, do: retry},
	{Name: "rate", Label: "Set rate", Did: "Its rate is set.", Settles: "rate",
		when: in(mapper.StateRunning, mapper.StatePaused, mapper.StateFailed), do: setRate},
	{Name: "budget", Label: "Set budget", Did: "Its budget is set. A paused job has to be resumed.", Settles: "budget",
		when: func(s *mapper.Status) bool {
			return s.Settings.Budget != mapper.Budget{} &&
				in(mapper.StateRunning, mapper.StatePaused, mapper.StateFailed)(s)
		}, do: setBudget},
	{Name: "verify", Label: "Verify", Did: "It is verified.", Warns: "This reads the record of every range " +
		"of the job, which is billed, and checks them against each other. It changes nothing.",
		when: func(s *mapper.Status) bool { return s.State.Ended() && !s.CleanedUp && !s.CleaningUp }},
	{Name: "abort", Label: "Abort", Did: "It is aborted.", Many: true, Past: "aborted",
		when: in(mapper.StateRunning, mapper.StatePaused, mapper.StateFailed), do: plain((*mapper.Job).Abort),
		Warns: "An aborted job can't be resumed. The changes that it has made stay."},
	{Name: "undo", Label: "Undo", Did: "This job undoes it.", Settles: "undo", starts: undoes,
		Warns: "An undo is a job that restores what this one has changed or deleted, and deletes what it has put. " +
			"It leaves entities that anybody has changed since. Afterwards this job can't be resumed or retried.",
		when: func(s *mapper.Status) bool {
			return s.State.Ended() && s.Written > 0 && s.UndoneBy == "" && !s.CleanedUp && !s.CleaningUp &&
				!strings.Contains(s.Mapper, ":")
		}},
	{Name: "clean-up", Label: "Clean up", Did: "Its records are being deleted.", Settles: "clean-up", do: cleanUp,
		Warns: "This deletes the records of the job's ranges. Its status stays. Its picture and its replay go, and " +
			"it can't be resumed, retried, undone or verified.",
		when: func(s *mapper.Status) bool { return s.State.Ended() && !s.CleaningUp }},
	{Name: "move", Label: "Move to this service", Did: "It belongs to this service's queue.",
		do:    plain((*mapper.Job).Move),
		Warns: "The job belongs to another queue. This moves it to the queue of this service.",
		when: func(*mapper.Status) bool {
			return false
		}},
}

// legal returns the actions that a job's page offers. For a job in a queue that the engine does not
// have, these are only verify, and move if the job has not ended.
func legal(s *mapper.Status, e *mapper.Engine) (all []verb) {
	foreign := s.Queue != "" && !e.Owns(s.Queue)
	for _, v := range verbs {
		if v.when(s) && (!foreign || v.Name == "verify") || v.Name == "move" && foreign && !s.State.Ended() {
			all = append(all, v)
		}
	}
	return all
}

func retry(ctx context.Context, j *mapper.Job, q url.Values) error {
	cause := q.Get("cause")
	if hash := q.Get("of"); hash != "" {
		causes, err := j.FailureCauses(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(causes, func(c mapper.FailureCause) bool { return hashOf(c.Text) == hash })
		if i < 0 {
			return operator.BadRequest("no failure has this cause any more")
		}
		cause = causes[i].Text
	}
	return j.Retry(ctx, &mapper.RetryOptions{Cause: cause})
}

// These texts say what an empty field of a form means. The engine's settings have 0 for that. So an
// entered 0 is an error: the viewer may have meant that nothing is allowed.
const (
	noLimit    = "no limit"
	byDefault  = "the default"
	throughout = "no end"
)

// number reads a number from a form's field. An empty field is 0, and the parameter empty says what
// that means.
func number(q url.Values, name, empty string) (float64, error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return 0, operator.BadRequest(fmt.Sprintf("%s is %.100q, it has to be a number", labelOf(name), text))
	case n == 0:
		return 0, errZero(name, empty)
	}
	return n, nil
}

// errZero returns the error about a field of a form in which the viewer has entered 0.
func errZero(name, empty string) error {
	return operator.BadRequest(fmt.Sprintf("%s is 0: leave it empty for %s", labelOf(name), empty))
}

// whole reads an integer from a form's field. An empty field is 0, and the parameter empty says
// what that means.
func whole(q url.Values, name, empty string) (int, error) {
	n, err := number(q, name, empty)
	if err == nil && n != float64(int(n)) {
		err = operator.BadRequest(fmt.Sprintf("%s is %v, it has to be a whole number", labelOf(name), n))
	}
	return int(n), err
}

// lasting reads a duration from a form's field. An empty field is 0, and the parameter empty says
// what that means.
func lasting(q url.Values, name, empty string) (time.Duration, error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return 0, nil
	}
	d, err := operator.ParsePeriod(text)
	switch {
	case err != nil:
		return 0, operator.BadRequest(fmt.Sprintf("%s is %.100q, it has to be a duration, such as 90s, 2h or 30d",
			labelOf(name), text))
	case d == 0:
		return 0, errZero(name, empty)
	}
	return d, nil
}

func setRate(ctx context.Context, j *mapper.Job, q url.Values) error {
	entities, bad := number(q, "rate", noLimit)
	writes, worse := number(q, "writes", noLimit)
	calls, third := number(q, "calls", noLimit)
	d, worst := lasting(q, "for", throughout)
	if err := errors.Join(bad, worse, third, worst); err != nil {
		return err
	}
	rate := mapper.Rate{EntitiesPerSecond: entities, WritesPerSecond: writes, CallsPerSecond: calls,
		Ramp: q.Get("ramp") != ""}
	if rate == (mapper.Rate{}) {
		rate.EntitiesPerSecond = mapper.Unlimited // an empty field means no limit
	}
	if d == 0 {
		return j.SetRate(ctx, rate)
	}
	return j.SetRateFor(ctx, rate, d)
}

func setBudget(ctx context.Context, j *mapper.Job, q url.Values) error {
	dollars, bad := number(q, "budget", noLimit)
	operations, worse := whole(q, "operations", noLimit)
	if err := errors.Join(bad, worse); err != nil {
		return err
	}
	budget := mapper.Budget{Dollars: dollars, Operations: int64(operations)}
	if budget == (mapper.Budget{}) {
		budget.Dollars = mapper.Unlimited // an empty field means no limit
	}
	return j.SetBudget(ctx, budget)
}

func cleanUp(ctx context.Context, j *mapper.Job, q url.Values) error {
	return j.CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: q.Get("failures") != "",
		IncludeJob: q.Get("record") != ""})
}

// undoes starts the undo of a job, or a rehearsal of the undo if the form asks for it.
func undoes(ctx context.Context, j *mapper.Job, q url.Values) (*mapper.Job, error) {
	if q.Get("rehearsal") == "" {
		return j.Undo(ctx, nil)
	}
	return j.Undo(ctx, &mapper.UndoOptions{DryRun: true, ID: operator.NewID("undo-"+j.ID[:min(len(j.ID), 60)], true)})
}

// A question is the data of the page that asks for a confirmation before an action on jobs.
type question struct {
	Do      string    `json:"do"`
	Jobs    []string  `json:"jobs"`
	LeftOut []refusal `json:"left_out,omitempty"` // jobs that do not allow the action now, with the reasons
	Warns   string    `json:"warns,omitempty"`

	Verb    verb       `json:"-"`
	In      url.Values `json:"-"` // the values of the form's inputs
	Bad     string     `json:"-"` // what is wrong with the inputs, or why the action has failed
	Written int64      `json:"-"` // number of entities that the job to undo has written
	Back    string     `json:"-"` // the address of the page from which the viewer came
}

// order returns the action and the IDs of the jobs in a request's parameters.
func order(q url.Values) (v verb, ids []string, err error) {
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == q.Get("do") })
	for _, id := range q["id"] {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch {
	case i < 0:
		return v, nil, operator.BadRequest(fmt.Sprintf("there is no action %.100q", q.Get("do")))
	case len(ids) == 0:
		return v, nil, operator.BadRequest("no job is chosen: check the boxes of some jobs in the list first")
	case len(ids) > 1 && !verbs[i].Many:
		return v, nil, operator.BadRequest(verbs[i].Label + " works on one job at a time")
	case len(ids) > 100:
		return v, nil, operator.BadRequest("more than 100 jobs are chosen")
	}
	return verbs[i], ids, nil
}

// ask handles a request for the page that asks for a confirmation before an action.
func (s *server) ask(r *http.Request, q url.Values) (*answer, error) {
	v, ids, err := order(q)
	if err != nil {
		return nil, err
	}
	return s.question(r.Context(), v, ids, q)
}

// question returns the page that asks for a confirmation before an action. If there are several
// jobs, it leaves out those that do not allow the action.
func (s *server) question(ctx context.Context, v verb, ids []string, q url.Values) (*answer, error) {
	ask := question{Do: v.Name, Jobs: ids, Warns: v.Warns, Verb: v, In: q, Back: backTo(ids)}
	if len(ids) > 1 || v.Settles == "undo" {
		found := make([]*mapper.Status, len(ids))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(manyAtOnce)
		for i, id := range ids {
			group.Go(func() (err error) {
				if found[i], err = s.status(ctx, id); errors.Is(err, mapper.ErrNoSuchJob) {
					err = nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		if ask.choose(found); len(ids) == 1 && found[0] != nil {
			ask.Jobs, ask.LeftOut, ask.Written = ids, nil, found[0].Written
		}
	}
	return &answer{template: "act", title: v.Label, body: ask}, nil
}

// choose removes the jobs that do not allow the action from the question, and lists them with
// reasons. The argument found has the status of each job, or nil if it does not exist.
func (ask *question) choose(found []*mapper.Status) {
	var can []string
	for i, id := range ask.Jobs {
		switch st := found[i]; {
		case st == nil:
			ask.LeftOut = append(ask.LeftOut, refusal{id, "there is no such job"})
		case !ask.Verb.when(st):
			ask.LeftOut = append(ask.LeftOut, refusal{id, "it is " + string(st.State)})
		default:
			can = append(can, id)
		}
	}
	ask.Jobs = can
}

func backTo(ids []string) string {
	if len(ids) == 1 {
		return "job?" + url.Values{"id": ids}.Encode()
	}
	return "./"
}

// A refusal is a job on which an action had no effect, and the reason.
type refusal struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// A result says on which jobs an action has succeeded, and on which it has failed.
type result struct {
	Done   []string  `json:"done"`
	Failed []refusal `json:"failed"`

	Verb verb `json:"-"`
}

// act carries out an action on jobs, and returns the page with its result. If the action needs a
// confirmation that the request lacks, act changes nothing. It then returns the page that asks for
// the confirmation, or an error if the request wants JSON.
func (s *server) act(r *http.Request, q url.Values) (*answer, error) {
	v, ids, err := order(q)
	if err != nil {
		return nil, err
	}
	if v.Warns != "" && q.Get("confirmed") != "yes" {
		if asJSON(r) {
			return nil, operator.BadRequest(v.Name + " needs confirmed=yes: " + v.Warns)
		}
		return s.question(r.Context(), v, ids, q)
	}
	defer s.cache.forget()
	ctx := mapper.WithReason(r.Context(), q.Get("reason"))
	if len(ids) == 1 {
		a, err := s.actOn(ctx, v, ids[0], q)
		if err == nil || asJSON(r) || errors.Is(err, mapper.ErrNoSuchJob) {
			return a, err
		}
		code, text := s.told(r, err)
		ask := question{Verb: v, Jobs: ids, In: q, Bad: text, Back: backTo(ids)}
		return &answer{code: code, template: "act", title: v.Label, body: ask}, nil
	}
	done := result{Done: []string{}, Failed: []refusal{}, Verb: v}
	for _, id := range ids {
		if err := v.do(ctx, s.engine.Job(id), q); err != nil {
			_, text := s.told(r, err)
			done.Failed = append(done.Failed, refusal{id, text})
			continue
		}
		done.Done = append(done.Done, id)
	}
	a := &answer{template: "acted", title: v.Label, body: done}
	if len(done.Failed) == 0 {
		a.to = "./?did=" + v.Name
	}
	return a, nil
}

// actOn carries out an action on one job, and returns the page to show after it.
func (s *server) actOn(ctx context.Context, v verb, id string, q url.Values) (*answer, error) {
	job, to := s.engine.Job(id), backTo([]string{id})
	var err error
	switch {
	case v.Name == "verify":
		return s.verify(ctx, id)
	case v.starts != nil:
		if job, err = v.starts(ctx, job, q); err == nil {
			to = backTo([]string{job.ID})
		}
	default:
		err = v.do(ctx, job, q)
	}
	if err != nil {
		return nil, err
	}
	if to += "&did=" + v.Name; v.Name == "clean-up" && q.Get("record") != "" {
		to = "./?did=" + v.Name
	}
	return &answer{template: "acted", title: v.Label, to: to,
		body: result{Done: []string{id}, Failed: []refusal{}, Verb: v}}, nil
}

// A proven is the data of the page that shows the proof of a job: whether its records show that
// each entity was processed once.
type proven struct {
	Proof *mapper.Proof `json:"proof"`

	Job string `json:"-"`
}

// verify checks the proof of a job, and returns the page that shows it.
func (s *server) verify(ctx context.Context, id string) (*answer, error) {
	proof, err := s.engine.Job(id).Verify(ctx, nil)
	if err != nil {
		return nil, err
	}
	for i, p := range proof.Problems {
		proof.Problems[i] = s.redact(TextError, p)
	}
	return &answer{template: "proof", title: "Proof of " + id, body: proven{proof, id}}, nil
}
