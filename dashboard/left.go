package dashboard

import (
	"context"
	"net/http"
	"net/url"
)

// A leaving is an entity that an undo did not restore, and why. Its texts are redacted.
type leaving struct {
	Key string `json:"key,omitempty"`
	Why string `json:"why"`
}

// A leavings is the data of the page that lists the entities which an undo did not restore.
type leavings struct {
	Left []leaving `json:"left"`
	Next string    `json:"next,omitempty"`

	Job  string `json:"-"`
	More string `json:"-"`
}

// leaving returns a text about one entity that an undo did not restore. The text is empty if the
// first records that have such entities name none.
func (s *server) leaving(ctx context.Context, undo string) (string, error) {
	return kept(ctx, &s.cache, "leaving\x00"+undo, endedFresh, func(ctx context.Context) (string, error) {
		all, _, err := s.engine.Job(undo).NotUndonePage(ctx, "")
		if err != nil || len(all) == 0 {
			return "", err
		}
		why := s.redact(TextError, all[0].Reason)
		if all[0].Key == nil {
			return why, nil
		}
		return s.keyOf(all[0].Key) + ": " + why, nil
	})
}

// left returns the page that lists the entities which an undo did not restore.
func (s *server) left(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	all, next, err := s.engine.Job(id).NotUndonePage(r.Context(), q.Get("cursor"))
	if err != nil {
		return nil, err
	}
	v := &leavings{Left: []leaving{}, Next: next, Job: id}
	for _, l := range all {
		shown := leaving{Why: s.redact(TextError, l.Reason)}
		if l.Key != nil {
			shown.Key = s.keyOf(l.Key)
		}
		v.Left = append(v.Left, shown)
	}
	if next != "" {
		v.More = "left?" + url.Values{"id": {id}, "cursor": {next}}.Encode()
	}
	return &answer{template: "left", title: "What " + id + " has left", body: v}, nil
}
