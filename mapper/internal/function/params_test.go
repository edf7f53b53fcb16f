package function

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

type params struct{ Amount int }

func (p params) Validate() error {
	if p.Amount < 0 {
		return errors.New("the amount is negative")
	}
	if p.Amount == 99 {
		panic("ouch")
	}
	return nil
}

// TestEncodeParams checks how the parameters of a start are encoded, and which ones are refused.
func TestEncodeParams(t *testing.T) {
	for _, c := range []struct {
		name        string
		params      any
		want, wrong string
	}{
		{"fields", params{7}, `{"Amount":7}`, ""},
		{"none", struct{}{}, `{}`, ""},
		{"nothing that JSON has", make(chan int), "", "unsupported type"},
		{"fields that JSON does not see", struct{ amount int }{7}, "", "its fields are not exported"},
		{"more than a record has room for", struct{ S string }{strings.Repeat("x", maxParams)}, "",
			"above the maximum"},
	} {
		got, err := EncodeParams(c.params)
		if string(got) != c.want || (err == nil) != (c.wrong == "") || err != nil &&
			!strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %s, %v, want %s%s", c.name, got, err, c.want, c.wrong)
		}
	}
}

// TestDecodeParams checks how parameters in a record, and parameters of a start, are decoded. The
// rules for a start are stricter.
func TestDecodeParams(t *testing.T) {
	for _, c := range []struct {
		encoded     string
		want        int
		wrong       string // the error of both
		wrongAtOnce string // the error of a start only
	}{
		{encoded: `{"Amount":7}`, want: 7},
		{encoded: `{}`},
		{encoded: ``, wrong: "none are written as {}"},
		{encoded: `null`, wrong: "none are written as {}"},
		{encoded: `{"Amuont":7}`, wrong: "Amuont"},
		{encoded: `{"Amount":7} {}`, wrong: "params: "},
		{encoded: `{"Amount":"7"}`, wrong: "params: "},
		{encoded: `{"Amount":-1}`, want: -1, wrongAtOnce: "the amount is negative"},
		{encoded: `{"Amount":99}`, want: 99, wrongAtOnce: "panic: ouch"},
	} {
		var p, q params
		check := func(err error, wrong string, got int) {
			t.Helper()
			if wrong == "" && (err != nil || got != c.want) ||
				wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
				t.Errorf("%s: %d, %v, want %d, or an error with %q", c.encoded, got, err, c.want, wrong)
			}
		}
		check(DecodeParams(json.RawMessage(c.encoded), &p), c.wrong, p.Amount)
		check(ReadParams(json.RawMessage(c.encoded), &q), c.wrong+c.wrongAtOnce, q.Amount)
	}
	negative := &params{-1}
	if err := Validate(&negative); err == nil {
		t.Error("what parameters point to is not checked")
	}
	if err := Validate(new(int)); err != nil {
		t.Error(err)
	}
}

// TestModes checks the assumed number of writes, and the longest timeout, of each mode of mappers.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode     Mode
		deadline time.Duration
		writes   float64
		longest  time.Duration
	}{
		{Update, 10 * time.Minute, 1, MaxInTransaction},
		{Update, 40 * time.Second, 1, 20 * time.Second},
		{Visit, 10 * time.Minute, 0, 5 * time.Minute},
		{Rehearse, 10 * time.Minute, 0, 5 * time.Minute},
	} {
		if w, l := c.mode.Writes(), c.mode.Longest(c.deadline); w != c.writes || l != c.longest ||
			c.mode.Updates() != (c.mode != Visit) {
			t.Errorf("mode %d: %v writes, %v", c.mode, w, l)
		}
	}
}
