package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// between starts a proxy in front of the service, and makes it the service of the commands. It
// calls request with each request, and the text in its body, and sends the result. It calls answer
// with each answer of the service in the same way.
func between(
	t *testing.T, service string, request func(*http.Request, string) string,
	answer func(*http.Request, string) string,
) {
	t.Helper()
	to, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(body *io.ReadCloser, change func(string) string) int64 {
		text, err := io.ReadAll(*body)
		if err != nil {
			t.Error(err)
		}
		changed := []byte(change(string(text)))
		*body = io.NopCloser(bytes.NewReader(changed))
		return int64(len(changed))
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if r.Out.Body == nil {
				r.Out.Body = http.NoBody
			}
			r.Out.ContentLength = replace(&r.Out.Body, func(text string) string { return request(r.Out, text) })
		},
		ModifyResponse: func(r *http.Response) error {
			r.ContentLength = replace(&r.Body, func(text string) string { return answer(r.Request, text) })
			r.Header.Del("Content-Length")
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	t.Setenv("SCATTERMAP_SERVICE", server.URL)
}

// same is an argument of between that changes nothing.
func same(_ *http.Request, text string) string { return text }

// TestOlderServiceRefuses sends requests to a service that does not know one of their fields,
// parameters or paths. The error says so, and names the flag that the user can leave out.
func TestOlderServiceRefuses(t *testing.T) {
	service := newService(t, 10)
	command(t, "", words("start count --kind Account --id j --watch")...)
	const start = "start touch --kind Account "
	const deploy = ": deploy it with a newer scattermap"
	for _, test := range []struct{ line, unknown, want, else_ string }{
		{start + "--background", "background", "--background" + deploy, ", or leave --background out if"},
		{start + "--keys-only", "keys_only", "--keys-only" + deploy, ", or leave --keys-only out if"},
		{start + "--budget 5", "dollars", "--budget" + deploy, ", or leave --budget out if"},
		{start + "--budget-operations 50000", "operations", "--budget-operations" + deploy, ", or leave --budget-op"},
		{start + "--rate 5", "rate", "--rate" + deploy, ", or leave --rate out if"},
		{start + "--rate 5 --ramp", "ramp", "--ramp" + deploy, ", or leave --ramp out if"},
		{start + "--attempts 3", "attempts", "--attempts" + deploy, ", or leave --attempts out if"},
		{start + "--entity-timeout 3s", "entity_timeout_ns", "--entity-timeout" + deploy, ", or leave --entity-t"},
		{start + "--filter 'Balance = 1'", "filters", "--filter" + deploy, ", or leave --filter out if"},
		{start + "--reason x", "reason", "--reason" + deploy, ", or leave --reason out if"},
		{start + "--dry-run", "dry_run", "--dry-run" + deploy, ""},
		{"start delete --kind Account", "dry_run", `"dry_run"` + deploy, ""},
		{"plan touch --kind Account --per-entity 5ms", "per_entity_ns", "--per-entity" + deploy, ", or leave --per-"},
		{"plan touch --kind Account", "per_entity_ns", `"per_entity_ns"` + deploy, ""},
		{"jobs --all-queues", "all", "--all-queues" + deploy, ", or leave --all-queues out if"},
		{"jobs --state failed", "state", "--state" + deploy, ", or leave --state out if"},
		{"retry j --cause x", "cause", "--cause" + deploy, ", or leave --cause out if"},
		{"verify j --entities", "entities", "--entities" + deploy, ", or leave --entities out if"},
		{"verify j --at 2026-10-24T00:00:00Z", "read_time", "--at" + deploy, ", or leave --at out if"},
		{"rate j 5 --for 2h", "for_ns", "--for" + deploy, ", or leave --for out if"},
		{"clean-up j -y --failures", "failures", "--failures" + deploy, ", or leave --failures out if"},
		{"verify j", "/jobs/j/verify", "this request" + deploy, ""},
		{"mappers", "/jobs/mappers", "the list of mappers" + deploy, ""},
	} {
		t.Run(test.line, func(t *testing.T) {
			between(t, service, func(r *http.Request, body string) string {
				if r.URL.Path == test.unknown {
					r.URL.Path += "x"
				}
				q := r.URL.Query()
				if values, sent := q[test.unknown]; sent {
					q.Del(test.unknown)
					q[test.unknown+"_x"] = values
				}
				r.URL.RawQuery = q.Encode()
				return strings.ReplaceAll(body, `"`+test.unknown+`":`, `"`+test.unknown+`_x":`)
			}, func(_ *http.Request, text string) string {
				return strings.ReplaceAll(text, test.unknown+`_x\"`, test.unknown+`\"`)
			})
			out, errs, code := command(t, "", words(test.line)...)
			if code != exitError || out != "" || !strings.Contains(errs, "is older than this command line, and does "+
				"not know "+test.want+test.else_) || test.else_ == "" && strings.Contains(errs, ", or leave") {
				t.Errorf("exit code %d: %s%s", code, out, errs)
			}
		})
	}
	for line, want := range map[string]string{
		`start add-credit --kind Account --params '{"Amount":1,"Amonut":1}'`: `params: unknown field "Amonut"`,
		"retry j --cause x": "no failure",
	} {
		if _, errs, code := command(t, "", words(line)...); code != exitError || !strings.Contains(errs, want) ||
			strings.Contains(errs, "older") {
			t.Errorf("%s: exit code %d: %s", line, code, errs)
		}
	}
}

// widened returns a JSON value with an unknown field in each of its objects, as a newer service may
// add one. It leaves out objects whose names are data, and filters.
func widened(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = widened(v[i])
		}
	case map[string]any:
		for name, inner := range v {
			switch name {
			case "params", "counters", "filters":
			default:
				v[name] = widened(inner)
			}
		}
		v["newer"] = map[string]any{"a": []any{1}}
	}
	return v
}

// answering returns an argument of between that changes the JSON of answers.
func answering(t *testing.T, change func(any) any) func(*http.Request, string) string {
	t.Helper()
	return func(_ *http.Request, text string) string {
		var v any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Error(err)
		}
		changed, err := json.Marshal(change(v))
		if err != nil {
			t.Error(err)
		}
		return string(changed)
	}
}

// TestNewerService runs commands with a service whose answers have fields that the commands do not
// know. The commands print the same as without these fields.
func TestNewerService(t *testing.T) {
	service := newService(t, 30)
	broken.Store(true)
	t.Cleanup(func() { broken.Store(false) })
	const credit = "start add-credit --kind Account --params '{\"Amount\": 1}' --failure-limit -1 --watch "
	for _, line := range []string{credit + "--id j --filter 'Balance = 0'", credit + "--id tried --dry-run",
		"undo j --yes --watch"} {
		command(t, "", words(line)...)
	}
	lines := []string{"jobs -o json", "describe j", "describe j -o json", "failures j", "failures j --by-cause",
		"history j", "examples tried", "left undo-j", "watch j", "mappers", "mappers set -o json", "verify j",
		"plan add-credit --kind Account -o json", "pause j", "describe nobody"}
	said := func(line string) string {
		out, errs, _ := command(t, "", words(line)...)
		return normal(out + errs)
	}
	var want []string
	for _, line := range lines {
		want = append(want, said(line))
	}
	between(t, service, same, answering(t, widened))
	for i, line := range lines {
		if got := said(line); got != want[i] || !strings.Contains(got, "\n") {
			t.Errorf("%s prints\n%s\nwant\n%s", line, got, want[i])
		}
	}
	// The meaning of a filter may depend on a field that the command does not know.
	between(t, service, same, answering(t, func(v any) any {
		if object, ok := v.(map[string]any); ok {
			if query, ok := object["query"].(map[string]any); ok {
				query["filters"] = widened(query["filters"])
			}
		}
		return v
	}))
	if _, errs, code := command(t, "", "describe", "j"); code != exitError ||
		!strings.Contains(errs, "may be newer: a filter: unknown field") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestCloneOfNewerService clones a job with a query and settings that the command does not know. The
// clone has them, too.
func TestCloneOfNewerService(t *testing.T) {
	service := newService(t, 10)
	command(t, "", words("start touch --kind Account --id j --page-size 7 --watch")...)
	var posted string
	between(t, service, func(r *http.Request, body string) string {
		if r.Method == http.MethodPost {
			posted = body
			body = strings.NewReplacer(`"newer":{"a":[1]},`, "", `,"newer":{"a":[1]}`, "").Replace(body)
		}
		return body
	}, answering(t, widened))
	if out, errs, code := command(t, "", words("clone j --yes --id k --watch")...); code != 0 ||
		!strings.Contains(out, "k: succeeded") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	var body struct {
		Query map[string]any
		Newer any
		Size  int `json:"page_size"`
	}
	if err := json.Unmarshal([]byte(posted), &body); err != nil || body.Query["newer"] == nil || body.Newer == nil ||
		body.Query["kind"] != "Account" || body.Size != 7 {
		t.Errorf("%v: %s", err, posted)
	}
}

// TestMissingParams starts a job without its number. The command asks for it, unless the service is
// too old to know its parameters, or does not tell them.
func TestMissingParams(t *testing.T) {
	service := newService(t, 10)
	const missing = "missing parameters in --params: Amount; \"scattermap mappers add-credit\" lists the parameters"
	for _, c := range []struct {
		line string
		code int
		want string // a part of the output
	}{
		{"start add-credit --kind Account", 2, missing},
		{"start add-credit --kind Account --params {}", 2, missing},
		{"start add-credit --kind Account --params {\"Amount\":0} --id zero --watch", 0, "zero: succeeded"},
		{"start count --kind Account --id count --watch", 0, "count: succeeded"},
		{"start nobody --kind Account", 1, `unknown mapper "nobody"`},
	} {
		if out, errs, code := command(t, "", words(c.line)...); code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: exit code %d: %s%s", c.line, code, out, errs)
		}
	}
	between(t, service, func(r *http.Request, body string) string {
		r.URL.Path = strings.Replace(r.URL.Path, "mappers", "none", 1)
		return body
	}, same)
	if out, errs, code := command(t, "", words("start add-credit --kind Account --id old --watch")...); code != 0 ||
		!strings.Contains(out, "old: succeeded") {
		t.Errorf("an older service: exit code %d: %s%s", code, out, errs)
	}
}
