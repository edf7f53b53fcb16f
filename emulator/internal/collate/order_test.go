package collate

import (
	"cmp"
	"strings"
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

// FuzzKeyForm checks that the ordered forms of names compare like the names, in both directions,
// and that no form is a prefix of another.
func FuzzKeyForm(f *testing.F) {
	f.Add("a", "b")
	f.Add("a", "a\x00")
	f.Add("", "\x00\x01")
	f.Add("\x00\xff", "\x00")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := string(appendBytes(nil, a)), string(appendBytes(nil, b))
		if got, want := strings.Compare(x, y), cmp.Compare(a, b); got != want {
			t.Errorf("%q and %q compare as %d, their forms as %d", a, b, want, got)
		}
		if a != b && (strings.HasPrefix(x, y) || strings.HasPrefix(y, x)) {
			t.Errorf("the form of one of %q and %q is a prefix of the other's", a, b)
		}
		down, other := Invert(x), Invert(y)
		if got, want := strings.Compare(down, other), cmp.Compare(b, a); got != want {
			t.Errorf("%q and %q compare as %d when descending, their forms as %d", a, b, want, got)
		}
	})
}
