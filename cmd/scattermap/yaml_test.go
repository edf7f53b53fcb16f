package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestYAML converts many JSON values to YAML, parses the YAML, and compares the values. It also
// checks that strings which YAML 1.1 would parse as another type are quoted. The parser here is for
// YAML 1.2, and would not notice.
func TestYAML(t *testing.T) {
	texts := []string{
		"", " ", "a", "a b", "a  b", " a", "a ", "no", "No", "on", "OFF", "y", "N", "yes", "true", "Null", "~",
		"12:30:45", "1", "-1", "0x1f", "1e3", ".5", ".inf", "1_000", "2026-10-24",
		"2026-10-24T00:00:00Z", "- a", "a: b", "a #b", "#", "&a", "*a", "!a", "%a", "@a", "`a", "'a", `"a"`, `a\nb`,
		"a\nb", "a\r\n", "\ta", "\u007f", "\u0085", "\u0000", "\u2028", "\ufeff",
		"\u00a0", "\U0001f600", "\U000e0001", "ä", "[a", "{a", "a, b", "?", "|", ">", "=", "<<", "...", "---", "/a/b",
		"a-b", "-", "e5",
	}
	for _, s := range texts {
		for _, v := range []any{s, []any{s}, []any{[]any{s, s}, []any{}}, map[string]any{s: s},
			[]any{map[string]any{"a": s, "b": []any{s, map[string]any{}}, "c": map[string]any{"d": s, s: nil}}}} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var asIs any
			if err := json.Unmarshal([]byte(escaped(string(text))), &asIs); err != nil || !reflect.DeepEqual(asIs, v) {
				t.Errorf("%q is written as %s, which is read as %#v, %v", text, escaped(string(text)), asIs, err)
			}
			out, err := toYAML(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			var got any
			if err := yaml.Unmarshal(out, &got); err != nil || !reflect.DeepEqual(got, v) {
				t.Errorf("%q is written as\n%s, which is read as %#v, %v", text, out, got, err)
			}
		}
	}
	for _, s := range []string{"no", "No", "on", "OFF", "y", "N", "yes", "12:30:45", "2026-10-24", "0x1f", "1_000",
		"=", "<<", "~", "190:20:30", "0o7", "07", "1e3"} {
		text, _ := json.Marshal(s) // can't fail for a string
		if out, err := toYAML(text); err != nil || !bytes.HasPrefix(out, []byte(`"`)) {
			t.Errorf("%q is written as %s, %v, want quotes", s, out, err)
		}
	}
	if got, want := escaped(
		"{\"a\": \"é\u007f\u009b31m\u202e\U000e0001 \U0001f600\"}"),
		`{"a": "é\u007f\u009b31m\u202e\udb40\udc01 😀"}`; got != want {
		t.Errorf("for a terminal %s, want %s", got, want)
	}
	for in, want := range map[string]string{"9007199254740993": "9007199254740993", "1e-07": "1.0e-07",
		"1e+21": "1.0e+21", "-1.5E3": "-1.5e+3", "true": "true", "null": "null"} {
		if out, err := toYAML([]byte(in)); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s is written as %s, %v, want %s", in, out, err, want)
		}
	}
}

// TestIDs checks that commands refuse IDs of jobs that have a special meaning in a URL. They must
// do so before they send a request.
func TestIDs(t *testing.T) {
	for _, id := range []string{"", ".", "..", "a/b", "a/../b", "%2e", "a?b", "a#b", "a b", "a\n", "ä", "__a__",
		"../jobs", strings.Repeat("a", 101)} {
		for _, command := range []string{"describe", "watch", "pause", "resume", "abort", "retry", "move", "rate",
			"failures", "history", "undo", "left", "examples", "clean-up", "clone"} {
			err := run(t.Context(), []string{command, "--service", "http://127.0.0.1:1", "--", id},
				strings.NewReader("y\n"), new(bytes.Buffer), new(bytes.Buffer))
			if codeOf(err) != exitUsage {
				t.Errorf("%s %q: %v, want wrong usage", command, id, err)
			}
		}
		if err := checkPath(id); id != "" && err == nil && !strings.Contains(id, "/") {
			t.Errorf("the path %q is taken", id)
		}
	}
	for _, params := range []string{"", "{", `{"a": 1, "a": 2}`, `{"a": {"b": 1, "b": 2}}`, "{} {}", "\"\xff\""} {
		err := run(t.Context(), []string{"start", "m", "--kind", "K", "--service", "http://127.0.0.1:1", "--params",
			params}, nil, new(bytes.Buffer), new(bytes.Buffer))
		if codeOf(err) != exitUsage {
			t.Errorf("--params %s: %v, want wrong usage", params, err)
		}
	}
}
