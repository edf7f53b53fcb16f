package dashboard

import (
	"context"
	"net/http"
	"net/url"

	"github.com/scattermap/scattermap/mapper"
)

// An example is a change that a rehearsed job would make to one entity. Its texts are redacted.
type example struct {
	Key        string                   `json:"key"`
	What       string                   `json:"what"`
	Properties []mapper.ExampleProperty `json:"properties,omitempty"`
}

// An exampled is the data of the page that shows examples of a rehearsal's changes.
type exampled struct {
	Examples []example `json:"examples"`

	Job string `json:"-"`
}

// examples returns the page that shows some changes which a rehearsed job would make.
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
		shown := example{Key: s.keyOf(x.Key), What: x.What}
		for _, p := range x.Properties {
			shown.Properties = append(shown.Properties,
				mapper.ExampleProperty{Name: p.Name, Before: s.redact(TextValue, p.Before),
					After: s.redact(TextValue, p.After)})
		}
		v.Examples = append(v.Examples, shown)
	}
	return &answer{template: "examples", title: "What " + id + " would do", body: v}, nil
}
