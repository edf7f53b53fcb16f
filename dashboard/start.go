package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// A startable is a mapper that can be started.
type startable struct {
	Name   string  `json:"name"`
	Visit  bool    `json:"visit"` // it has its effects elsewhere
	Fields []field `json:"fields"`

	Destroys bool `json:"-"`
}

// A form is the page that starts a job.
type form struct {
	Mappers []startable      `json:"mappers,omitempty"`
	Plan    *mapper.Estimate `json:"plan,omitempty"`
	ID      string           `json:"id,omitempty"` // of the job that was started

	Chosen  *startable        `json:"-"`
	In      map[string]string `json:"-"` // what was entered, by the names of the fields
	Bad     string            `json:"-"` // what is wrong with it
	Planned string            `json:"-"` // stands for what was planned
	Changed bool              `json:"-"` // it was changed since it was planned
	Exists  bool              `json:"-"` // there is a job of the ID already
}

// How a job is tried first, as the field "how" has it.
const (
	asRehearsal = "rehearsal"
	asCanary    = "canary"
	asRest      = "rest"
	asAll       = "all"
)

// startables returns the engine's mappers.
func (s *server) startables() (all []startable) {
	for _, m := range s.engine.Mappers() {
		all = append(all, startable{m.Name, m.Visit, append([]field{}, fieldsOf(m.ParamsType)...),
			prebuilt.Destroys(m.Name)})
	}
	return all
}

// form answers with the form that starts a job.
func (s *server) form(_ *http.Request, q url.Values) (*answer, error) {
	f := &form{Mappers: s.startables(), In: make(map[string]string)}
	if name := q.Get("mapper"); name != "" {
		if err := f.choose(name); err != nil {
			return nil, err
		}
		f.Mappers = []startable{*f.Chosen}
		f.In["id"] = operator.NewID(name, false)
		if f.In["how"] = asAll; f.Chosen.Destroys {
			f.In["how"] = asRehearsal
		}
		f.In["share"] = "1%"
	}
	return &answer{template: "start", title: "Start a job", body: f}, nil
}

// choose sets the mapper of the form.
func (f *form) choose(name string) error {
	i := slices.IndexFunc(f.Mappers, func(m startable) bool { return m.Name == name })
	if i < 0 {
		return fmt.Errorf("%w %q", mapper.ErrUnknownMapper, name)
	}
	f.Chosen = &f.Mappers[i]
	return nil
}

// stands returns what stands for what was entered, but for what neither a job nor a plan depends
// on.
func stands(q url.Values) string {
	h := sha256.New()
	var names []string
	for name := range q {
		if name != "do" && name != "planned" && name != "reason" && name != "format" &&
			strings.Join(q[name], "") != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%q %q\n", name, q[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// An entered is what was entered in the form.
type entered struct {
	mapper  string
	query   mapper.Query
	params  []byte
	options mapper.StartOptions
	each    time.Duration // that the function takes for an entity
}

// read reads what was entered.
func (f *form) read(q url.Values) (in entered, err error) {
	in.mapper = f.Chosen.Name
	in.query = mapper.Query{Kind: strings.TrimSpace(q.Get("kind")), Namespace: strings.TrimSpace(q.Get("namespace"))}
	var bad []error
	note := func(err error) { bad = append(bad, err) }
	if in.query.Kind == "" {
		note(operator.BadRequest("the kind is missing: which entities is the job over?"))
	}
	for line := range strings.Lines(q.Get("filters")) {
		if line = strings.TrimSpace(line); line != "" {
			if err := operator.AddCondition(&in.query, line); err != nil {
				note(operator.Bad("the filter %.200q: %w", line, err))
			}
		}
	}
	switch how, share := q.Get("how"), strings.TrimSpace(q.Get("share")); how {
	case asRehearsal:
		in.options.DryRun = true
	case asCanary, asRest:
		if how == asCanary {
			err = operator.AddShare(&in.query, share, "")
		} else {
			err = operator.AddShare(&in.query, "", share)
		}
		if share == "" {
			err = errors.New("the share of the entities is missing, such as 1%")
		}
		if err != nil {
			note(operator.BadRequest(err.Error()))
		}
	case asAll, "":
	default:
		note(operator.BadRequest(fmt.Sprintf("how is %.100q, it has to be %s, %s, %s or %s", how, asRehearsal, asCanary,
			asRest, asAll)))
	}
	in.params, err = params(f.Chosen.Fields, q)
	note(err)
	in.options.ID, in.options.Queue = strings.TrimSpace(q.Get("id")), strings.TrimSpace(q.Get("queue"))
	if in.options.ID == "" {
		note(operator.BadRequest("the ID is missing: it makes repeated starts one job"))
	}
	for name, to := range map[string]*int{"page_size": &in.options.PageSize, "workers": &in.options.ExpectedWorkers,
		"failure_limit": &in.options.FailureLimit, "concurrency": &in.options.Concurrency} {
		n, err := number(q, name)
		if err == nil && n != float64(int(n)) {
			err = operator.BadRequest(fmt.Sprintf("%s is %v, it has to be a whole number", labelOf(name), n))
		}
		*to = int(n)
		note(err)
	}
	for name, to := range map[string]*float64{"rate": &in.options.Rate.EntitiesPerSecond,
		"budget": &in.options.Budget.Dollars} {
		*to, err = number(q, name)
		note(err)
	}
	in.options.Rate.Ramp, in.options.AllowOverlap, in.options.AllowEmpty = q.Get("ramp") != "", q.Get("beside") != "",
		q.Get("allow_empty") != ""
	in.each, err = lasting(q, "per_entity")
	note(err)
	return in, errors.Join(bad...)
}

// plan returns what a job of what was entered would take.
func (s *server) plan(ctx context.Context, in entered) (*mapper.Estimate, error) {
	return s.engine.PlanByName(ctx, in.mapper, in.query, &mapper.PlanOptions{
		StartOptions: in.options, TimePerEntity: in.each, Params: in.params,
	})
}

// start plans a job, and starts it after the plan was shown. Errors are shown beside the inputs.
func (s *server) start(r *http.Request, q url.Values) (*answer, error) {
	f := &form{Mappers: s.startables(), In: make(map[string]string)}
	if err := f.choose(q.Get("mapper")); err != nil {
		return nil, err
	}
	for name := range q {
		f.In[name] = q.Get(name)
	}
	in, err := f.read(q)
	if err != nil {
		return s.again(r, f, err)
	}
	f.Planned = stands(q)
	if planned := q.Get("planned"); q.Get("do") != "start" || planned != f.Planned && !asJSON(r) {
		f.Changed = q.Get("do") == "start" && planned != ""
		if f.Plan, err = s.plan(r.Context(), in); err != nil {
			return s.again(r, f, err)
		}
		_, err := s.engine.Job(in.options.ID).History(r.Context())
		f.Exists = err == nil
		f.Mappers = nil
		return &answer{template: "start", title: "Start a job", body: f}, nil
	}
	job, err := s.engine.StartByName(mapper.WithReason(r.Context(), q.Get("reason")), in.mapper, in.query, in.params,
		&in.options)
	if err != nil {
		return s.again(r, f, err)
	}
	s.cache.forget()
	return &answer{to: "job?" + url.Values{"id": {job.ID}, "did": {"start"}}.Encode(), body: &form{ID: job.ID}}, nil
}

// again answers with the form, and what is wrong with what was entered.
func (s *server) again(r *http.Request, f *form, err error) (*answer, error) {
	code := codeOf(err)
	if code == http.StatusInternalServerError || asJSON(r) {
		return nil, err
	}
	f.Bad = cmp.Or(s.said(err),
		"it is wrong")
	f.Planned = ""
	return &answer{code: code, template: "start", title: "Start a job", body: f}, nil
}
