package mapper_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestFailureShare pauses a job when more than a share of its entities have failed.
func TestFailureShare(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(2)}, failing77)
		w.putAccounts(names(10000))
		s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 100, FailureShare: 0.005, FailureLimit: -1})
		if s.State != mapper.StatePaused || s.Failures < 11 || s.Failures > 20 ||
			!strings.Contains(s.Error, "entities have failed") {
			t.Errorf("status %+v", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(2)}, failing77)
		w.putAccounts(names(10000))
		if s := over(w, failing77,
			&mapper.StartOptions{PageSize: 100, FailureShare: 0.05}); s.State != mapper.StateSucceededWithFailures ||
			s.Failures != 100 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestPausedTwice pauses a job that its limit has paused: it is waited for no
// longer, and Resume does not allow more failures.
func TestPausedTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Calls take their time, so that the job does not get far between Resume and Pause.
		f := emulator.NewFaults(1,
			emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Uniform{Min: time.Millisecond,
				Max: time.Millisecond}})
		w := newWorld(t, setting{queue: few(1), emulator: emulator.Options{Faults: f}}, failing77)
		w.putAccounts(names(10000))
		s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 100, FailureLimit: 20})
		job := w.engine.Job("j")
		if s.State != mapper.StatePaused || s.Failures != 21 {
			t.Fatalf("status %+v", s)
		}
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(job); s.State != mapper.StatePaused || s.Error != "" {
			t.Errorf("status %+v", s)
		}
		time.Sleep(time.Minute)
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StatePaused || s.Failures != 42 {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestFailureJSON encodes a failure, as handlers do.
func TestFailureJSON(t *testing.T) {
	t.Parallel()
	key := datastore.NameKey("Account", "a", nil)
	encoded, err := json.Marshal(mapper.Failure{Key: key, Error: "no", Attempts: 5, Time: epoch})
	if want := `{"key":"` + key.Encode() + `","error":"no","attempts":5,"time":"2020-01-01T00:00:00Z"}`; err != nil ||
		string(encoded) != want {
		t.Errorf("%s, %v, want %s", encoded, err, want)
	}
}
