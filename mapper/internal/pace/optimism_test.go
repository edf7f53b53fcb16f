package pace

import "testing"

// TestOptimism has pages lose, and looks how many go without trying behind each.
func TestOptimism(t *testing.T) {
	var o Optimism
	wary := func() (n int) {
		for !o.Hopes() {
			n++
		}
		return n
	}
	if n := wary(); n != 0 {
		t.Errorf("%d pages are wary at first", n)
	}
	for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 64} {
		o.Ended(false)
		if n := wary(); n != want {
			t.Errorf("after %d pages that lost %d are wary, want %d", i+1, n, want)
		}
	}
	o.Ended(true)
	if n := wary(); n != 0 {
		t.Errorf("%d pages are wary after one that won", n)
	}
	o.Ended(false)
	if n := wary(); n != 1 {
		t.Errorf("%d pages are wary after another one that lost, want 1", n)
	}
}
