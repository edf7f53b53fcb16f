package emulator

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ForTest starts an emulator, which is closed at the end of the test. The test's clients must be
// closed first: register that with t.Cleanup after this call.
func ForTest(t TB, o *Options) *Emulator {
	t.Helper()
	e, err := Start(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(e.Close)
	return e
}
