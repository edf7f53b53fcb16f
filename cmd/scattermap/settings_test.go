package main

import (
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/setting/settingtest"
)

// TestErrorsNameFlags checks that errors call settings by their flags. Settings without a flag are
// called by their names in Go or JSON.
func TestErrorsNameFlags(t *testing.T) {
	newService(t, 100) // the rate is 1 entity a second, so that the first job still runs
	if _, stderr, code := command(t, "", words("start add-credit --kind Account --params '{\"Amount\": 1}' --id one "+
		"--rate 1 --expected-workers 10")...); code != 0 {
		t.Fatal(stderr)
	}
	for line, want := range map[string]string{
		"start add-credit --kind Account --page-size 1001":                "--page-size has to be",
		"start add-credit --kind Account --failure-limit -2":              "--failure-limit has to be",
		"start add-credit --kind Account --expected-workers 5001":         "--expected-workers has to be",
		"start add-credit --kind Account --rate -2":                       "--rate has to be",
		"start add-credit --kind Account --ramp --expected-workers 5000":  "--ramp begins",
		"start add-credit --kind Account --budget-operations 1":           "--budget is",
		"start add-credit --kind Account --queue nowhere":                 "nowhere",
		"start add-credit --kind Account --allow-empty":                   "(--allow-overlap)", // another job runs
		"start add-credit --kind Nothing":                                 "set --allow-empty",
		"start add-credit --kind __x__":                                   "--kind",
		"start add-credit --kind ScattermapJob":                           "--kind",
		"start add-credit --kind Account --namespace a*b":                 "--namespace",
		"start add-credit --kind Account --filter 'Balance < \"x\"'":      `"any_type" of the jobs API`,
		"start add-credit --kind Account --filter 'no < 1'":               "--filter",
		"start add-credit --kind Account --filter '__key__ >= KEY(b, 1)'": "--filter",
		"plan add-credit --kind Account --per-entity 24h":                 "--per-entity has to be",
		"plan add-credit --kind Account --page-size -1":                   "--page-size has to be",
		"plan add-credit --kind Account --concurrency 1001":               "--concurrency has to be",
		"rate one -- -2":                                                   "",
		"rate one 0.0001":                                                  "the rate has to be",
		"rate one 100 --writes 0.0001":                                     "--writes has to be",
		"rate one 100 --calls 0.0001":                                      "--calls has to be",
		"retry one --cause nothing":                                        "no failure has the cause",
		"clean-up one --yes --expire -1h":                                  "--expire",
		"start export --kind Account --params '{\"files\": -1}'":           `"files" in --params`,
		"start export --kind Account --params '{\"folder\": \"a//b\"}'":    "a//b",
		"start copy --kind Account --params '{\"kind\": \"__x__\"}' --yes": "kind",
	} {
		args := words(line)
		if args[0] == "start" && !strings.Contains(line, "--params") {
			args = append(args, "--params", `{"Amount": 1}`)
		}
		_, stderr, code := command(t, "", args...)
		if found := settingtest.GoNames(stderr); code == 0 || len(found) > 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s has the Go names %q, or not %q", line, code, stderr, found, want)
		}
		stderr = strings.ReplaceAll(stderr, `"entity_timeout_ns" of the jobs API`, "")
		for _, name := range []string{`_ns"`, `"page_size"`, `"rate`, `"filters"`, `"allow_`, `"failure_limit"`} {
			if strings.Contains(stderr, name) {
				t.Errorf("%s: %s names a setting as JSON does: %s", line, stderr, name)
			}
		}
	}
}

// TestOlderService answers like an older service, which does not mark the names of settings in
// errors. The errors must read like a current service's.
func TestOlderService(t *testing.T) {
	t.Parallel()
	c := newStart()
	for text, want := range map[string]string{
		`{"error": "\"page_size\" and \"rate.entities\" of \"kind\": \"failure_share\""}`: `--page-size and --rate ` +
			`of "kind": "failure_share" of the jobs API`,
		`{"error": "as it is"}`: "as it is", "no JSON": "no JSON",
		`{"error": "bad arguments: params: \"from\" and \"to\" are both \"page_size\""}`: `bad arguments: params: ` +
			`"from" and "to" are both "page_size"`,
		`{"error": "x", "error_parts": ["", "kind", " \"page_size\""]}`: `--kind "page_size"`,
	} {
		if got := inFlags(c, refusalOf([]byte(text))).Error(); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}
