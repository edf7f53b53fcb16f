package operator_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/scattermap/scattermap/internal/operator"
)

// TestMissing checks which parameters a start lacks.
func TestMissing(t *testing.T) {
	t.Parallel()
	m := operator.Mapper{Params: []operator.MapperParam{{Name: "amount", Type: "integer"},
		{Name: "share", Type: "number"}, {Name: "age", Type: "nanoseconds"}, {Name: "until", Type: "time"},
		{Name: "in.x", Type: "integer"}, {Name: "a.b", Type: "integer"},
		{Name: "most", Type: "integer", Optional: true},
		{Name: "on", Type: "boolean"}, {Name: "name", Type: "text"}, {Name: "", Type: "integer"}}}
	all := []string{"amount", "share", "age", "until", "in.x", "a.b"}
	for params, want := range map[string][]string{
		``: nil, `[1]`: nil, `{}`: all,
		`{"most": 1, "on": true, "name": "x", "in": {}, "i": {"x": 1}}`:               all,
		`{"amount": 0, "until": null, "in": {"x": 1}}`:                                {"share", "age", "a.b"},
		`{"AMOUNT": 0, "Share": 1, "age": 1, "until": "x", "In": {"X": 1}, "a.b": 1}`: nil,
	} {
		if got := m.Missing(json.RawMessage(params)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", params, got, want)
		}
	}
}
