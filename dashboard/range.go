package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/scattermap/scattermap/mapper/picture"
)

// A detail is the data of the page that shows one range.
type detail struct {
	Job   string   `json:"job"`
	Range oneRange `json:"range"`

	Rehearsed bool   `json:"-"` // whether the job is a rehearsal
	Writes    bool   `json:"-"` // whether the job can write entities
	Logs      string `json:"-"`
}

// A oneRange has all details of a range. Its texts are redacted.
type oneRange struct {
	*picture.Detail
	// the start of the range as redacted text; replaces the field of picture.Detail
	Start string `json:"start,omitempty"`
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`

	Namespace string          `json:"namespace,omitempty"`
	Counters  json.RawMessage `json:"counters,omitempty"`
}

// aRange returns the page of one range.
func (s *server) aRange(r *http.Request, q url.Values) (*answer, error) {
	job, err := id(q, "job")
	if err != nil {
		return nil, err
	}
	name := q.Get("range")
	d, err := shared(r.Context(), &s.cache, "range\x00"+job+"\x00"+name,
		func(ctx context.Context) (*picture.Detail, error) {
			return picture.RangeOf(ctx, s.engine.Client(), job, name)
		})
	if err != nil {
		return nil, err
	}
	shown := s.rangedOf(d.Range)
	v := &detail{Job: job, Range: oneRange{d, shown.Start, shown.End, shown.Error, s.redact(TextKey, d.Namespace), nil}}
	if len(d.Counters) > 0 {
		if v.Range.Counters, err = s.redactJSON(TextCounter, d.Counters); err != nil {
			return nil, err
		}
	}
	def, rehearsed := strings.CutPrefix(d.Mapper, "rehearsal:")
	v.Rehearsed, v.Writes = rehearsed, d.Written > 0 || s.writes(def)
	if s.LogURL != nil {
		v.Logs = s.LogURL(job, name)
	}
	return &answer{template: "range", title: "Range " + name, live: d.State == picture.Pending ||
		d.State == picture.Running, body: v}, nil
}
