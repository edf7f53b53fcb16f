package operator_test

import (
	"slices"
	"testing"

	"github.com/scattermap/scattermap/internal/operator"
)

// TestNameList parses lists of names. A list that is not wholly names must be an error, because a
// job would otherwise run over fewer entities than the user has named.
func TestNameList(t *testing.T) {
	for text, want := range map[string][]string{
		"a": {"a"}, " a , b ": {"a", "b"}, ",a": {"", "a"}, `""`: {""}, `"a,b", c d`: {"a,b", "c d"},
		`"say ""hi"""`: {`say "hi"`}, "Zürich,東京": {"Zürich", "東京"}, "a\n": {"a"},
		"a\nb": nil, "a,b\r\nc": nil, "\"a\nb\"": {"a\nb"}, `a"b`: nil, `"a`: nil, `"a"b`: nil, "": nil,
	} {
		if got, err := operator.NameList(text); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestNameText checks that NameList reads a name as NameText writes it.
func TestNameText(t *testing.T) {
	for name, want := range map[string]string{"Account": "Account", "": `""`, "a b": "a b", "a,b": `"a,b"`,
		`say "hi"`: `"say ""hi"""`} {
		text := operator.NameText(name)
		if got, err := operator.NameList(text); text != want || err != nil || !slices.Equal(got, []string{name}) {
			t.Errorf("%q is %s, which is %q, %v", name, text, got, err)
		}
	}
}
