package tally

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
)

// storedCounters is the JSON form of a [Counters] in a draft, to which another task adds more.
type storedCounters struct {
	Sums Grouped[Sum] `json:"sums,omitempty"`
	Over bool         `json:"over,omitempty"`
}

// MarshalJSON returns the counters in their stored form.
func (t Counters) MarshalJSON() ([]byte, error) {
	if len(t.sums) <= few {
		return json.Marshal(storedCounters{t.sums, t.over})
	}
	short := make(Grouped[decimal], len(t.sums))
	for name, n := range t.sums {
		short[name] = decimal(n)
	}
	return json.Marshal(struct {
		Sums Grouped[decimal] `json:"sums"`
	}{short})
}

// UnmarshalJSON reads the stored form of counters.
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

// MarshalText encodes the sum for JSON, in base64.
func (a Sum) MarshalText() ([]byte, error) {
	return base64.RawStdEncoding.AppendEncode(nil, a.Bytes()), nil
}

// A decimal is a Sum whose text is a decimal number if it fits into an int64.
type decimal Sum

// MarshalText encodes the sum for JSON: as a decimal number if it fits into an int64, and otherwise
// in base64.
func (d decimal) MarshalText() ([]byte, error) {
	if d.hi == int64(d.lo)>>63 {
		return strconv.AppendInt(nil, int64(d.lo), 10), nil
	}
	return Sum(d).MarshalText()
}

// UnmarshalText decodes a sum in either of its two forms: a decimal number, or base64.
func (a *Sum) UnmarshalText(text []byte) error {
	if len(text) < base64.RawStdEncoding.EncodedLen(16) {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return fmt.Errorf("the stored sum %.50q is invalid", text)
		}
		*a = Sum{n >> 63, uint64(n)}
		return nil
	}
	b, err := base64.RawStdEncoding.AppendDecode(nil, text)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("the stored sum %.50q is invalid", text)
	}
	*a = SumOf(b)
	return nil
}
