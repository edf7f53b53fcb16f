package query

import (
	"encoding/json"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
)

// TestHashOf has the hashes of keys be what they were: a canary and the job over the rest may be
// run by different builds.
func TestHashOf(t *testing.T) {
	parent := datastore.NameKey("Bank", "b", nil)
	inside := datastore.IDKey("Account", 5, parent)
	inside.Namespace = "n"
	for _, c := range []struct {
		key  *datastore.Key
		want uint64
	}{
		{datastore.IDKey("Account", 5, nil), 0xe4db81fe06760a8f},
		{datastore.NameKey("Account", "5", nil), 0xf0fde9b5656534c6},
		{datastore.IDKey("Account", 5, parent), 0xab45a9c84dafd9b7},
		{inside, 0x1e210f39f10d5b9a},
	} {
		if got := hashOf(c.key); got != c.want {
			t.Errorf("the hash of %v is %#x, want %#x", c.key, got, c.want)
		}
	}
}

// TestShareJSON has a share be recorded as a filter that builds without shares refuse, beside
// others.
func TestShareJSON(t *testing.T) {
	q, err := Query{Kind: "K", Filters: []Filter{{Property: "a", Op: "=", Value: int64(1)},
		Share{0, 1, 100}.Filter()}}.Normal(true)
	if err != nil || q.Share != (Share{0, 1, 100}) || len(q.Filters) != 1 {
		t.Fatalf("%+v, %v", q, err)
	}
	text, err := json.Marshal(q)
	const want = `{"kind":"K","filters":[{"property":"a","op":"=","value":1},` +
		`{"property":"__key__","op":"share","value":"0-1/100"}]}`
	if err != nil || string(text) != want {
		t.Errorf("the query is recorded as %s, want %s; %v", text, want, err)
	}
	var again Query
	if err := json.Unmarshal(text, &again); err != nil || cmp.Diff(q, again) != "" {
		t.Errorf("it is read as %+v, want %+v; %v", again, q, err)
	}
}
