package query

import (
	"encoding/json"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
)

// TestHashOf checks that the hashes of keys never change. A job over a share of the keys, and a
// later job over the other keys, may run in different builds.
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

// TestShareJSON checks that a share is stored as one of the filters, in a form that builds without
// shares refuse.
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

// TestShares checks that four shares together have each key exactly once, and that they have about
// the same size.
func TestShares(t *testing.T) {
	const keys = 10_000
	var in [4]int
	for n := range int64(keys) {
		key, parts := datastore.IDKey("K", n+1, nil), 0
		for i := range in {
			if (Share{int64(i), int64(i) + 1, 4}).Has(key) {
				in[i]++
				parts++
			}
		}
		if both := (Share{1, 3, 4}).Has(key); parts != 1 ||
			both != ((Share{1, 2, 4}).Has(key) || (Share{2, 3, 4}).Has(key)) {
			t.Errorf("%v is in %d parts", key, parts)
		}
		if !(Share{}).Has(key) {
			t.Errorf("%v is not in all", key)
		}
	}
	for i, n := range in {
		if n < keys/4-200 || n > keys/4+200 {
			t.Errorf("part %d has %d of %d", i, n, keys)
		}
	}
	quarter := Share{1, 2, 4}
	if quarter.Keys(25) != 100 || quarter.Part(100) != 25 || quarter.Part(1) != 1 || (Share{}).Keys(25) != 25 ||
		(Share{}).Part(25) != 25 {
		t.Errorf("a quarter of 100 is %d, and 25 are of %d", quarter.Part(100), quarter.Keys(25))
	}
}

// TestShareIs checks which shares are refused as invalid.
func TestShareIs(t *testing.T) {
	for value, ok := range map[any]bool{"0-1/100": true, "99-100/100": true, "0-1000/1000000": true, "1-1/100": false,
		"2-1/100": false, "-1-1/100": false, "0-101/100": false, "0-1/1001": false, "0-999/1000000": false,
		"0-2000000/2000000": false, "0-1": false, "00-1/100": false, "0-0/0": false, "": false, 5: false} {
		s, is, err := shareOf(where("__key__", "share", value))
		if !is || (err == nil) != ok || ok && s.Filter().Value != value {
			t.Errorf("%v: %+v, %v", value, s, err)
		}
	}
}
