package operator_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestFilters checks the filters that AddCondition makes of GQL conditions. Keys of other projects
// must be refused, because a filter would take them for keys of the job's own project.
func TestFilters(t *testing.T) {
	for condition, filters := range map[string]string{
		`Seats > 10`: `{"property":"Seats","op":">","value":10}`,
		`a = 'x' AND b <= 1.5 AND c IS NULL`: `{"property":"a","op":"=","value":"x"},` +
			`{"property":"b","op":"<=","value":1.5},{"property":"c","op":"=","value":null}`,
		`day < DATETIME('2026-10-24T00:00:00Z')`: `{"property":"day","op":"<","value":{"time":"2026-10-24T00:00:00Z"}}`,
		`plan IN ARRAY('free', 'gold')`:          `{"property":"plan","op":"in","value":["free","gold"]}`,
		`active = TRUE`:                          `{"property":"active","op":"=","value":true}`,
	} {
		want := `{"kind":"K","filters":[` + filters + `]}`
		q := mapper.Query{Kind: "K"}
		if err := operator.AddCondition(&q, condition); err != nil {
			t.Error(err)
			continue
		}
		encoded, err := json.Marshal(q)
		var got, wanted any
		if err := errors.Join(err, json.Unmarshal(encoded, &got), json.Unmarshal([]byte(want), &wanted)); err != nil ||
			!reflect.DeepEqual(got, wanted) {
			t.Errorf("%s: %s, %v, want %s", condition, encoded, err, want)
		}
	}
	q := mapper.Query{Kind: "K"}
	if err := operator.AddCondition(&q,
		`__key__ >= KEY(K, 'a') AND __key__ < KEY(K, 7) AND __key__ HAS ANCESTOR KEY(Top, 1)`); err != nil ||
		q.Start.Name != "a" || q.End.ID != 7 || q.Ancestor.Kind != "Top" {
		t.Errorf("%+v, %v", q, err)
	}
	for _, condition := range []string{"ref = KEY(PROJECT('other'), A, 1)", "ref IN ARRAY(KEY(DATABASE('b'), A, 1))",
		"__key__ >= KEY(PROJECT('other'), K, 'a')", "__key__ HAS ANCESTOR KEY(DATABASE('b'), A, 1)"} {
		if err := operator.AddCondition(&q, condition); err == nil || !strings.Contains(err.Error(), "omit PROJECT") {
			t.Errorf("%s: %v", condition, err)
		}
	}
}

// TestNewID checks that jobs started in the same second get different IDs, and that the longest
// name of a mapper gives a valid ID.
func TestNewID(t *testing.T) {
	for _, mapper := range []string{"count", "a.b_c-d", strings.Repeat("m", 100)} {
		for _, rehearse := range []bool{false, true} {
			one, two := operator.NewID(mapper, rehearse), operator.NewID(mapper, rehearse)
			if one == two || !names.JobID(one) || strings.Contains(one, "-rehearsal-") != rehearse ||
				!strings.HasPrefix(one, strings.ReplaceAll(mapper[:min(len(mapper), 50)], ".", "-")) {
				t.Errorf("%s: %s, %s", mapper, one, two)
			}
		}
	}
}

// TestUndone checks the text for the result of an undo, and of an undo's rehearsal.
func TestUndone(t *testing.T) {
	for _, c := range []struct {
		mapper   string
		counters map[string]int64
		want     string
	}{
		{"undo:m", map[string]int64{"restored": 5999, "removed": 2, "left": 3},
			"5,999 entities restored, 2 new ones deleted, 3 not restored"},
		{"undo:m", map[string]int64{"restored": 5999, "already": 1},
			"5,999 entities restored, 0 not restored, 1 already as before"},
		{"rehearsal:undo:m", map[string]int64{"restored": 5999, "already": 1000},
			"it would restore 5,999 entities, and not restore 0; 1,000 are already as before"},
	} {
		if got := operator.Undone(&mapper.Status{Mapper: c.mapper, Counters: c.counters}); got != c.want {
			t.Errorf("%s %v: %s, want %s", c.mapper, c.counters, got, c.want)
		}
	}
}
