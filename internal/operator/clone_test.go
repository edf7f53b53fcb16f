package operator_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// TestClone checks the arguments that start a job again.
func TestClone(t *testing.T) {
	t.Parallel()
	const queue = "projects/p/locations/l/queues/night"
	settings := mapper.StartOptions{ID: "old", PageSize: 20, Retain: mapper.RetainAlways, EntityTimeout: time.Second}
	copied := settings
	copied.ID, copied.Queue = "", queue
	rehearsed := copied
	rehearsed.DryRun = true
	namespace := mapper.Query{Namespace: "acme"}
	for name, test := range map[string]struct {
		mapper, params string
		query          mapper.Query
		want           operator.Start
	}{
		"a job": {"m", `{"a": 1}`, mapper.Query{Kind: "K", KeysOnly: true}, operator.Start{Mapper: "m",
			Params: []byte(`{"a": 1}`), Query: mapper.Query{Kind: "K", KeysOnly: true}, StartOptions: copied}},
		"a rehearsal": {"rehearsal:m", `{}`, mapper.Query{Kind: "K"}, operator.Start{Mapper: "m", Params: []byte(`{}`),
			Query: mapper.Query{Kind: "K"}, StartOptions: rehearsed}},
		"an erased namespace": {"erase", `{"words":["bob"]}`, mapper.Query{Kinds: []string{"A", "B"}, Namespace: "acme",
			KeysOnly: true}, operator.Start{Mapper: "erase", Params: []byte(`{"words":["bob"]}`), Query: namespace,
			StartOptions: copied}},
		"an erased tenant": {"erase", `{"property":"t","value":7,"all_kinds":true}`, mapper.Query{Kinds: []string{"A"},
			AllNamespaces: true}, operator.Start{Mapper: "erase", Params: []byte(`{"property":"t","value":7}`),
			Query: mapper.Query{AllNamespaces: true}, StartOptions: copied}},
		"an erased tenant of a kind": {"erase", `{"property":"t","value":7}`,
			mapper.Query{Kind: "A", Namespace: "acme"},
			operator.Start{Mapper: "erase", Params: []byte(`{"property":"t","value":7}`),
				Query: mapper.Query{Kind: "A", Namespace: "acme"}, StartOptions: copied}},
	} {
		got, ok := operator.Clone(&mapper.Status{ID: "old", Mapper: test.mapper, Query: test.query, Queue: queue,
			Params: json.RawMessage(test.params), Settings: settings})
		if diff := cmp.Diff(test.want, got); !ok || diff != "" {
			t.Errorf("%s: %v, -want +got: %s", name, ok, diff)
		}
	}
	for _, undo := range []string{"undo:m", "rehearsal:undo:m"} {
		if got, ok := operator.Clone(&mapper.Status{Mapper: undo}); ok {
			t.Errorf("%s: %+v", undo, got)
		}
	}
}

// TestJoinNames checks that NameList reads what JoinNames writes.
func TestJoinNames(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"a"}, {"", "a"}, {"a", "b c"}, {"a,b", `say "x"`, `"`}, {"#a", "é"}} {
		text := operator.JoinNames(names)
		if got, err := operator.NameList(text); err != nil || !slices.Equal(got, names) {
			t.Errorf("%q: %s, %q, %v", names, text, got, err)
		}
	}
}
