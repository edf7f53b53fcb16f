package emulator_test

import (
	"testing"

	"github.com/scattermap/scattermap/emulator"
)

func TestOptions(t *testing.T) {
	for _, o := range []emulator.Options{{ScatterOneIn: -1}, {ScatterOneIn: 1 << 20}, {QueryBatchSize: -1},
		{DatastoreAddr: "nowhere"},
		{TasksAddr: "nowhere"}, {KeysAddr: "nowhere"}} {
		if e, err := emulator.Start(&o); err == nil {
			e.Close()
			t.Errorf("%+v: no error", o)
		}
	}
}
