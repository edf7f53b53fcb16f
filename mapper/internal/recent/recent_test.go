package recent

import (
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
)

// TestForgets puts more keys into a map than it may have. The map must forget the keys that were
// used longest ago. It must keep keys in use, even if that makes it too large.
func TestForgets(t *testing.T) {
	var m Map[int, string]
	inUse := func(key int, _ string) bool { return key%10 == 0 }
	for key := range 50 {
		m.Put(key, "first", 100, inUse)
	}
	for key := 5; key < 8; key++ {
		if v, ok := m.Get(key); !ok || v != "first" {
			t.Fatalf("%d: %q, %v", key, v, ok)
		}
	}
	forgotten := m.Put(50, "last", 10, inUse)
	for key := range 51 {
		_, there := m.Peek(key)
		_, gone := forgotten[key]
		want := key%10 == 0 || 5 <= key && key < 8 || key == 49
		if there != want || gone == want {
			t.Errorf("%d is there: %v, was forgotten: %v", key, there, gone)
		}
	}
	var used Map[int, int]
	for key := range 30 {
		if gone := used.Put(key, key, 10, func(int, int) bool { return true }); len(gone) > 0 {
			t.Fatalf("forgotten, though in use: %v", gone)
		}
	}
	if gone := used.Put(0, 7, 10, nil); len(gone) != 20 {
		t.Errorf("%d are forgotten once none is in use, want 20", len(gone))
	}
	if v, ok := used.Get(0); !ok || v != 7 {
		t.Errorf("%d, %v", v, ok)
	}
	n := 0
	used.All(func(int, int) { n++ })
	if n != 10 {
		t.Errorf("%d are there, want 10", n)
	}
}
