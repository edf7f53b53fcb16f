package emulator

// TB has the methods of *testing.T that ForTest needs, in this package and in package google.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ForTest starts an emulator for a test, and closes it at the test's end. The test must close its
// clients before that: call t.Cleanup with their Close after ForTest. If o is nil, all options have
// their defaults.
func ForTest(t TB, o *Options) *Emulator {
	t.Helper()
	e, err := Start(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(e.Close)
	return e
}
