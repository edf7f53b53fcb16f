package emulator

// TB is the part of a *testing.T that [ForTest] uses. The ForTest of package google uses it, too.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ForTest starts an emulator for a test, and closes it at the test's end. The test must close its
// clients before that: pass their Close to t.Cleanup after this call. A nil o has all defaults.
func ForTest(t TB, o *Options) *Emulator {
	t.Helper()
	e, err := Start(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(e.Close)
	return e
}
