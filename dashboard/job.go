package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// A status is that of a job, as it may be seen.
type status struct {
	*mapper.Status
	Query  json.RawMessage `json:"query"` // in place of those of Status
	Params json.RawMessage `json:"params"`
	Error  string          `json:"error,omitempty"`
	Why    string          `json:"why,omitempty"`
}

// statusOf returns what may be seen of a status.
func (s *server) statusOf(from *mapper.Status) (v status, err error) {
	v = status{Status: from, Error: s.redact(Error, from.Error), Why: s.redact(Error, from.Why)}
	if v.Query, err = s.redactJSON(Params, from.Query); err == nil {
		v.Params, err = s.redactJSON(Params, from.Params)
	}
	return v, err
}

// A cause is that of some failures, as it may be seen.
type cause struct {
	Cause     string  `json:"cause"`
	Count     int64   `json:"count"`
	Estimated bool    `json:"estimated"`
	Example   failed  `json:"example"`
	Hash      string  `json:"-"` // of the cause itself, which may not be seen
	Share     float64 `json:"-"`
}

// hashOf returns what stands for a text.
func hashOf(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:8])
}

// A failed is an entity that has failed, as it may be seen.
type failed struct {
	Key      string    `json:"key"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	Time     time.Time `json:"time"`
}

func (s *server) failedOf(f mapper.Failure) failed {
	return failed{s.redact(Key, operator.Path(f.Key)), s.redact(Error, f.Error), f.Attempts, f.Time}
}

func (s *server) causesOf(from []mapper.Cause) []cause {
	all := []cause{}
	total := int64(0)
	for _, c := range from {
		total += c.Count
	}
	for _, c := range from {
		all = append(all, cause{s.redact(Error, c.Cause), c.Count, c.Estimated, s.failedOf(c.Example), hashOf(c.Cause), float64(c.Count) / float64(max(1, total))})
	}
	return all
}

// A ranged is a range, as it may be seen.
type ranged struct {
	picture.Range
	Start string `json:"start,omitempty"` // in place of those of Range
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}

func (s *server) rangedOf(r picture.Range) ranged {
	return ranged{r, s.place(r.Start), s.place(r.End), s.redact(Error, r.Error)}
}

// place writes a bound; an empty text is none.
func (s *server) place(p *picture.Place) string {
	if p == nil {
		return ""
	}
	text := ""
	if p.Value != nil {
		text = fmt.Sprintf("%v ", p.Value)
	}
	switch {
	case p.Key != nil && p.Key.Namespace != "":
		text += "[" + p.Key.Namespace + "]" + operator.Path(p.Key)
	case p.Key != nil:
		text += operator.Path(p.Key)
	default:
		text += fmt.Sprintf("the beginning of %s [%s]", p.Kind, p.Namespace)
	}
	return s.redact(Key, text)
}

// A view is the page of a job.
type view struct {
	Status    status           `json:"status"`
	Causes    []cause          `json:"causes"`
	History   []mapper.Act     `json:"history"`
	Ranges    []ranged         `json:"ranges"`
	Estimated bool             `json:"estimated"` // there are more ranges than these
	Kept      bool             `json:"kept"`      // the records of its ranges are there
	Series    []picture.Moment `json:"series"`
	Levels    []picture.Level  `json:"levels"`
	Pages     picture.Pages    `json:"pages"`

	Undone    string           `json:"-"` // what it has taken back, of an undo
	Rehearsed bool             `json:"-"`
	Strip     strip            `json:"-"`
	Chosen    picture.Colour   `json:"-"`
	Colours   []picture.Colour `json:"-"`
	Rates     chart            `json:"-"`
	Busy      chart            `json:"-"`
	Tree      []branch         `json:"-"`
	Notable   []ranged         `json:"-"`
	Verbs     []verb           `json:"-"`
	Logs      string           `json:"-"`
	Counters  []counter        `json:"-"`
	Foreign   bool             `json:"-"` // it belongs to another queue
	Settings  []setting        `json:"-"`
}

// A counter is one of a job.
type counter struct {
	Name string
	N    int64
}

// A setting is one that is in force.
type setting struct{ Name, Value string }

const (
	moments      = 60 // of a series
	manyNotable  = 12
	manyCounters = 200 // that a page shows
)

// id returns the ID of a job that parameters have.
func id(q url.Values, name string) (string, error) {
	if id := q.Get(name); id != "" {
		return id, nil
	}
	return "", operator.BadRequest(fmt.Sprintf("the parameter %s is missing: it is the ID of a job", name))
}

// A look is how a job stands, and its picture.
type look struct {
	status  *mapper.Status
	picture *picture.Picture
}

// look looks at a job, or has lately.
func (s *server) look(ctx context.Context, id string) (look, error) {
	return shared(ctx, &s.cache, "look\x00"+id, func(ctx context.Context) (l look, err error) {
		l.status, l.picture, err = picture.Look(ctx, s.engine, id)
		return l, err
	})
}

// job answers with the page of a job.
func (s *server) job(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	chosen := picture.Colour(cmp.Or(q.Get("colour"), string(picture.ByState)))
	if !slices.Contains(picture.Colours, chosen) {
		return nil, operator.BadRequest(fmt.Sprintf("the parameter colour is %q, it has to be one of %q", chosen, picture.Colours))
	}
	l, err := s.look(r.Context(), id)
	if err != nil {
		return nil, err
	}
	v, err := s.view(l.status, l.picture, chosen)
	if err != nil {
		return nil, err
	}
	return &answer{template: "job", title: id, live: !l.status.State.Ended() || l.status.Cleaning, body: v}, nil
}

// view returns what a job's page shows.
func (s *server) view(st *mapper.Status, p *picture.Picture, chosen picture.Colour) (*view, error) {
	shown, err := s.statusOf(st)
	if err != nil {
		return nil, err
	}
	v := &view{
		Status: shown, Causes: s.causesOf(p.Causes), History: append([]mapper.Act{}, p.History...), Ranges: []ranged{}, Estimated: p.Estimated, Kept: len(p.Ranges) > 0,
		Series: p.Series(moments), Levels: append([]picture.Level{}, p.Levels()...), Pages: p.Pages(), Chosen: chosen, Colours: picture.Colours,
		Verbs: legal(st, s.engine), Foreign: foreign(st, s.engine),
	}
	for _, r := range p.Ranges {
		v.Ranges = append(v.Ranges, s.rangedOf(r))
	}
	for _, i := range p.Notable(manyNotable) {
		v.Notable = append(v.Notable, v.Ranges[i])
	}
	v.Rehearsed = strings.HasPrefix(st.Mapper, "rehearsal:")
	if operator.Undoes(st) {
		v.Undone = operator.Undone(st)
	}
	v.Strip = draw(st.ID, p, v.Ranges, chosen)
	v.Rates = chartOf(v.Series, func(m picture.Moment) float64 { return m.Rate })
	v.Busy = chartOf(v.Series, func(m picture.Moment) float64 { return m.Busy })
	v.Tree = branches(v.Levels)
	for _, name := range slices.Sorted(maps.Keys(st.Counters)) {
		if v.Counters = append(v.Counters, counter{name, st.Counters[name]}); len(v.Counters) == manyCounters {
			break
		}
	}
	if v.Settings, err = settingsOf(st.Settings); s.Logs != nil {
		v.Logs = s.Logs(st.ID, "")
	}
	return v, err
}

// settingsOf lists settings by their names in JSON.
func settingsOf(o mapper.StartOptions) (all []setting, err error) {
	encoded, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, err
	}
	delete(fields, "id")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := string(fields[name])
		short, isTime := strings.CutSuffix(name, "_ns")
		if ns, err := strconv.ParseInt(value, 10, 64); isTime && err == nil {
			value = time.Duration(ns).String()
		}
		all = append(all, setting{strings.ReplaceAll(short, "_", " "), value})
	}
	return all, nil
}

// A detail is the page of a range.
type detail struct {
	Job   string   `json:"job"`
	Range oneRange `json:"range"`

	Logs string `json:"-"`
}

// A oneRange is a range with all that is known of it, as it may be seen.
type oneRange struct {
	*picture.Detail
	Start string `json:"start,omitempty"` // in place of those of Detail
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}

// aRange answers with the page of a range.
func (s *server) aRange(r *http.Request, q url.Values) (*answer, error) {
	job, err := id(q, "job")
	if err != nil {
		return nil, err
	}
	name := q.Get("range")
	d, err := shared(r.Context(), &s.cache, "range\x00"+job+"\x00"+name, func(ctx context.Context) (*picture.Detail, error) {
		return picture.RangeOf(ctx, s.engine.Client(), job, name)
	})
	if err != nil {
		return nil, err
	}
	shown := s.rangedOf(d.Range)
	v := &detail{Job: job, Range: oneRange{d, shown.Start, shown.End, shown.Error}}
	if s.Logs != nil {
		v.Logs = s.Logs(job, name)
	}
	return &answer{template: "range", title: "Range " + name, live: d.State == picture.Pending || d.State == picture.Running, body: v}, nil
}

// A failing is the page of the failures of a job.
type failing struct {
	Failures []failed `json:"failures"`
	Causes   []cause  `json:"causes"`
	Next     string   `json:"next,omitempty"`

	Job   string `json:"-"`
	More  string `json:"-"`
	Retry bool   `json:"-"` // its failures can be tried again
}

// failures answers with the page of a job's failures.
func (s *server) failures(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	cursor := q.Get("cursor")
	type some struct {
		failures []mapper.Failure
		next     string
	}
	group, ctx := errgroup.WithContext(r.Context())
	var found some
	var p *picture.Picture
	group.Go(func() (err error) {
		found, err = shared(ctx, &s.cache, "failures\x00"+id+"\x00"+cursor, func(ctx context.Context) (f some, err error) {
			f.failures, f.next, err = s.engine.Job(id).Failures(ctx, cursor)
			return f, err
		})
		return err
	})
	group.Go(func() (err error) {
		p, err = shared(ctx, &s.cache, "picture\x00"+id, func(ctx context.Context) (*picture.Picture, error) { return picture.Of(ctx, s.engine.Client(), id) })
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	v := &failing{Failures: []failed{}, Causes: s.causesOf(p.Causes), Next: found.next, Job: id}
	for _, f := range found.failures {
		v.Failures = append(v.Failures, s.failedOf(f))
	}
	if v.Next != "" {
		v.More = "failures?" + url.Values{"id": {id}, "cursor": {v.Next}}.Encode()
	}
	known := &mapper.Status{State: p.State, Undo: p.Undo, CleanedUp: p.Gone, Failures: int64(len(p.Causes))}
	v.Retry = slices.ContainsFunc(verbs, func(v verb) bool { return v.Name == "retry" && v.when(known) })
	return &answer{template: "failures", title: "Failures of " + id, live: cursor == "" && !p.Ended, body: v}, nil
}

// An example is what a rehearsal would do to an entity, as it may be seen.
type example struct {
	Key        string                   `json:"key"`
	What       string                   `json:"what"`
	Properties []mapper.ExampleProperty `json:"properties,omitempty"`
}

// An exampled is the page of what a rehearsal would do.
type exampled struct {
	Examples []example `json:"examples"`

	Job string `json:"-"`
}

// examples answers with the page of what a rehearsal would do to some entities.
func (s *server) examples(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	all, err := shared(r.Context(), &s.cache, "examples\x00"+id, func(ctx context.Context) ([]mapper.Example, error) {
		return s.engine.Job(id).Examples(ctx)
	})
	if err != nil {
		return nil, err
	}
	v := &exampled{Examples: []example{}, Job: id}
	for _, x := range all {
		shown := example{Key: s.redact(Key, operator.Path(x.Key)), What: x.What}
		for _, p := range x.Properties {
			shown.Properties = append(shown.Properties, mapper.ExampleProperty{Name: p.Name, Before: s.redact(Value, p.Before), After: s.redact(Value, p.After)})
		}
		v.Examples = append(v.Examples, shown)
	}
	return &answer{template: "examples", title: "What " + id + " would do", body: v}, nil
}

// A leaving is an entity that an undo has left as it is, as it may be seen.
type leaving struct {
	Key string `json:"key,omitempty"`
	Why string `json:"why"`
}

// A leavings is the page of what an undo has left.
type leavings struct {
	Left []leaving `json:"left"`
	Next string    `json:"next,omitempty"`

	Job  string `json:"-"`
	More string `json:"-"`
}

// left answers with the page of what an undo has left as it is.
func (s *server) left(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	all, next, err := s.engine.Job(id).Left(r.Context(), q.Get("cursor"))
	if err != nil {
		return nil, err
	}
	v := &leavings{Left: []leaving{}, Next: next, Job: id}
	for _, l := range all {
		shown := leaving{Why: s.redact(Error, l.Why)}
		if l.Key != nil {
			shown.Key = s.redact(Key, operator.Path(l.Key))
		}
		v.Left = append(v.Left, shown)
	}
	if next != "" {
		v.More = "left?" + url.Values{"id": {id}, "cursor": {next}}.Encode()
	}
	return &answer{template: "left", title: "What " + id + " has left", body: v}, nil
}
