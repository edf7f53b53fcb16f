package faults_test

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

// TestRefused checks that Start and Add refuse invalid rules, and that Start refuses the faults of
// another emulator.
func TestRefused(t *testing.T) {
	for name, rule := range map[string]faults.Rule{
		"no kind":           {},
		"a share above 1":   {Kind: faults.LoseCall, Share: 1.1},
		"no such method":    {Kind: faults.LoseCall, Methods: []string{"commit"}},
		"a method":          {Kind: faults.LoseReply, Methods: []string{"Commit"}},
		"an empty window":   {Kind: faults.LoseCall, After: time.Hour, Until: time.Minute},
		"a negative limit":  {Kind: faults.LoseCall, Limit: -1},
		"no latency":        {Kind: faults.SlowCall},
		"a bad latency":     {Kind: faults.SlowCall, Latency: faults.LogNormal{Median: time.Second}},
		"another's methods": {Kind: faults.AbortCommit, Methods: []string{"Lookup"}},
	} {
		if e, err := emulator.Start(&emulator.Options{Faults: faults.New(1, rule)}); err == nil {
			e.Close()
			t.Errorf("%s: no error", name)
		}
		if err := faults.New(1).Add(rule); err == nil {
			t.Errorf("%s, added: no error", name)
		}
	}
	f := faults.New(1)
	emulator.ForTest(t, &emulator.Options{Faults: f})
	if e, err := emulator.Start(&emulator.Options{Faults: f}); err == nil {
		e.Close()
		t.Error("two emulators with the same faults: no error")
	}
}
