package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper"
)

// A row is what the list says of a job.
type row struct {
	mapper.JobInfo
	Why      string           `json:"why,omitempty"`
	Asked    bool             `json:"-"`                  // its numbers are known
	Progress *mapper.Progress `json:"progress,omitempty"` // of a job that has not ended
}

// A list is the page of the jobs.
type list struct {
	Jobs     []row  `json:"jobs"`
	Next     string `json:"next,omitempty"`
	Searched int    `json:"searched,omitempty"` // how many jobs were searched for a name

	Filter  filter         `json:"-"`
	Mappers []string       `json:"-"`
	States  []mapper.State `json:"-"`
	More    string         `json:"-"` // the address of the next page
	Verbs   []verb         `json:"-"` // that can be done to several
}

// A filter chooses jobs.
type filter struct {
	State, Mapper, Name string
	All                 bool
}

// Set reports whether anything is left out.
func (f filter) Set() bool { return f.State != "" || f.Mapper != "" || f.Name != "" }

// Bounds of a list: how many jobs that have not ended are asked how they stand, and how many pages
// are looked through for a name.
const (
	manyStatuses = 20
	manyPages    = 5
)

// states are the states of jobs.
var states = []mapper.State{mapper.StateRunning, mapper.StatePaused, mapper.StateSucceeded,
	mapper.StateSucceededWithFailures,
	mapper.StateFailed, mapper.StateAborted}

// jobs answers with the list of jobs.
func (s *server) jobs(r *http.Request, q url.Values) (*answer, error) {
	all := s.AllQueues
	if said := q["all"]; len(said) > 0 { // the form says false, and then true if its box is checked
		all = said[len(said)-1] == "true"
	}
	f := filter{q.Get("state"), q.Get("mapper"), strings.TrimSpace(q.Get("name")), all}
	l, err := s.list(r.Context(), f, q.Get("cursor"))
	if err != nil {
		return nil, err
	}
	for _, m := range s.engine.Mappers() {
		l.Mappers = append(l.Mappers, m.Name)
	}
	l.Filter, l.States = f, states
	for _, v := range verbs {
		if v.Many {
			l.Verbs = append(l.Verbs, v)
		}
	}
	live := slices.ContainsFunc(l.Jobs, func(j row) bool { return !j.State.Ended() }) || q.Get("cursor") == ""
	if l.Next != "" {
		next := url.Values{"cursor": {l.Next}}
		for _, name := range []string{"state", "mapper", "name", "all"} {
			if v := q[name]; len(v) > 0 {
				next.Set(name, v[len(v)-1])
			}
		}
		l.More = "./?" + next.Encode()
	}
	return &answer{template: "jobs", title: "Jobs", live: live, body: l}, nil
}

// list reads the jobs that a filter leaves.
func (s *server) list(ctx context.Context, f filter, cursor string) (*list, error) {
	l := &list{Jobs: []row{}} // an empty list is no null
	o := &mapper.JobsOptions{State: mapper.State(f.State), Mapper: f.Mapper, AllQueues: f.All}
	for range manyPages {
		key := strings.Join([]string{"jobs", f.State, f.Mapper, cursor, map[bool]string{true: "all"}[f.All]}, "\x00")
		p, err := shared(ctx, &s.cache, key, func(ctx context.Context) (p struct {
			jobs []mapper.JobInfo
			next string
		}, err error) {
			p.jobs, p.next, err = s.engine.JobsPage(ctx, o, cursor)
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
		if cursor, l.Next = p.next, p.next; f.Name == "" || cursor == "" {
			break
		}
	}
	return l, s.statuses(ctx, l.Jobs)
}

// statuses reads the statuses of jobs whose records lack them: first of unfinished jobs, then of
// aborted and failed ones, up to a limit. A job that was just cleaned up is shown unchanged.
func (s *server) statuses(ctx context.Context, rows []row) error {
	var ask []*row
	for _, ended := range []bool{false, true} {
		for i := range rows {
			j := &rows[i]
			if j.Asked = j.Asked || j.Counted; !j.Counted && j.State.Ended() == ended && len(ask) < manyStatuses {
				ask = append(ask, j)
			}
		}
	}
	for i := range rows {
		rows[i].Error = s.redact(TextError, rows[i].Error)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, j := range ask {
		group.Go(func() error {
			status, err := s.status(ctx, j.ID)
			switch {
			case errors.Is(err, mapper.ErrNoSuchJob):
				return nil
			case err != nil:
				return err
			}
			j.Asked, j.State, j.Processed, j.Failures, j.Dollars = true, status.State, status.Processed,
				status.Failures, status.Dollars
			j.Error, j.Why = s.redact(TextError, status.Error), s.redact(TextError, status.Bottleneck)
			if j.Ended = status.Ended; !status.State.Ended() {
				j.Progress = &status.Progress
			}
			return nil
		})
	}
	return group.Wait()
}

// status returns how a job stands, or stood lately.
func (s *server) status(ctx context.Context, id string) (*mapper.Status, error) {
	return shared(ctx, &s.cache, "status\x00"+id, func(ctx context.Context) (*mapper.Status, error) {
		return s.engine.Job(id).Status(ctx)
	})
}

// Done returns which share of the job's entities is done, about.
func (r row) Done() mapper.Progress {
	if r.Progress != nil {
		return *r.Progress
	}
	return mapper.Progress{}
}

// Runs reports whether the job is getting on.
func (r row) Runs() bool { return r.Progress != nil && r.State == mapper.StateRunning }

// Took returns how long the job took, which has ended.
func (r row) Took() time.Duration { return r.Ended.Sub(r.Created) }

// Says returns why the job is not faster, or what is wrong with it.
func (r row) Says() string { return cmp.Or(r.Why, r.Error) }
