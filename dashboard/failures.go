package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// A failing is the data of the page that lists a job's failures.
type failing struct {
	Failures []failed `json:"failures"`
	Causes   []cause  `json:"causes"`
	Next     string   `json:"next,omitempty"`

	Job   string `json:"-"`
	More  string `json:"-"`
	Retry bool   `json:"-"` // whether the job's failures can be retried now
}

// failures returns the page that lists a job's failures.
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
		found, err = shared(ctx, &s.cache, "failures\x00"+id+"\x00"+cursor,
			func(ctx context.Context) (f some, err error) {
				f.failures, f.next, err = s.engine.Job(id).FailuresPage(ctx, cursor)
				return f, err
			})
		return err
	})
	group.Go(func() (err error) {
		p, err = shared(ctx, &s.cache, "picture\x00"+id, func(ctx context.Context) (*picture.Picture, error) {
			return picture.Of(ctx, s.engine.Client(), id)
		})
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
	known := &mapper.Status{State: p.State, UndoneBy: p.Undo, CleanedUp: p.Gone, Failures: int64(len(p.Causes))}
	v.Retry = slices.ContainsFunc(verbs, func(v verb) bool { return v.Name == "retry" && v.when(known) })
	return &answer{template: "failures", title: "Failures of " + id, live: cursor == "" && !p.Ended, body: v}, nil
}
