package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// A startable is a mapper whose jobs the form can start, as the form shows it.
type startable struct {
	Name   string  `json:"name"`
	Visit  bool    `json:"visit"` // whether mapper.Visit made the mapper, so that it writes no entities
	Fields []field `json:"fields"`

	Description string `json:"description,omitempty"`

	Destroys bool `json:"-"`
	Kindless bool `json:"-"` // whether a job of the mapper can be started without a kind
}

// A form is the data of the page that starts a job.
type form struct {
	Mappers []startable      `json:"mappers,omitempty"`
	Plan    *mapper.Estimate `json:"plan,omitempty"`
	ID      string           `json:"id,omitempty"` // the ID of the job that was started

	Chosen *startable        `json:"-"`
	In     map[string]string `json:"-"` // the texts that the viewer has entered, by the names of the inputs
	Bad    string            `json:"-"` // the error about the inputs
	// proves that the viewer has seen the plan: a hash of the planned inputs, and the planned
	// number of entities
	Planned string `json:"-"`
	Changed bool   `json:"-"` // whether the inputs have changed since the job was planned
	Exists  bool   `json:"-"` // whether a job with this ID exists
	Counted string `json:"-"` // the error about the number of entities that the viewer has entered

	Clone string    `json:"-"` // the ID of the job with which the form was filled; empty: none
	Lost  []setting `json:"-"` // what that job has, and the inputs lack

	Kinds, Namespaces []string `json:"-"` // suggestions from the database; empty: unknown
}

// Values of the form's field "how": the whole job, a rehearsal, only a part of the entities (a
// canary), or the rest.
const (
	asRehearsal = "rehearsal"
	asCanary    = "canary"
	asRest      = "rest"
	asAll       = "all"
)

// always is the value of the form's field "retain" for [mapper.RetainAlways].
const always = "always"

// startables returns the engine's mappers.
func (s *server) startables() (all []startable) {
	for _, m := range operator.Mappers(s.engine) {
		all = append(all, startable{m.Name, m.Visit, fieldsOf(m.Params), m.Description, m.Destroys,
			m.Name == prebuilt.EraseName})
	}
	return all
}

// form returns the page with the empty form that starts a job.
func (s *server) form(r *http.Request, q url.Values) (*answer, error) {
	f := &form{Mappers: s.startables(), In: make(map[string]string)}
	name, cloned := q.Get("mapper"), q.Get("clone")
	var again operator.Start
	if cloned != "" {
		var err error
		if again, err = s.clone(r.Context(), cloned); err != nil {
			return nil, err
		}
		name = again.Mapper
	}
	if name != "" {
		if err := f.choose(name); err != nil {
			return nil, err
		}
		f.Mappers = []startable{*f.Chosen}
		f.In["id"] = operator.NewID(name, again.DryRun)
		if f.In["how"] = asAll; f.Chosen.Destroys {
			f.In["how"] = asRehearsal
		}
		f.In["share"] = "1%"
		s.suggest(r.Context(), f)
	}
	if cloned != "" {
		if err := s.fill(f, cloned, again); err != nil {
			return nil, err
		}
	}
	return &answer{template: "start", title: "Start a job", body: f}, nil
}

// choose sets the mapper whose parameters the form shows.
func (f *form) choose(name string) error {
	i := slices.IndexFunc(f.Mappers, func(m startable) bool { return m.Name == name })
	if i < 0 {
		return fmt.Errorf("%w %q", mapper.ErrUnknownMapper, name)
	}
	f.Chosen = &f.Mappers[i]
	return nil
}

// stands returns a hash of the inputs on which the job and its plan depend. A start compares it
// with the hash of the planned inputs.
func stands(q url.Values) string {
	h := sha256.New()
	var names []string
	for name := range q {
		if name != "do" && name != "planned" && name != "reason" && name != "format" &&
			name != "count" && strings.Join(q[name], "") != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%q %q\n", name, q[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// An entered has the parsed values of the form's inputs.
type entered struct {
	mapper  string
	query   mapper.Query
	params  []byte
	options mapper.StartOptions
	each    time.Duration // how long the function takes for one entity, as the viewer expects
}

// read parses the form's inputs, which are in q.
func (f *form) read(q url.Values) (in entered, err error) {
	in.mapper = f.Chosen.Name
	in.query = mapper.Query{ShardBy: strings.TrimSpace(q.Get("shard_by")), KeysOnly: q.Get("keys_only") != "",
		AllNamespaces: q.Get("all_namespaces") != ""}
	var bad []error
	note := func(err error) { bad = append(bad, err) }
	in.query.Kind, in.query.Kinds, err = oneOrMore(q, "kind")
	note(err)
	in.query.Namespace, in.query.Namespaces, err = oneOrMore(q, "namespace")
	note(err)
	if at := strings.TrimSpace(q.Get("read_time")); at != "" {
		if in.query.ReadTime, err = time.Parse(time.RFC3339, at); err != nil || in.query.ReadTime.IsZero() {
			note(operator.BadRequest(fmt.Sprintf("%s is %.100q, it has to be like 2006-01-02T15:04:05Z",
				labelOf("read_time"), at)))
		}
	}
	if strings.TrimSpace(q.Get("kind")) == "" && !f.Chosen.Kindless {
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
		"failure_limit": &in.options.FailureLimit, "concurrency": &in.options.Concurrency,
		"attempts": &in.options.Retries.MaxAttempts} {
		*to, err = whole(q, name, byDefault)
		note(err)
	}
	for name, to := range map[string]*float64{"rate": &in.options.Rate.EntitiesPerSecond,
		"calls": &in.options.Rate.CallsPerSecond, "budget": &in.options.Budget.Dollars} {
		*to, err = number(q, name, noLimit)
		note(err)
	}
	for name, to := range map[string]*bool{"ramp": &in.options.Rate.Ramp, "background": &in.options.Background,
		"beside": &in.options.AllowOverlap, "allow_empty": &in.options.AllowEmpty} {
		*to = q.Get(name) != ""
	}
	for name, to := range map[string]*time.Duration{"per_entity": &in.each, "page_time": &in.options.PageTime,
		"entity_timeout": &in.options.EntityTimeout} {
		*to, err = lasting(q, name, byDefault)
		note(err)
	}
	in.options.Retain, err = retention(q)
	note(err)
	return in, errors.Join(bad...)
}

// retention reads how long the records of the job are kept.
func retention(q url.Values) (time.Duration, error) {
	if strings.TrimSpace(q.Get("retain")) == always {
		return mapper.RetainAlways, nil
	}
	return lasting(q, "retain", byDefault)
}

// oneOrMore reads an input with one name, or with several names and commas between them. It returns
// one name, or the list of names.
func oneOrMore(q url.Values, name string) (one string, several []string, err error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return "", nil, nil
	}
	all, err := operator.NameList(text)
	switch {
	case err != nil:
		return "", nil, operator.BadRequest(fmt.Sprintf("%s is %.100q: %v", labelOf(name), text, err))
	case len(all) == 1:
		return all[0], nil, nil
	}
	return "", all, nil
}

// plan returns the estimate for the job that the inputs describe.
func (s *server) plan(ctx context.Context, in entered) (_ *mapper.Estimate, err error) {
	if in.mapper == prebuilt.EraseName {
		if in.query, err = prebuilt.EraseQuery(ctx, s.engine, in.query, in.params); err != nil {
			return nil, err
		}
		in.params = nil // EraseQuery has validated them; the plan itself would refuse parameters of the mapper "erase"
	}
	return s.engine.PlanByName(ctx, in.mapper, in.query, &mapper.PlanOptions{
		StartOptions: in.options, TimePerEntity: in.each, Params: in.params,
	})
}

// start answers a posted form. It plans the job, or starts it if the viewer has already seen the
// plan. The page shows errors beside the inputs.
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
	if s.prepare(r.Context(), f); !f.mayStart(q, stands(q)) && (q.Get("do") != "start" || !asJSON(r)) {
		if f.Plan, err = s.plan(r.Context(), in); err != nil {
			return s.again(r, f, err)
		}
		f.Planned = fmt.Sprintf("%s %d", stands(q), f.Plan.Entities)
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

// Guarded reports whether the viewer has to enter the planned number of entities before the start,
// because the job destroys something.
func (f *form) Guarded() bool { return f.Chosen.Destroys && f.In["how"] != asRehearsal }

// mayStart reports whether the form may start the job. The viewer must have seen the plan, and the
// inputs must not have changed since. The parameter now is the hash of the current inputs. If the
// job destroys something, the viewer must also have entered the planned number of entities. If the
// job may not start, mayStart stores the reason in the form.
func (f *form) mayStart(q url.Values, now string) bool {
	planned, number, _ := strings.Cut(q.Get("planned"), " ")
	switch {
	case q.Get("do") != "start" || planned == "":
		return false
	case planned != now:
		f.Changed = true
		return false
	case f.Guarded() && strings.ReplaceAll(strings.TrimSpace(q.Get("count")), ",", "") != number:
		f.Counted = "Nothing was started: this is not the number of entities."
		return false
	}
	return true
}

// Limits of the suggestions in a form.
const (
	suggestTime  = 3 * time.Second
	suggestFresh = time.Minute
)

// suggest sets the form's suggestions: the kinds of the database, and the namespaces that Redact
// leaves unchanged. If reading them takes longer than suggestTime, suggest sets none.
func (s *server) suggest(ctx context.Context, f *form) {
	ctx, cancel := context.WithTimeout(ctx, suggestTime)
	defer cancel()
	type found struct{ kinds, namespaces []string }
	all, err := kept(ctx, &s.cache, "suggest", suggestFresh, func(ctx context.Context) (v found, err error) {
		for kind, to := range map[string]*[]string{"__kind__": &v.kinds, "__namespace__": &v.namespaces} {
			if *to, err = operator.Suggestions(ctx, s.engine.Client(), kind); err != nil {
				return v, err
			}
		}
		return v, nil
	})
	if err != nil {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "dashboard: no kinds to choose from", slog.Any("error", err))
	}
	for _, name := range all.kinds {
		f.Kinds = append(f.Kinds, operator.NameText(name))
	}
	for _, name := range all.namespaces {
		if shown := s.redact(TextKey, name); shown == name {
			f.Namespaces = append(f.Namespaces, name)
		}
	}
}

// prepare sets what a page shows beside the inputs of a posted form: suggestions, and what the form
// lacks of the job with which it was filled.
func (s *server) prepare(ctx context.Context, f *form) {
	s.suggest(ctx, f)
	id := f.In["clone"]
	if id == "" {
		return
	}
	// An error, such as a job that is gone meanwhile, does not prevent the start.
	if again, err := s.clone(ctx, id); err == nil && again.Mapper == f.Chosen.Name {
		blank := &form{Chosen: f.Chosen, In: make(map[string]string)}
		if err := s.fill(blank, id, again); err == nil {
			f.Clone, f.Lost = blank.Clone, blank.Lost
		}
	}
}

// again returns the page with the form and its inputs, and the error err about them.
func (s *server) again(r *http.Request, f *form, err error) (*answer, error) {
	if asJSON(r) {
		return nil, err
	}
	s.prepare(r.Context(), f)
	code, text := s.told(r, err)
	f.Bad = cmp.Or(text, "it is wrong")
	f.Planned = ""
	return &answer{code: code, template: "start", title: "Start a job", body: f}, nil
}
