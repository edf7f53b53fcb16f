package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// A view is the data of a job's page.
type view struct {
	Status    status                `json:"status"`
	Causes    []cause               `json:"causes"`
	History   []mapper.HistoryEntry `json:"history"`
	Ranges    []ranged              `json:"ranges"`
	Estimated bool                  `json:"estimated"` // whether Ranges is a sample
	Kept      bool                  `json:"kept"`      // whether the records of the ranges still exist
	Series    []picture.Moment      `json:"series"`
	Levels    []picture.Level       `json:"levels"`
	Pages     picture.Pages         `json:"pages"`

	Standing  standing `json:"-"`
	Undoes    string   `json:"-"` // the ID of the job that this undo undoes; empty: the job is no undo
	Rehearsed bool     `json:"-"`
	Writes    bool     `json:"-"` // whether the job can write entities
	Young     bool     `json:"-"` // whether the job has started within the last ten seconds
	PerSecond string   `json:"-"` // the name of the chart of the job's speed
	// the name of the mapper; for a rehearsal, the name of the rehearsed mapper
	Name         string           `json:"-"`
	Strip        strip            `json:"-"`
	Chosen       picture.Colour   `json:"-"`
	Colours      []picture.Colour `json:"-"`
	Rates        chart            `json:"-"`
	Busy         chart            `json:"-"`
	Tree         []branch         `json:"-"`
	Alone        int64            `json:"-"` // number of ranges of single entities, which Tree leaves out
	Notable      []ranged         `json:"-"`
	Verbs        []verb           `json:"-"`
	Clonable     bool             `json:"-"` // whether the form can start the job again
	Logs         string           `json:"-"`
	MoreCounters int              `json:"-"` // number of counters for which the page has no room
	Counters     []counter        `json:"-"`
	Settings     []setting        `json:"-"`
}

// A counter is one of a job's counters, with its value.
type counter struct {
	Name string
	N    int64
}

// A setting is one of a job's settings, with its value as a text.
type setting struct{ Name, Value string }

const (
	moments      = 60 // number of moments in a chart
	manyNotable  = 12
	manyCounters = 200 // largest number of counters on a page
)

// id returns the ID of a job or range from a request's parameters. The ID is in the parameter that
// is called like the value of name. If that one is missing or empty, id returns an error.
func id(q url.Values, name string) (string, error) {
	if id := q.Get(name); id != "" {
		return id, nil
	}
	return "", operator.BadRequest(fmt.Sprintf("the parameter %s is missing: it is the ID of a job", name))
}

// A look is a job's status together with its picture.
type look struct {
	status  *mapper.Status
	picture *picture.Picture
}

// look returns the status and the picture of a job, from the cache or from the database.
func (s *server) look(ctx context.Context, id string) (look, error) {
	return shared(ctx, &s.cache, "look\x00"+id, func(ctx context.Context) (l look, err error) {
		l.status, l.picture, err = picture.Look(ctx, s.engine, id)
		return l, err
	})
}

// job returns the page of a job.
func (s *server) job(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	chosen := picture.Colour(cmp.Or(q.Get("colour"), string(picture.ByState)))
	if !slices.Contains(picture.Colours, chosen) {
		return nil, operator.BadRequest(fmt.Sprintf("the parameter colour is %.100q, it has to be one of %s", chosen,
			strings.Trim(fmt.Sprint(picture.Colours), "[]")))
	}
	l, err := s.look(r.Context(), id)
	if err != nil {
		return nil, err
	}
	var undo *mapper.Status
	if by := l.status.UndoneBy; by != "" {
		if undo, err = s.status(r.Context(), by); err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
			return nil, err
		}
	}
	v, err := s.view(l.status, undo, l.picture, chosen)
	if err != nil {
		return nil, err
	}
	if undo := v.Status.Left(); undo != "" {
		if v.Status.Worst, err = s.leaving(r.Context(), undo); err != nil {
			return nil, err
		}
	}
	v.Standing = standingOf(&v.Status, v.History, time.Now())
	return &answer{template: "job", title: id, body: v,
		live: !l.status.State.Ended() || l.status.CleaningUp || undo != nil && !undo.State.Ended()}, nil
}

// view returns the data of a job's page. The argument undo is the status of the job that undoes it,
// or nil.
func (s *server) view(st, undo *mapper.Status, p *picture.Picture, chosen picture.Colour) (*view, error) {
	shown, err := s.statusOf(st)
	if err != nil {
		return nil, err
	}
	shown.Undo = undo
	causes := s.causesOf(p.Causes)
	if len(causes) > 0 {
		shown.Worst = operator.Line(causes[0].Example.Error, 200)
	}
	v := &view{
		Status: shown, Causes: causes, History: s.actsOf(p.History), Ranges: []ranged{},
		Estimated: p.Estimated, Kept: len(p.Ranges) > 0,
		Series: p.Series(moments), Levels: append([]picture.Level{}, p.Levels()...), Pages: p.Pages(), Chosen: chosen,
		Colours: picture.Colours,
		Verbs:   legal(st, s.engine), Clonable: s.clonable(st),
	}
	for _, r := range p.Ranges {
		v.Ranges = append(v.Ranges, s.rangedOf(r))
	}
	for _, i := range p.Notable(manyNotable) {
		if r := v.Ranges[i]; r.State != picture.Running || r.FailedAttempts() > 0 {
			v.Notable = append(v.Notable, r)
		}
	}
	v.Name, v.Rehearsed = strings.CutPrefix(st.Mapper, "rehearsal:")
	v.Undoes = operator.UndoneJob(st)
	v.Writes = st.Written > 0 || s.writes(v.Name)
	v.Young = time.Since(st.Created) < 10*time.Second
	v.PerSecond = map[bool]string{true: "Pages a second", false: "Entities a second"}[v.Undoes != ""]
	v.Strip = draw(st.ID, p, v.Ranges, chosen, st.Progress)
	v.Rates = chartOf(v.Series, func(m picture.Moment) float64 { return m.Rate })
	v.Busy = chartOf(v.Series, func(m picture.Moment) float64 { return m.Busy })
	v.Tree = branches(v.Levels)
	for i := range p.Ranges {
		if r := &p.Ranges[i]; r.Alone {
			v.Alone += int64(math.Round(r.Weight))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shown.Counters)) {
		v.Counters = append(v.Counters, counter{name, shown.Counters[name]})
	}
	v.MoreCounters = max(0, len(v.Counters)-manyCounters)
	v.Counters = v.Counters[:len(v.Counters)-v.MoreCounters]
	if v.Settings, err = settingsOf(st.Settings); s.LogURL != nil {
		v.Logs = s.LogURL(st.ID, "")
	}
	return v, err
}

// writes reports whether jobs of the mapper with a name may write entities: it is no Visit, or the
// engine does not have it.
func (s *server) writes(name string) bool {
	return !slices.ContainsFunc(s.engine.Mappers(), func(m mapper.MapperInfo) bool { return m.Name == name && m.Visit })
}

// settingsOf returns a job's settings with their names in JSON.
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
		short := strings.TrimSuffix(name, "_ns")
		all = append(all, setting{strings.ReplaceAll(short, "_", " "), valueOf(name, string(fields[name]))})
	}
	return all, nil
}

// valueOf returns the text of a setting's value for a page, from its name and value in JSON.
func valueOf(name, value string) string {
	switch n, err := strconv.ParseInt(value, 10, 64); {
	case err != nil:
	case strings.HasSuffix(name, "_ns") && time.Duration(n) == mapper.RetainAlways:
		return always
	case strings.HasSuffix(name, "_ns"):
		return time.Duration(n).String()
	case n == mapper.Unlimited:
		return noLimit
	}
	return value
}
