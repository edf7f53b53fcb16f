package pace

import (
	"testing"
	"time"
)

// A service takes calls for a time. It has a token for each that it accepts, and gets so many a
// second.
type service struct {
	limit  float64 // calls a second; 0: it is away
	broken int     // of so many calls one fails, whatever their rate; 0: none
	tokens float64
	calls  int
}

func (s *service) fails(since time.Duration) bool {
	s.calls++
	s.tokens = min(s.limit/10, s.tokens+s.limit*since.Seconds())
	if s.broken > 0 && s.calls%s.broken == 0 {
		return true
	}
	if s.tokens < 1 {
		return true
	}
	s.tokens--
	return false
}

// drive makes calls for a time, up to so many a second, and returns how many there were and failed
// in its second half.
func drive(b *Brake, s *service, most float64, from time.Time, during time.Duration) (calls Calls, end time.Time) {
	now, last := from, from
	for now.Sub(from) < during {
		now = now.Add(max(b.Wait(now, time.Minute), time.Duration(float64(time.Second)/most)))
		failed := s.fails(now.Sub(last))
		last = now
		b.Done(now, failed, failed)
		if now.Sub(from) > during/2 {
			calls.All++
			if failed {
				calls.Failed++
			}
		}
	}
	return calls, now
}

// TestBrake has 2,000 calls a second meet a service.
func TestBrake(t *testing.T) {
	for _, test := range []struct {
		name         string
		service      service
		least, most  float64 // calls a second that are accepted
		mostFailures float64 // share
	}{
		{"a limit of 100 a second", service{limit: 100}, 85, 101, 0.05},
		{"a limit of 1000 a second", service{limit: 1000}, 850, 1010, 0.05},
		{"no limit", service{limit: 1e6}, 1990, 2010, 0},
		{"no limit, and one entity of 100 is broken", service{limit: 1e6, broken: 100}, 1950, 2010, 0.011},
		{"no limit, and one entity of ten is broken", service{limit: 1e6, broken: 10}, 1700, 2010, 0.11},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, s := new(Brake), test.service
			calls, _ := drive(b, &s, 2000, time.Unix(0, 0), 4*time.Minute)
			accepted, failed := float64(calls.All-calls.Failed)/120, float64(calls.Failed)/float64(calls.All)
			if accepted < test.least || accepted > test.most || failed > test.mostFailures {
				t.Errorf("%.1f calls a second accepted, %.3f of them failed; %+v", accepted, failed, b)
			}
		})
	}
}

// TestBrakeGrows has a limit go away, and a service come back: the calls come as fast as before.
func TestBrakeGrows(t *testing.T) {
	for _, limit := range []float64{0, 10, 100} {
		b, s := new(Brake), &service{limit: limit}
		_, now := drive(b, s, 1000, time.Unix(0, 0), 10*time.Minute)
		s.limit = 1e6
		calls, _ := drive(b, s, 1000, now, 10*time.Minute)
		if rate := float64(calls.All) / 300; rate < 950 {
			t.Errorf("after a limit of %v: %.1f calls a second; %+v", limit, rate, b)
		}
	}
}
