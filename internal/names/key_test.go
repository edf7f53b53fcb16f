package names_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestKey checks the texts that Key returns.
func TestKey(t *testing.T) {
	inside := datastore.IDKey("Bank", 7, nil)
	inside.Namespace = "acme"
	below := datastore.NameKey("Account", "ann", inside)
	below.Namespace = "acme"
	for want, key := range map[string]*datastore.Key{
		"":                                  nil,
		`/Account,"ann"`:                    datastore.NameKey("Account", "ann", nil),
		`[acme]/Bank,7/Account,"ann"`:       below,
		`/Größe 2,"a\"/b\n"`:                datastore.NameKey("Größe 2", "a\"/b\n", nil),
		`/"A,5/B",1`:                        datastore.IDKey("A,5/B", 1, nil),
		`/"line\n\x1b[31m\u2028",1`:         datastore.IDKey("line\n\x1b[31m\u2028", 1, nil),
		`/"\"A\"",1`:                        datastore.IDKey(`"A"`, 1, nil),
		`/A,1/B,"2"`:                        datastore.NameKey("B", "2", datastore.IDKey("A", 1, nil)),
		`/[acme],1`:                         datastore.IDKey("[acme]", 1, nil),
		`/` + strings.Repeat("k", 9) + `,1`: datastore.IDKey(strings.Repeat("k", 9), 1, nil),
	} {
		if got := names.Key(key); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestDifferentPaths checks that different paths have different texts, and that each text is one
// line.
func TestDifferentPaths(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func() string {
		text := ""
		for range 1 + r.IntN(3) {
			text += string([]rune("A1/,\"\\\n[")[r.IntN(8)])
		}
		return text
	}
	seen := make(map[string]*datastore.Key)
	for range 200_000 {
		var key *datastore.Key
		for range 1 + r.IntN(2) {
			if r.IntN(2) == 0 {
				key = datastore.IDKey(some(), int64(1+r.IntN(2)), key)
			} else {
				key = datastore.NameKey(some(), some(), key)
			}
		}
		text := names.Path(key)
		if other := seen[text]; other != nil && !other.Equal(key) || strings.Contains(text, "\n") {
			t.Fatalf("%s is the text of %#v and of %#v", text, key, other)
		}
		seen[text] = key
	}
}
