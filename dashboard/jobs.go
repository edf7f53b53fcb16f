package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// A row is the line of a job in the list of jobs.
type row struct {
	mapper.JobInfo
	Phase mapper.Phase `json:"phase,omitempty"` // empty if the job has ended
	Why   string       `json:"why,omitempty"`
	// whether the numbers of the job are known, from its record or its status
	Asked    bool             `json:"-"`
	Progress *mapper.Progress `json:"progress,omitempty"` // nil if the job has ended
	Strip    *miniStrip       `json:"-"`                  // a small picture of the job; nil: unknown
	Seen     status           `json:"-"`                  // what is known about undos, for its methods Undone and Past
}

// A list is the data of the page that lists jobs.
type list struct {
	Jobs     []row  `json:"jobs"`
	Next     string `json:"next,omitempty"`
	Searched int    `json:"searched,omitempty"` // number of jobs that were compared with the name in the filter

	// Counts has the number of jobs in each state. It ignores the filter's state and name. It is
	// empty if the database can't count.
	Counts map[mapper.State]int64 `json:"counts,omitempty"`

	Filter  filter   `json:"-"`
	Mappers []string `json:"-"`
	States  []tab    `json:"-"`
	Columns []column `json:"-"`
	Legend  []key    `json:"-"` // the legend of the rows' strips
	More    string   `json:"-"` // the address of the next page of the list
	Verbs   []verb   `json:"-"` // the actions that can be applied to several jobs at once
}

// A tab is a link to the list of jobs in one state.
type tab struct {
	Name    string
	N       int64
	Counted bool
	To      string
	Here    bool
}

// A column is the heading of a column of the list, with a link that sorts the list by this column.
type column struct {
	Name, To, Class string
	Here            bool
}

// A filter says which jobs the list has, and in which order.
type filter struct {
	State, Mapper, Name string
	From, Before        string // as the viewer has entered them
	Sort                string // the name of an order in the map orders; empty: the newest job first
	All                 bool

	from, before time.Time
}

// Set reports whether the filter has any condition.
func (f filter) Set() bool {
	return f.State != "" || f.Mapper != "" || f.Name != "" || f.From != "" || f.Before != ""
}

// filterOf reads the filter from a request's parameters.
func (s *server) filterOf(q url.Values) (f filter, err error) {
	f = filter{State: q.Get("state"), Mapper: q.Get("mapper"), Name: strings.TrimSpace(q.Get("name")),
		From: strings.TrimSpace(q.Get("from")), Before: strings.TrimSpace(q.Get("before")), Sort: q.Get("sort"),
		All: s.AllQueues}
	if said := q["all"]; len(said) > 0 { // the form sends false, and then also true if its box is checked
		f.All = said[len(said)-1] == "true"
	}
	if f.from, err = moment(f.From); err == nil {
		f.before, err = moment(f.Before)
	}
	if _, ok := orders[f.Sort]; err == nil && f.Sort != "" && !ok {
		err = operator.BadRequest(fmt.Sprintf("the parameter sort is %.100q, it has to be one of %s", f.Sort,
			strings.Join(slices.Sorted(maps.Keys(orders)), ", ")))
	}
	return f, err
}

// moment parses a time: a day, a minute as browsers write it, or RFC 3339. The time is in UTC,
// unless the text has another zone. An empty text is the zero time.
func moment(text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano} {
		if t, err = time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return t, operator.BadRequest(fmt.Sprintf("%.100q is no time: it is written as 2026-10-24 or 2026-10-24T15:04",
		text))
}

// to returns the address of the list with another filter. That filter differs from f in one
// parameter of the address: the one with the given name has the given value.
func (f filter) to(name, value string) string {
	q := make(url.Values)
	for n, v := range map[string]string{"state": f.State, "mapper": f.Mapper, "name": f.Name, "from": f.From,
		"before": f.Before, "sort": f.Sort, name: value} {
		if v != "" {
			q.Set(n, v)
		}
	}
	q.Set("all", strconv.FormatBool(f.All))
	return "./?" + q.Encode()
}

// options returns the conditions of the filter that [mapper.Engine.JobsPage] applies. The dashboard
// applies the name and the order.
func (f filter) options() *mapper.JobsOptions {
	return &mapper.JobsOptions{State: mapper.State(f.State), Mapper: f.Mapper, AllQueues: f.All, StartedFrom: f.from,
		StartedBefore: f.before}
}

// key returns a text that identifies the filter's options in the cache.
func (f filter) key() string {
	return fmt.Sprintf("%q", []string{f.State, f.Mapper, f.From, f.Before, strconv.FormatBool(f.All)})
}

// orders has a comparison of rows for each order of the list, except the order by start time.
var orders = map[string]func(a, b row) int{
	"id":       func(a, b row) int { return cmp.Compare(a.ID, b.ID) },
	"state":    func(a, b row) int { return cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)) },
	"progress": func(a, b row) int { return cmp.Compare(b.Done().Fraction, a.Done().Fraction) },
	"failures": func(a, b row) int { return cmp.Compare(b.Failures, a.Failures) },
	"cost":     func(a, b row) int { return cmp.Compare(b.Dollars, a.Dollars) },
}

// Limits of the list. On a page with many running jobs, up to manyStatuses statuses are read in
// each interval of length freshness, and up to manyAtOnce of them concurrently.
const (
	manyStatuses = 20
	manyAtOnce   = 8
	manyRows     = 100 // number of jobs on a page of the list
	manyPages    = 5   // number of pages of jobs that are searched for a name
)

// How long the cache keeps the status of an ended job, and the numbers of jobs in each state.
const (
	endedFresh  = time.Minute
	countsFresh = 10 * time.Second
)

// states are the states of jobs in the order of the tabs.
var states = []mapper.State{mapper.StateRunning, mapper.StatePaused, mapper.StateSucceeded,
	mapper.StateSucceededWithFailures,
	mapper.StateFailed, mapper.StateAborted}

// jobs returns the page that lists jobs.
func (s *server) jobs(r *http.Request, q url.Values) (*answer, error) {
	f, err := s.filterOf(q)
	if err != nil {
		return nil, err
	}
	l, err := s.list(r.Context(), f, q.Get("cursor"))
	if err != nil {
		return nil, err
	}
	if l.Counts, err = s.counts(r.Context(), f); err != nil {
		s.Logger.LogAttrs(r.Context(), slog.LevelWarn, "dashboard: the jobs are not counted", slog.Any("error", err))
	}
	for _, m := range s.engine.Mappers() {
		l.Mappers = append(l.Mappers, m.Name)
	}
	l.Filter = f
	l.States, l.Columns = l.tabs(), f.columns()
	for _, state := range miniStates {
		l.Legend = append(l.Legend, key{Class: string(state), Name: string(state)})
	}
	for _, v := range verbs {
		if v.Many {
			l.Verbs = append(l.Verbs, v)
		}
	}
	live := slices.ContainsFunc(l.Jobs, func(j row) bool { return !j.State.Ended() }) || q.Get("cursor") == ""
	if l.Next != "" {
		l.More = f.to("cursor", l.Next)
	}
	return &answer{template: "jobs", title: "Jobs", live: live, body: l}, nil
}

// tabs returns a link to the list of jobs in each state.
func (l *list) tabs() (all []tab) {
	sum := int64(0)
	for _, n := range l.Counts {
		sum += n
	}
	counted := len(l.Counts) > 0
	all = append(all, tab{"all", sum, counted, l.Filter.to("state", ""), l.Filter.State == ""})
	for _, state := range states {
		all = append(all, tab{string(state), l.Counts[state], counted, l.Filter.to("state", string(state)),
			l.Filter.State == string(state)})
	}
	return all
}

// columns returns the headings of the list's columns.
func (f filter) columns() (all []column) {
	for _, c := range []struct{ name, sort, class string }{{"Job", "id", ""}, {"State", "state", ""},
		{"Progress", "progress", ""}, {"Done", "-", ""}, {"Rate", "-", "num"},
		{"Time left", "-", ""}, {"Failures", "failures", "num"},
		{"Cost", "cost", "num"}, {"Started", "", "num"}} {
		v := column{Name: c.name, Class: c.class, Here: f.Sort == c.sort}
		if c.sort != "-" {
			v.To = f.to("sort", c.sort)
		}
		all = append(all, v)
	}
	return all
}

// counts returns the number of jobs in each state, from the cache or from the database. It ignores
// the filter's state and name.
func (s *server) counts(ctx context.Context, f filter) (map[mapper.State]int64, error) {
	f.State, f.Name = "", ""
	return kept(ctx, &s.cache, "counts\x00"+f.key(), countsFresh,
		func(ctx context.Context) (map[mapper.State]int64, error) {
			found := make([]int64, len(states))
			group, ctx := errgroup.WithContext(ctx)
			for i, state := range states {
				group.Go(func() (err error) {
					o := f.options()
					o.State = state
					found[i], err = s.engine.CountJobs(ctx, o)
					return err
				})
			}
			all := make(map[mapper.State]int64)
			err := group.Wait()
			for i, state := range states {
				all[state] = found[i]
			}
			return all, err
		})
}

// list reads a page of the jobs that a filter selects.
func (s *server) list(ctx context.Context, f filter, cursor string) (*list, error) {
	l := &list{Jobs: []row{}} // not nil, so that an empty list is [] in JSON
	for range manyPages {
		p, err := shared(ctx, &s.cache, "jobs\x00"+f.key()+cursor, func(ctx context.Context) (p struct {
			jobs []mapper.JobInfo
			next string
		}, err error) {
			p.jobs, p.next, err = s.engine.JobsPage(ctx, f.options(), cursor)
			return p, err
		})
		if err != nil {
			return nil, err
		}
		for _, j := range p.jobs {
			if strings.Contains(j.ID, f.Name) {
				l.Jobs = append(l.Jobs, row{JobInfo: j})
			}
		}
		if f.Name != "" {
			l.Searched += len(p.jobs)
		}
		if cursor, l.Next = p.next, p.next; cursor == "" || len(l.Jobs) >= manyRows {
			break
		}
	}
	err := s.statuses(ctx, l.Jobs)
	if order := orders[f.Sort]; order != nil {
		slices.SortStableFunc(l.Jobs, order)
	}
	return l, err
}

// statuses reads the statuses of jobs whose records do not have all numbers, and of undos, and adds
// them to the rows. If there are many running jobs, their statuses stay longer in the cache, so that
// a longer list causes no more reads. The row of a job that was just deleted stays unchanged.
func (s *server) statuses(ctx context.Context, rows []row) error {
	live, unended := 0, make(map[string]bool)
	for i := range rows {
		j := &rows[i]
		j.Error, unended[j.ID] = s.redact(TextError, j.Error), !j.State.Ended()
		if j.Asked = j.Counted; !j.Asked && !j.State.Ended() {
			live++
		}
	}
	fresh := freshness * time.Duration(max(1, (live+manyStatuses-1)/manyStatuses))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(manyAtOnce)
	glance := func(id string) (*mapper.Status, *miniStrip, error) {
		status, strip, err := s.glance(ctx, id, fresh, !unended[id])
		if errors.Is(err, mapper.ErrNoSuchJob) {
			return nil, nil, nil
		}
		return status, strip, err
	}
	for i := range rows {
		j := &rows[i]
		j.Seen.Status = &mapper.Status{UndoneBy: j.UndoneBy}
		switch {
		case j.UndoneBy != "":
			group.Go(func() (err error) {
				j.Seen.Undo, _, err = glance(j.Seen.UndoneBy)
				return err
			})
		case j.NotRestored > 0:
			group.Go(func() error {
				status, _, err := glance(j.ID)
				if status != nil {
					j.Seen.Status = status
				}
				return err
			})
		}
		if j.Asked {
			j.Strip = countedMini(j.State, j.Processed, j.Failures)
			continue
		}
		group.Go(func() error {
			status, strip, err := glance(j.ID)
			if status == nil {
				return err
			}
			j.Asked, j.State, j.Processed, j.Failures, j.Dollars = true, status.State, status.Processed,
				status.Failures, status.Dollars
			j.Strip, j.UndoneBy = strip, status.UndoneBy
			j.Error, j.Why = s.redact(TextError, status.Error), s.redact(TextError, status.Bottleneck)
			if j.Ended = status.Ended; !status.State.Ended() {
				j.Phase, j.Progress = status.Phase, &status.Progress
			}
			return nil
		})
	}
	return group.Wait()
}

// status returns the status of a job, from the cache or from the database.
func (s *server) status(ctx context.Context, id string) (*mapper.Status, error) {
	return shared(ctx, &s.cache, "status\x00"+id,
		func(ctx context.Context) (*mapper.Status, error) { return s.engine.Job(id).Status(ctx) })
}

// A glance is a job's status and its strip, made from the same reads.
type glance struct {
	status *mapper.Status
	strip  *miniStrip
}

// glance returns a glance at a job, from the cache or from the database. The parameter fresh is how
// long it stays in the cache. If it shows that the job has ended, it stays longer, unless the caller
// knows better: ended is false.
func (s *server) glance(
	ctx context.Context, id string, fresh time.Duration, ended bool,
) (*mapper.Status, *miniStrip, error) {
	g, err := keptBy(ctx, &s.cache, fmt.Sprintf("glance\x00%s\x00%v\x00%v", id, ended, !ended && fresh > freshness),
		func(g glance) time.Duration { return g.stays(fresh, ended) },
		func(ctx context.Context) (g glance, err error) {
			var p *picture.Picture
			if g.status, p, err = picture.Glance(ctx, s.engine, id); err != nil {
				return g, err
			}
			if g.strip = miniOf(p, g.status); g.strip == nil {
				g.strip = countedMini(g.status.State, g.status.Processed, g.status.Failures)
			}
			return g, nil
		})
	return g.status, g.strip, err
}

// stays returns how long the glance stays in the cache.
func (g glance) stays(fresh time.Duration, ended bool) time.Duration {
	if ended && g.status.State.Ended() {
		return endedFresh
	}
	return fresh
}

// Done returns the job's progress: the estimated share of entities that are done.
func (r row) Done() mapper.Progress {
	if r.Progress != nil {
		return *r.Progress
	}
	return mapper.Progress{}
}

// Runs reports whether the job is running and its progress is known.
func (r row) Runs() bool { return r.Progress != nil && r.State == mapper.StateRunning }

// Succeeded reports whether the job has ended, and has processed all entities or recorded them as
// failures.
func (r row) Succeeded() bool { return succeeded(r.State) }

// Undone returns a text about the undo of the job, see [status.Undone].
func (r row) Undone() string { return r.Seen.Undone() }

// Past reports whether the job's own state matters less than its undo, see [status.Past].
func (r row) Past() bool { return r.Seen.Past() }

// Undoes reports whether the job is an undo, which processes the pages of another job.
func (r row) Undoes() bool { return operator.Undoes(&mapper.Status{Mapper: r.Mapper}) }

// Took returns how long a job took. The job must have ended.
func (r row) Took() time.Duration { return r.Ended.Sub(r.Created) }

// Says returns the job's error, or the reason why it is not faster. It removes names from the text
// that the row already shows.
func (r row) Says() string {
	text := strings.ReplaceAll(cmp.Or(r.Why, r.Error), "job "+r.ID+": ", "")
	if r.Phase == mapper.PhaseOverBudget {
		text, _, _ = strings.Cut(text, ": ") // the rest is in the job's history
	}
	switch undo := r.Seen.Undo; {
	case undo != nil && undoneBy(undo) != "":
		text = "by " + r.UndoneBy
	case undo != nil:
		text = "its undo, " + r.UndoneBy + ", " + undidNot(undo)
	case r.UndoneBy != "":
		text = "undone, or being undone, by " + r.UndoneBy
	case r.NotRestored > 0:
		text = operator.Counted(r.NotRestored, "entity", "entities") + " not restored"
	}
	if text == string(r.State) {
		text = ""
	}
	if text == "" && r.Runs() && r.Processed+r.Failures == 0 {
		text = "no page is done yet"
	}
	return rangeID.ReplaceAllString(rangePrefix.ReplaceAllString(text, ""), "a range")
}
