package tally

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// storedCounters is what a [Counters] is stored as, so that somebody else goes on adding up.
type storedCounters struct {
	Sums map[string]Sum `json:"sums,omitempty"`
	Over bool           `json:"over,omitempty"`
}

// MarshalJSON returns the counters as they are stored.
func (t Counters) MarshalJSON() ([]byte, error) { return json.Marshal(storedCounters{t.sums, t.over}) }

// UnmarshalJSON reads counters that were stored.
func (t *Counters) UnmarshalJSON(data []byte) error {
	var stored storedCounters
	if err := json.Unmarshal(data, &stored); err != nil {
		return err
	}
	*t = Counters{over: stored.Over}
	for name, n := range stored.Sums {
		t.addWide(name, n)
	}
	return nil
}

// MarshalText returns the sum as it is stored.
func (a Sum) MarshalText() ([]byte, error) {
	return base64.RawStdEncoding.AppendEncode(nil, a.Bytes()), nil
}

// UnmarshalText reads a sum that was stored.
func (a *Sum) UnmarshalText(text []byte) error {
	b, err := base64.RawStdEncoding.AppendDecode(nil, text)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("the sum %.50q is none", text)
	}
	*a = SumOf(b)
	return nil
}
