package main

import (
	"strings"
	"testing"
)

// TestFlagsOfScripts checks mistakes that are typical of scripts: an unset variable makes a flag
// empty, and a loop repeats a flag. The command must return an error, and not work on more or on
// other things.
func TestFlagsOfScripts(t *testing.T) {
	newService(t, 10)
	const start = "start add-credit --kind Account --params {\"Amount\":1} "
	for line, want := range map[string]string{
		start + "--share ''":                       "--share\" flag: it is empty",
		start + "--except ''":                      "it is empty",
		start + "--id ''":                          "it is empty",
		start + "--queue ''":                       "it is empty",
		start + "--kind Other":                     "--kind\" flag: the flag is given twice",
		start + "--params {}":                      "given twice",
		start + "--namespace a --namespace b":      "given twice",
		start + "--namespaces ''":                  "it is empty",
		start + "--namespaces a --namespaces b":    "given twice",
		start + "--namespaces a --namespace b":     "set only one of --namespace, --namespaces and --all-namespaces",
		start + "--kinds a":                        "set only one of --kind and --kinds",
		start + "--kinds 'a,\"'":                   "names with commas between them",
		start + "--namespaces 'a\nb'":              "names with commas between them",
		start + "--page-time 5":                    "--page-time\" flag: it has to be a time such as 90s or 2h",
		start + "--entity-timeout 1d":              "--entity-timeout\" flag: it has to be a time such as 90s or 2h",
		start + "--read-time 0001-01-01T00:00:00Z": "--read-time\" flag: it has to be like 2006-01-02T15:04:05Z",
		"verify one --at 0001-01-01T00:00:00Z":     "--at\" flag: it has to be like 2006-01-02T15:04:05Z",
		"failures one --limit 5 --all":             "set only one of --all and --limit",
		"left one --limit 5 --all":                 "set only one of --all and --limit",
		"failures one --by-cause --limit 5":        "--by-cause lists all causes: leave out --all and --limit",
		"failures one --by-cause --all":            "--by-cause lists all causes: leave out --all and --limit",
		start + "--attempts 0":                     "more than 0",
		start + "--page-time 0s":                   "more than 0",
		start + "--entity-timeout 0s":              "more than 0",
		start + "--read-time today":                "--read-time\" flag: it has to be like 2006-01-02T15:04:05Z",
		start + "--failure-limit 0":                "--failure-limit\" flag: it has to be more than 0",
		start + "--page-size 0":                    "more than 0",
		start + "--concurrency 00":                 "more than 0",
		start + "--expected-workers 0":             "more than 0",
		start + "--rate NaN":                       "--rate\" flag: it has to be a finite number",
		start + "--rate -inf":                      "a finite number",
		start + "--budget inf":                     "a finite number",
		"plan add-credit --per-entity 0":           "more than 0",
		"rate one 5 --writes NaN":                  "a finite number",
		"retry one --cause ''":                     "it is empty",
		"stop-all --yes --mapper ''":               "it is empty",
		"jobs --state ''":                          "it is empty",
		"jobs --service ''":                        "it is empty",
		"jobs --mapper a --mapper b":               "given twice",
		"splits --kind a --kind b --parts 2":       "given twice",
		"left one --limit 5 --limit 6":             "given twice",
		"clean-up one --yes --expire '' --job":     "it is empty",
		"emulator --dashboard localhost:1":         "write --dashboard=localhost:1",
	} {
		if _, stderr, code := command(t, "", words(line)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s, want %q", line, code, stderr, want)
		}
	}
	for _, line := range []string{
		start + "--namespace '' --reason '' --share 99% --id one -o table -o json",
		start + "--filter 'Balance >= 0' --filter 'Balance < 9' --id two --rate 0 --budget 0 --dry-run --dry-run",
	} {
		if _, stderr, code := command(t, "", words(line)...); code != 0 {
			t.Errorf("%s: %d %s", line, code, stderr)
		}
	}
}

// TestStartsInOneSecond starts two jobs without an ID within a second. They must get different IDs.
func TestStartsInOneSecond(t *testing.T) {
	newService(t, 10)
	for range 2 {
		for _, kind := range []string{"Account", "Nothing"} {
			if _, stderr, code := command(t, "", "start", "add-credit", "--kind", kind, "--params", `{"Amount":1}`,
				"--dry-run", "--allow-overlap", "--allow-empty"); code != 0 {
				t.Errorf("%s: %s", kind, stderr)
			}
		}
	}
	if stdout, stderr, _ := command(t, "", "jobs"); strings.Count(stdout, "add-credit-rehearsal-") != 4 {
		t.Errorf("%s%s", stdout, stderr)
	}
}
