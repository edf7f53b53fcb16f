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

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// A verb is an action on a job.
type verb struct {
	Name    string
	Label   string // of its button
	Did     string // the text after it was done
	Warns   string // the question before it, if it costs or can't be undone; empty: no question
	Many    bool   // it is offered for several jobs at once
	Settles string // the fields of its form: rate or clean-up

	when func(*mapper.Status) bool // whether it is offered; the methods of mapper.Job decide
	do   func(context.Context, *mapper.Job, url.Values) error
}

func in(states ...mapper.State) func(*mapper.Status) bool {
	return func(s *mapper.Status) bool { return slices.Contains(states, s.State) }
}

// plain turns a method of [mapper.Job] that has no parameters into a verb's do function.
func plain(do func(*mapper.Job, context.Context) error) func(context.Context, *mapper.Job, url.Values) error {
	return func(ctx context.Context, j *mapper.Job, _ url.Values) error { return do(j, ctx) }
}

// verbs are all actions, in the order in which they are shown.
var verbs = []verb{
	{Name: "pause", Label: "Pause", Did: "It is paused.", Many: true, when: in(mapper.StateRunning),
		do: plain((*mapper.Job).Pause)},
	{Name: "resume", Label: "Resume", Did: "It goes on.", Many: true, when: in(mapper.StatePaused, mapper.StateFailed),
		do: plain((*mapper.Job).Resume)},
	{Name: "retry", Label: "Retry failures", Did: "Its failures are tried again.",
		when: func(s *mapper.Status) bool {
			return s.Failures > 0 && s.State != mapper.StateAborted && !s.CleanedUp && !s.CleaningUp && s.UndoneBy == ""
		}, do: retry},
	{Name: "rate", Label: "Set rate", Did: "Its rate is set.", Settles: "rate",
		when: in(mapper.StateRunning, mapper.StatePaused, mapper.StateFailed), do: setRate},
	{Name: "verify", Label: "Prove it again", Did: "It is verified.", Warns: "This reads the record of every range " +
		"of the job, which is billed, and checks them against each other. It changes nothing.",
		when: func(s *mapper.Status) bool { return s.State.Ended() && !s.CleanedUp && !s.CleaningUp }},
	{Name: "abort", Label: "Abort", Did: "It is aborted.", Many: true,
		when: in(mapper.StateRunning, mapper.StatePaused, mapper.StateFailed), do: plain((*mapper.Job).Abort),
		Warns: "An aborted job can't be resumed. What it has done stays, and what it has not come to stays as it is."},
	{Name: "undo", Label: "Undo", Did: "A job undoes it.",
		do: func(ctx context.Context, j *mapper.Job, _ url.Values) error {
			_, err := j.Undo(ctx, nil)
			return err
		},
		Warns: "This starts a job that restores what this one has changed or deleted, and deletes what it has put, " +
			"as far as nobody has changed it since. The job can't be resumed or retried from then on.",
		when: func(s *mapper.Status) bool {
			return s.State.Ended() && s.Written > 0 && s.UndoneBy == "" && !s.CleanedUp && !s.CleaningUp &&
				!strings.Contains(s.Mapper, ":")
		}},
	{Name: "clean-up", Label: "Clean up", Did: "Its records are being deleted.", Settles: "clean-up", do: cleanUp,
		Warns: "This deletes the records of the job's ranges. It keeps its status, but has no picture and no replay " +
			"any more, and can't be resumed, retried, undone or verified.",
		when: func(s *mapper.Status) bool { return s.State.Ended() && !s.CleaningUp }},
	{Name: "move", Label: "Move to this service", Did: "It belongs to this service's queue.",
		do:    plain((*mapper.Job).Move),
		Warns: "The job belongs to another queue. This has it go on in the queue of this service.",
		when: func(*mapper.Status) bool {
			return false
		}},
}

// legal returns what can be done to a job. One of a queue that is not the engine's can only be
// looked at, and moved.
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

// number reads a number of a form. An empty field is 0.
func number(q url.Values, name string) (float64, error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, operator.BadRequest(fmt.Sprintf("%s is %.100q, it has to be a number", labelOf(name), text))
	}
	return n, nil
}

// lasting reads a duration of a form. An empty field is 0.
func lasting(q url.Values, name string) (time.Duration, error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, operator.BadRequest(fmt.Sprintf("%s is %.100q, it has to be a duration, such as 90s or 2h",
			labelOf(name),
			text))
	}
	return d, nil
}

func setRate(ctx context.Context, j *mapper.Job, q url.Values) error {
	entities, bad := number(q, "rate")
	writes, worse := number(q, "writes")
	d, worst := lasting(q, "for")
	if err := errors.Join(bad, worse, worst); err != nil {
		return err
	}
	rate := mapper.Rate{EntitiesPerSecond: entities, WritesPerSecond: writes, Ramp: q.Get("ramp") != ""}
	if rate == (mapper.Rate{}) {
		rate.EntitiesPerSecond = mapper.Unlimited // an empty field means no limit
	}
	if d == 0 {
		return j.SetRate(ctx, rate)
	}
	return j.SetRateFor(ctx, rate, d)
}

func cleanUp(ctx context.Context, j *mapper.Job, q url.Values) error {
	return j.CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: q.Get("failures") != "",
		IncludeJob: q.Get("record") != ""})
}

// A question is the page that asks before an action.
type question struct {
	Do    string   `json:"do"`
	Jobs  []string `json:"jobs"`
	Warns string   `json:"warns,omitempty"`

	Verb verb   `json:"-"`
	Back string `json:"-"` // where to go instead
}

// order reads what is to be done, and to which jobs.
func order(q url.Values) (v verb, ids []string, err error) {
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == q.Get("do") })
	for _, id := range q["id"] {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch {
	case i < 0:
		return v, nil, operator.BadRequest(fmt.Sprintf("there is nothing called %.100q to be done", q.Get("do")))
	case len(ids) == 0:
		return v, nil, operator.BadRequest("no job is chosen")
	case len(ids) > 1 && !verbs[i].Many:
		return v, nil, operator.BadRequest(verbs[i].Label + " is done to one job at a time")
	case len(ids) > 100:
		return v, nil, operator.BadRequest("more than 100 jobs are chosen")
	}
	return verbs[i], ids, nil
}

// ask answers with the question before an action.
func (s *server) ask(_ *http.Request, q url.Values) (*answer, error) {
	v, ids, err := order(q)
	if err != nil {
		return nil, err
	}
	return &answer{template: "act", title: v.Label, body: question{v.Name, ids, v.Warns, v, backTo(ids)}}, nil
}

func backTo(ids []string) string {
	if len(ids) == 1 {
		return "job?" + url.Values{"id": ids}.Encode()
	}
	return "./"
}

// A refusal is why an action had no effect on a job.
type refusal struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// A result is the outcome of an action.
type result struct {
	Done   []string  `json:"done"`
	Failed []refusal `json:"failed"`

	Verb verb `json:"-"`
}

// act carries out an action. If it can't be undone, it asks first, unless the answer is already
// given.
func (s *server) act(r *http.Request, q url.Values) (*answer, error) {
	v, ids, err := order(q)
	if err != nil {
		return nil, err
	}
	if v.Warns != "" && q.Get("confirmed") != "yes" {
		if asJSON(r) {
			return nil, operator.BadRequest(v.Name + " needs confirmed=yes: " + v.Warns)
		}
		return s.ask(r, q)
	}
	defer s.cache.forget()
	if v.Name == "verify" {
		return s.verify(r.Context(), ids[0])
	}
	ctx := mapper.WithReason(r.Context(), q.Get("reason"))
	if len(ids) == 1 {
		if err := v.do(ctx, s.engine.Job(ids[0]), q); err != nil {
			return nil, err
		}
		to := backTo(ids) + "&did=" + v.Name
		if v.Name == "clean-up" && q.Get("record") != "" {
			to = "./?did=" + v.Name
		}
		return &answer{template: "acted", title: v.Label, to: to,
			body: result{Done: ids, Failed: []refusal{}, Verb: v}}, nil
	}
	done := result{Done: []string{}, Failed: []refusal{}, Verb: v}
	for _, id := range ids {
		if err := v.do(ctx, s.engine.Job(id), q); err != nil {
			text := s.said(err)
			if codeOf(err) == http.StatusInternalServerError {
				s.Logger.ErrorContext(ctx, "dashboard", "do", v.Name, "job", id, "error", err)
				text = "it failed: the log says why"
			}
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

// A proven is the page of a proof.
type proven struct {
	Proof *mapper.Proof `json:"proof"`

	Job string `json:"-"`
}

// verify answers with the proof of a job.
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
