package tally

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
)

// TestPack checks that small texts are stored unchanged, and large ones compressed.
func TestPack(t *testing.T) {
	for _, c := range []struct {
		name  string
		text  string
		plain bool
	}{
		{"nothing", "", true},
		{"a small one", `{"a":1}`, true},
		{"the largest that is plain", strings.Repeat("x", plainBytes), true},
		{"one byte more", strings.Repeat("x", plainBytes+1), false},
	} {
		stored := Pack([]byte(c.text))
		if bytes.Equal(stored, []byte(c.text)) != c.plain || len(stored) > plainBytes {
			t.Errorf("%s: it is stored in %d bytes", c.name, len(stored))
		}
		if text, err := Unpack(stored); err != nil || string(text) != c.text {
			t.Errorf("%s: it is read as %.50q, %v", c.name, text, err)
		}
	}
	if text, err := Unpack(Compress([]byte("abc"))); err != nil || string(text) != "abc" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Unpack([]byte{packed, 0xff, 0xff}); err == nil {
		t.Error("what is no compressed text is read")
	}
}

// TestGrouped checks that the JSON of a large map has related names next to each other, and is
// decoded as the same map.
func TestGrouped(t *testing.T) {
	all := make(Grouped[int])
	for i := range few + 2 {
		all[fmt.Sprintf("%d of group", i)] = i
	}
	for _, name := range []string{"group", Min("group"), Max("group")} {
		all[name] = 1
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]int
	if err := json.Unmarshal(text, &read); err != nil || !maps.Equal(read, all) {
		t.Errorf("%d are read, %v", len(read), err)
	}
	if want := `"group":1,"max(group)":1,"min(group)":1`; !bytes.Contains(text, []byte(want)) {
		t.Errorf("%s are apart", want)
	}
	small, err := json.Marshal(Grouped[int]{"b": 1, "a": 2})
	if err != nil || string(small) != `{"a":2,"b":1}` {
		t.Errorf("a small one is %s, %v", small, err)
	}
}

// TestStored checks that encoding and decoding does not change counters: a few, many, and too many.
func TestStored(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(c *Counters)
	}{
		{"none", func(*Counters) {}},
		{"few", func(c *Counters) { c.Add("a", 1); c.Add("b", -1) }},
		{"large", func(c *Counters) { c.Add("a", math.MaxInt64); c.Add("a", math.MaxInt64) }},
		{"too many", (*Counters).Drop},
		{"many, and some of them large", func(c *Counters) {
			for i := range few + 1 {
				c.Add(fmt.Sprint(i), int64(-i))
			}
			c.Add("7", math.MinInt64)
			c.Add("8", math.MaxInt64)
			c.Add("8", math.MaxInt64)
		}},
	} {
		var was, is Counters
		c.make(&was)
		text, err := json.Marshal(was)
		if err == nil {
			err = json.Unmarshal(text, &is)
		}
		if err != nil || is.TooMany() != was.TooMany() || is.Empty() != was.Empty() || !maps.Equal(is.sums, was.sums) {
			t.Errorf("%s: %d counters are read, of %d; %v", c.name, len(is.sums), len(was.sums), err)
		}
	}
	for _, text := range []string{`[]`, `{"sums":{"a":"x"}}`, `{"sums":{"a":"????????????????????????"}}`} {
		if err := json.Unmarshal([]byte(text), new(Counters)); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}

// TestEncode checks how counters are encoded for a page's record. If there are too many, there must
// be an error.
func TestEncode(t *testing.T) {
	var c Counters
	if text, err := c.Encode(); text != nil || err != nil || !c.Empty() {
		t.Errorf("of nothing: %q, %v", text, err)
	}
	c.Add("b", 2)
	c.Add("a", -1)
	c.Add("b", 3)
	if text, err := c.Encode(); string(text) != `{"a":-1,"b":5}` || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	for i := range MaxInPage / 50 {
		c.Add(fmt.Sprintf("%050d", i), 1)
	}
	if _, err := c.Encode(); !errors.Is(err, ErrTooMany) {
		t.Errorf("%d counters of 50 bytes: %v", MaxInPage/50, err)
	}
	c.Drop()
	if _, err := c.Encode(); !errors.Is(err, ErrTooMany) || c.Empty() || !c.TooMany() {
		t.Errorf("of too many: %v", err)
	}
	var sum Counters
	sum.Add("a", 1)
	if sum.Merge(c); !sum.TooMany() {
		t.Error("too many and few are not too many")
	}
	if got := Would(strings.Repeat("ä", 100)); len(got) > maxCounterName || CheckName(got) != nil {
		t.Errorf("%q", got)
	}
}
