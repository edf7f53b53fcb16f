package terraform_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/scattermap/scattermap/cloudlog"
	"github.com/scattermap/scattermap/mapper"
)

// A series is a time series as Cloud Monitoring stores it, with one sample a minute. It is encoded
// as a Series of promql/main.go.
type series struct {
	Labels  map[string]string
	Samples []sampleAt
}

type sampleAt struct {
	At    int64 // in seconds
	Value float64
}

const minute = 60

// over returns a series with a sample for each minute from from to to. The function value gets the
// minutes since from.
func over(labels map[string]string, from, to int64, value func(minutes float64) float64) series {
	s := series{Labels: labels}
	for at := from * minute; at <= to*minute; at += minute {
		s.Samples = append(s.Samples, sampleAt{at, value(float64(at)/minute - float64(from))})
	}
	return s
}

// grows returns the values of a counter that starts at 0 and grows by the same amount each minute,
// for over.
func grows(by float64) func(float64) float64 {
	return func(minutes float64) float64 { return by * minutes }
}

func stays(at float64) func(float64) float64 { return func(float64) float64 { return at } }

// own returns the labels of a metric that an instance of the service exports. The OpenTelemetry
// exporter googlemanagedprometheus makes these labels: the service's name is the job, and the
// instance's ID the instance.
func own(name, instance string, more ...string) map[string]string {
	l := map[string]string{
		"__name__":           name,
		"project_id":         "my-project",
		"location":           "europe-west1",
		"cluster":            "__run__",
		"namespace":          "",
		"job":                "scattermap",
		"instance":           instance,
		"otel_scope_name":    "github.com/scattermap/scattermap/mapper",
		"otel_scope_version": strings.Split(instance, "-")[0], // a new revision may have a new version
	}
	for i := 0; i+1 < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// queue returns the labels of a metric that Google exports about a queue.
func queue(name, id string, more ...string) map[string]string {
	l := map[string]string{
		"__name__":           "cloudtasks_googleapis_com:" + name,
		"monitored_resource": "cloud_tasks_queue",
		"project_id":         "my-project",
		"location":           "europe-west1",
		"queue_id":           id,
		"target_type":        "HTTP",
	}
	for i := 0; i+1 < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// revision returns the labels of a metric that Google exports about a revision of the service.
func revision(name, revision string, more ...string) map[string]string {
	l := map[string]string{
		"__name__":           name,
		"monitored_resource": "cloud_run_revision",
		"project_id":         "my-project",
		"location":           "europe-west1",
		"service_name":       "scattermap",
		"configuration_name": "scattermap",
		"revision_name":      revision,
	}
	for i := 0; i+1 < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// buckets returns the series of a histogram. The map perMinute has the number of observations a
// minute for each upper bound.
func buckets(labels map[string]string, from, to int64, perMinute map[string]float64) (all []series) {
	for le, n := range perMinute {
		l := maps.Clone(labels)
		l["le"] = le
		all = append(all, over(l, from, to, grows(n)))
	}
	return all
}

// fleet returns the series that f makes for each of four instances. Two are of an old revision and
// end after an hour. The other two are of the new revision that replaces it.
func fleet(f func(instance string, from, to int64) []series) (all []series) {
	for _, i := range []struct {
		id       string
		from, to int64
	}{{"old-1", 0, 60}, {"old-2", 3, 61}, {"new-1", 59, 240}, {"new-2", 60, 240}} {
		all = append(all, f(i.id, i.from, i.to)...)
	}
	return all
}

// engine builds the command in the folder promql once, and returns its path.
var engine = sync.OnceValues(func() (string, error) {
	if out, err := exec.Command("go", "-C", "promql", "mod", "download").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s", out)
	}
	folder, err := os.MkdirTemp("", "promql")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(folder, "promql")
	build := exec.Command("go", "build", "-C", "promql", "-ldflags=-s", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %s", out)
	}
	return binary, nil
})

// evaluate evaluates queries on series, for each minute of four hours. It returns the resulting
// series of each query.
func evaluate(t *testing.T, all []series, queries ...string) [][]series {
	t.Helper()
	binary, err := engine()
	if err != nil && strings.HasPrefix(err.Error(), "build") {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf(
			"left out: evaluating the queries of alarms and charts, as Prometheus' engine can't be had here: %v",
			err,
		)
	}
	in, err := json.Marshal(map[string]any{"Series": all, "Queries": queries, "End": 240 * minute, "Step": minute})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &said
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	var out [][]series
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// alarm returns the query of an alarm, and the minutes for which its condition must hold. The
// anchor is the section of docs/operate.md to which the alarm links.
func (p *plan) alarm(t *testing.T, anchor string) (query string, duration int64) {
	t.Helper()
	a, err := p.find("google_monitoring_alert_policy", func(v cty.Value) bool {
		return strings.HasSuffix(text(v, "documentation", 0, "content"), "#"+anchor) &&
			at(v, "conditions", 0, "condition_matched_log") == cty.NilVal
	})
	if err != nil {
		t.Fatal(anchor, err)
	}
	c := at(a, "conditions", 0, "condition_prometheus_query_language", 0)
	d, err := time.ParseDuration(text(c, "duration"))
	if err != nil {
		t.Fatal(err)
	}
	return text(c, "query"), int64(d / time.Minute)
}

// fires returns the minutes at which an alarm fires. It fires once a series has been in the query's
// result for the duration.
func fires(result []series, duration int64) (at []int64) {
	for _, s := range result {
		since := int64(-1)
		fired := false
		for i, p := range s.Samples {
			if i == 0 || p.At-s.Samples[i-1].At > minute {
				since, fired = p.At, false
			}
			if !fired && p.At-since >= duration*minute {
				at, fired = append(at, p.At/minute), true
			}
		}
	}
	slices.Sort(at)
	return at
}

// A scenario is a situation in which an alarm must fire, or must not fire.
type scenario struct {
	name      string
	between   [2]int64 // the minutes between which the alarm must fire once; quiet: it must never fire
	variables map[string]string
	series    []series
}

var quiet = [2]int64{-1, -1}

// one returns a list of one series: a metric of the service about its mapper raise, exported by one
// instance.
func one(name, instance string, from, to int64, value func(float64) float64) []series {
	return []series{over(own(name, instance, "scattermap_mapper", "raise"), from, to, value)}
}

// TestAlarms checks when each alarm fires. In all scenarios two instances work, and after an hour
// two instances of a new revision replace them.
func TestAlarms(t *testing.T) {
	plans := make(map[string]*plan) // by the text of their variables
	for anchor, scenarios := range map[string][]scenario{
		"a-job-runs-and-commits-nothing": idleScenarios(),
		"many-entities-fail":             failureScenarios(),
		"tasks-wait-too-long":            delayScenarios(),
		"the-revive-schedule-is-absent":  reviveScenarios(),
	} {
		for _, c := range scenarios {
			t.Run(anchor+"/"+c.name, func(t *testing.T) {
				variables := map[string]string{"collector": "true"}
				maps.Copy(variables, c.variables)
				key := fmt.Sprint(variables)
				if plans[key] == nil {
					plans[key] = planOf(t, variables)
				}
				query, duration := plans[key].alarm(t, anchor)
				at := fires(evaluate(t, c.series, query)[0], duration)
				wrong := len(at) > 0
				if c.between != quiet {
					wrong = len(at) != 1 || at[0] < c.between[0] || at[0] > c.between[1]
				}
				if wrong {
					t.Errorf("it goes off in minute %v, want %v\n%s, for %d minutes", at, c.between, query, duration)
				}
			})
		}
	}
}

func idleScenarios() []scenario {
	const inFlight, idle = "scattermap_tasks_in_flight", "scattermap_job_idle_seconds"
	delivered := func(from, to int64) []series {
		return []series{over(queue("queue_task_attempt_count", "mapper", "response_code", "200"), from, to, grows(30))}
	}
	told := fleet(func(id string, from, to int64) []series { return one(inFlight, id, from, to, stays(3)) })
	works := slices.Concat(told, delivered(0, 240))
	partly := func(id string, from, to int64) []series {
		return one(idle, id, from, to, stays(map[bool]float64{true: 170, false: 1}[strings.HasSuffix(id, "2")]))
	}
	return []scenario{
		{"nothing was ever written", quiet, nil, nil},
		{"a job gets on", quiet, nil, slices.Concat(works, fleet(func(id string, from, to int64) []series {
			return one(idle, id, from, to, stays(20))
		}))},
		{"one instance has no part in it", quiet, nil, slices.Concat(works, fleet(partly))},
		{"a job stands still, from before the new revision on", [2]int64{65, 75}, nil,
			slices.Concat(works, fleet(func(id string, from, to int64) []series {
				return one(idle, id, from, to, func(m float64) float64 { return max(0, 60*(float64(from)+m-50)) })
			}))},
		{"tasks are delivered, and no instance sends metrics", [2]int64{3, 10}, nil, delivered(0, 240)},
		{"the collector of all instances stops", [2]int64{70, 80}, nil,
			slices.Concat(delivered(0, 240), one(inFlight, "old-1", 0, 60, stays(3)))},
		{"the collector of one instance stops", quiet, nil, slices.Concat(delivered(0, 240), told[:1], told[2:3])},
		{"a job has ended", quiet, nil, slices.Concat(told[:1], delivered(0, 64), one(idle, "old-1", 0, 60, stays(5)))},
		{"a clean-up for hours", quiet, nil, works},
		{"the service starts from no instance", quiet, nil,
			slices.Concat(delivered(100, 240), one(inFlight, "new-1", 103, 240, stays(3)))},
		{"another service stands still", quiet, nil,
			[]series{over(own(idle, "other", "scattermap_mapper", "raise", "job", "other"), 0, 240, grows(60))}},
	}
}

func failureScenarios() []scenario {
	const entities, failures = "scattermap_entities_total", "scattermap_failures_total"
	counters := func(entitiesOf float64, failuresOf func(id string) float64) []series {
		return fleet(func(id string, from, to int64) []series {
			failed := one(failures, id, from, to, grows(failuresOf(id)))
			return slices.Concat(one(entities, id, from, to, grows(entitiesOf)), failed)
		})
	}
	each := func(n float64) func(string) float64 { return func(string) float64 { return n } }
	return []scenario{
		{"few fail", quiet, nil, counters(1000, each(10))},
		{"many fail", [2]int64{1, 3}, nil, counters(1000, each(100))},
		{"many fail on one instance", [2]int64{1, 4}, nil, counters(1000, func(id string) float64 {
			return map[string]float64{"old-1": 300}[id]
		})},
		{"many fail, of the new revision only", [2]int64{61, 70}, nil, counters(1000, func(id string) float64 {
			return map[string]float64{"new-1": 200, "new-2": 200}[id]
		})},
		{"all fail, and nothing else was counted", [2]int64{1, 4}, nil, one(failures, "old-1", 0, 240, grows(5))},
		{"nobody works any more", quiet, nil,
			slices.Concat(one(failures, "old-1", 0, 240, stays(50)), one(entities, "old-1", 0, 240, stays(60)))},
	}
}

func delayScenarios() []scenario {
	delays := func(id string, within, all float64) []series {
		perMinute := map[string]float64{"1000": within, "600000": within, "1200000": all, "+Inf": all}
		return buckets(queue("queue_task_attempt_delays_bucket", id), 0, 240, perMinute)
	}
	two := map[string]string{"queues": `["mapper", "night"]`}
	return []scenario{
		{"tasks come in time", quiet, nil, delays("mapper", 100, 100)},
		{"a twentieth waits", quiet, nil, delays("mapper", 95, 100)},
		{"a fifth waits", [2]int64{5, 8}, nil, delays("mapper", 80, 100)},
		{"the tasks of one of two queues wait", [2]int64{5, 8}, two,
			slices.Concat(delays("mapper", 900, 900), delays("night", 1, 2))},
		{"the tasks of another service's queue wait", quiet, nil, delays("other", 1, 2)},
	}
}

func reviveScenarios() []scenario {
	const revived = "logging_googleapis_com:user_scattermap_revived"
	type span = [2]int64
	// This metric of each revision counts the calls of the schedule. It has a sample each minute,
	// or, if sparse, only one for each call.
	calls := func(interval int64, sparse bool, spans ...span) (all []series) {
		for i, c := range spans {
			s := over(revision(revived, fmt.Sprintf("scattermap-%05d", i+1)), c[0], c[1], func(m float64) float64 {
				return 1 + math.Floor(m/float64(interval))
			})
			if sparse {
				s.Samples = slices.DeleteFunc(s.Samples, func(p sampleAt) bool {
					return (p.At/minute-c[0])%interval != 0
				})
			}
			all = append(all, s)
		}
		return all
	}
	every := func(minutes string) map[string]string { return map[string]string{"revive_minutes": minutes} }
	return []scenario{
		{"it has never worked", span{10, 30}, nil, nil},
		{"it works, over a new revision", quiet, nil, calls(5, false, span{5, 62}, span{65, 240})},
		{"it works, with a sample a call", quiet, nil, calls(5, true, span{5, 60}, span{65, 240})},
		{"a revision every ten minutes", quiet, nil,
			calls(5, true, span{5, 10}, span{15, 20}, span{25, 30}, span{35, 40}, span{45, 240})},
		{"one call fails", quiet, nil, calls(5, true, span{5, 60}, span{70, 240})},
		{"it stops with the new revision", span{75, 100}, nil, calls(5, true, span{5, 60})},
		{"every minute", quiet, every("1"), calls(1, true, span{1, 60}, span{61, 240})},
		{"every hour", quiet, every("60"), calls(60, true, span{60, 240})},
		{"another service's works", span{10, 30}, nil,
			[]series{over(revision(revived, "other-1", "service_name", "other"), 0, 240, grows(1))}},
	}
}

// TestLogAlarms checks the alarms about log lines: the library must write such a line, with the
// field for which the alarm looks.
func TestLogAlarms(t *testing.T) {
	journal, err := os.ReadFile("../../mapper/internal/observe/journal.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, alarm := range planOf(t, nil).instances["google_monitoring_alert_policy"] {
		filter := text(alarm, "conditions", 0, "condition_matched_log", 0, "filter")
		_, of, ok := strings.Cut(filter, "jsonPayload.")
		if !ok {
			continue
		}
		field, values, _ := strings.Cut(of, "=")
		values, _, _ = strings.Cut(values, " AND ")
		for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(values, -1) {
			found = append(found, m[1])
			var line bytes.Buffer
			slog.New(cloudlog.NewHandler(&line, nil)).Warn(m[1], "job", "spring", "mapper", "add-credit")
			fields := make(map[string]any)
			if err := json.Unmarshal(line.Bytes(), &fields); err != nil || fields[field] != m[1] {
				t.Errorf("the alarm looks for %s=%q, the line is %s", field, m[1], line.Bytes())
			}
		}
	}
	slices.Sort(found)
	want := []string{"job " + string(mapper.StateFailed), "job " + string(mapper.StatePaused),
		"tasks are not delivered"}
	if !slices.Equal(found, want) {
		t.Errorf("the alarms look for %q, want %q", found, want)
	}
	for _, source := range []string{`"job "+string(job.State)`, `"tasks are not delivered"`} {
		if !strings.Contains(string(journal), source) {
			t.Errorf("the journal does not write %s any more", source)
		}
	}
}

// TestCharts evaluates each chart while two instances work, and two of the next revision replace
// them. The chart must show the work of all instances, also during the change.
func TestCharts(t *testing.T) {
	const label = "scattermap_mapper"
	all := fleet(func(id string, from, to int64) []series {
		inFlight := one("scattermap_tasks_in_flight", id, from, to, stays(5))
		inFlight[0].Samples[len(inFlight[0].Samples)-1].Value = 0 // the last value when the process ends
		splits := own("scattermap_splits_total", id, label, "raise", "scattermap_reason", "before")
		pages := map[string]float64{"0.1": 0, "0.25": 60, "+Inf": 60}
		waits := map[string]float64{"1": 0, "5": 10, "+Inf": 10}
		return slices.Concat(inFlight,
			one("scattermap_entities_total", id, from, to, grows(600)),
			one("scattermap_pages_total", id, from, to, grows(60)),
			one("scattermap_failures_total", id, from, to, grows(3)),
			// scattermap_retries_total has no samples in this test
			one("scattermap_conflicts_total", id, from, to, grows(2)),
			one("scattermap_job_idle_seconds", id, from, to, stays(30)),
			[]series{over(splits, from, to, grows(6))},
			buckets(own("scattermap_page_duration_seconds_bucket", id, label, "raise"), from, to, pages),
			buckets(own("scattermap_queue_wait_seconds_bucket", id, label, "raise"), from, to, waits))
	})
	instances := func(of string, from, to int64) series {
		return over(revision("run_googleapis_com:container_instance_count", of, "state", "active"), from, to, stays(2))
	}
	all = append(all,
		over(queue("queue_depth", "mapper"), 0, 240, stays(7)),
		over(queue("queue_task_attempt_count", "mapper", "response_code", "200"), 0, 240, grows(120)),
		over(queue("queue_task_attempt_count", "mapper", "response_code", "429"), 0, 240, grows(6)),
		instances("scattermap-00001", 0, 60), instances("scattermap-00002", 63, 240))
	want := map[string]map[string]float64{ // by the value of the chart's label
		"Entities a second, by mapper":                         {"raise": 20},
		"Seconds since a running job last committed a page":    {"raise": 30},
		"Failures a minute, by mapper":                         {"raise": 6},
		"Conflicts and repeated deliveries a minute":           {"": 4},
		"Pages: seconds, 95th percentile":                      {"": 0.2425},
		"Pages a second":                                       {"": 2},
		"Tasks in flight":                                      {"": 10},
		"Ranges split off a minute, by reason":                 {"before": 12},
		"Tasks that were due: seconds waited, 95th percentile": {"": 4.8},
		"Tasks in the queues":                                  {"mapper": 7},
		"Deliveries a second, by answer":                       {"200": 2, "429": 0.1},
		"Instances of the service":                             {"active": 2},
	}
	var board struct {
		MosaicLayout struct {
			Tiles []struct {
				Widget struct {
					Title   string
					XYChart struct {
						DataSets []struct {
							TimeSeriesQuery struct{ PrometheusQuery string }
						}
					}
				}
			}
		}
	}
	p := planOf(t, map[string]string{"collector": "true"})
	encoded := text(p.instances["google_monitoring_dashboard"][0], "dashboard_json")
	if err := json.Unmarshal([]byte(encoded), &board); err != nil {
		t.Fatal(err)
	}
	var titles, queries []string
	for _, tile := range board.MosaicLayout.Tiles {
		titles, queries = append(
			titles,
			tile.Widget.Title,
		), append(
			queries,
			tile.Widget.XYChart.DataSets[0].TimeSeriesQuery.PrometheusQuery,
		)
	}
	for i, result := range evaluate(t, all, queries...) {
		title := titles[i]
		if want[title] == nil {
			t.Errorf("what should %q show?", title)
			continue
		}
		lines := make(map[string]map[int64]float64)
		for _, s := range result {
			label := ""
			for name, value := range s.Labels {
				if name != "__name__" {
					label = value
				}
			}
			lines[label] = make(map[int64]float64)
			for _, sample := range s.Samples {
				lines[label][sample.At/minute] = sample.Value
			}
		}
		for label, n := range want[title] {
			for _, at := range []int64{30, 50, 90, 200} {
				if got, ok := lines[label][at]; !ok || math.Abs(got-n) > n/50 {
					t.Errorf("%s: %q is %v in minute %d, want %v\n%s", title, label, got, at, n, queries[i])
				}
			}
			for at := int64(15); at < 240; at++ { // also during the change of revisions, when all four instances work
				if got, ok := lines[label][at]; !ok || got < 0.4*n || got > 2.1*n {
					t.Errorf("%s: %q is %v in minute %d, want about %v\n%s", title, label, got, at, n, queries[i])
				}
			}
		}
		if len(lines) != len(want[title]) {
			t.Errorf("%s has %d lines, want %d", title, len(lines), len(want[title]))
		}
		delete(want, title)
	}
	for title := range want {
		t.Errorf("there is no chart %q", title)
	}
}
