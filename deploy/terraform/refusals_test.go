package terraform_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// A refusal is a known problem that the provider's schema does not show: an apply stops with an
// error, or a second apply changes a resource again. The method find looks for it in a plan.
type refusal struct {
	what   string
	source string // the URL that describes the problem
	find   func(p *plan) []string
	broken string // a change of the module that causes the problem, as "FILE: OLD => NEW"
}

// refusals are all known problems with the types of resources in the module.
var refusals = []refusal{
	{
		"An alert policy may not look for a log metric by a condition other than PromQL: one that is made in " +
			"the same apply is not found for up to 10 minutes (\"Cannot find metric(s) that match type\").",
		"https://github.com/hashicorp/terraform-provider-google/issues/11102",
		func(p *plan) (found []string) {
			each(p, "google_monitoring_alert_policy", "conditions", func(name string, c cty.Value) {
				for kind := range c.Type().AttributeTypes() {
					if strings.HasPrefix(kind, "condition_") && kind != "condition_prometheus_query_language" &&
						strings.Contains(text(c, kind, 0, "filter"), "logging.googleapis.com/user/") {
						found = append(found, name+" has "+kind)
					}
				}
			})
			return found
		},
		`alerts.tf: condition_matched_log {
      filter = " => condition_absent {
      duration = "300s"
      filter = "metric.type=\"logging.googleapis.com/user/x\" AND `,
	},
	{
		"A PromQL condition on a metric that was never written is refused without disable_metric_validation.",
		"https://github.com/hashicorp/terraform-provider-google/issues/20491",
		func(p *plan) (found []string) {
			each(p, "google_monitoring_alert_policy", "conditions", func(name string, c cty.Value) {
				if q := at(c, "condition_prometheus_query_language", 0); q != cty.NilVal &&
					(at(q, "disable_metric_validation") == cty.NilVal || at(q, "disable_metric_validation").False()) {
					found = append(found, name)
				}
			})
			return found
		},
		"alerts.tf: disable_metric_validation = true => disable_metric_validation = false",
	},
	{
		"A database in Datastore mode refuses google_firestore_field: \"Single-field indexing modes cannot be " +
			"updated in Datastore mode databases.\"",
		"https://github.com/hashicorp/terraform-provider-google/issues/15781",
		func(p *plan) (found []string) {
			for range p.instances["google_firestore_field"] {
				found = append(found, "google_firestore_field")
			}
			return found
		},
		`datastore.tf: locals { => resource "google_firestore_field" "expires" {
  field      = "expires"
  collection = "ScattermapJob"
}
locals {`,
	},
	{
		"A condition has one kind, and a policy one to six conditions.",
		"https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#Condition",
		func(p *plan) (found []string) {
			each(p, "google_monitoring_alert_policy", "conditions", func(name string, c cty.Value) {
				if n := kinds(c, "condition_"); n != 1 {
					found = append(found, fmt.Sprintf("%s has %d kinds", name, n))
				}
			})
			return found
		},
		`alerts.tf: condition_matched_log { => condition_absent {
      duration = "300s"
    }
    condition_matched_log {`,
	},
	{
		"A notification rate limit is for policies on logs, which need one.",
		"https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#AlertStrategy",
		func(p *plan) (found []string) {
			for _, a := range p.instances["google_monitoring_alert_policy"] {
				onLogs := at(a, "conditions", 0, "condition_matched_log") != cty.NilVal
				if limited := at(a, "alert_strategy", 0, "notification_rate_limit") != cty.NilVal; limited != onLogs {
					found = append(found, text(a, "display_name"))
				}
			}
			return found
		},
		`alerts.tf: alert_strategy {
    notification_rate_limit {
      period = "300s"
    }
  } => alert_strategy {
    auto_close = "1800s"
  }`,
	},
	{
		"A probe looks in one way, its time-out is shorter than its period, and a startup probe takes 240 s at " +
			"most: period_seconds times failure_threshold.",
		"https://cloud.google.com/run/docs/configuring/healthchecks",
		func(p *plan) (found []string) {
			each(p, "google_cloud_run_v2_service", "template", func(_ string, template cty.Value) {
				for i := 0; at(template, "containers", i) != cty.NilVal; i++ {
					for _, name := range []string{"startup_probe", "liveness_probe"} {
						probe := at(template, "containers", i, name, 0)
						if probe == cty.NilVal {
							continue
						}
						n := 0
						for _, kind := range []string{"grpc", "http_get", "tcp_socket"} {
							if at(probe, kind) != cty.NilVal {
								n++
							}
						}
						timeout := 1
						if v := at(probe, "timeout_seconds"); v != cty.NilVal {
							timeout = number(v)
						}
						if n != 1 || timeout >= number(at(probe, "period_seconds")) ||
							name == "startup_probe" &&
								number(at(probe, "period_seconds"))*number(at(probe, "failure_threshold")) > 240 {
							found = append(found, name)
						}
					}
				}
			})
			return found
		},
		"service.tf: failure_threshold = 80 => failure_threshold = 81",
	},
	{
		"One container of a service has a port; \"Total cpu < 1 is not supported with concurrency > 1.\"",
		"https://cloud.google.com/run/docs/deploying#sidecars, " +
			"https://cloud.google.com/run/docs/configuring/services/cpu",
		func(p *plan) (found []string) {
			each(p, "google_cloud_run_v2_service", "template", func(_ string, template cty.Value) {
				ports, cpu := 0, 0.0
				for i := 0; at(template, "containers", i) != cty.NilVal; i++ {
					if at(template, "containers", i, "ports") != cty.NilVal {
						ports++
					}
					var n float64
					fmt.Sscan(text(template, "containers", i, "resources", 0, "limits", "cpu"), &n)
					cpu += n
				}
				if ports != 1 || cpu < 1 {
					found = append(found, fmt.Sprintf("%d ports, %v CPUs", ports, cpu))
				}
			})
			return found
		},
		`service.tf: args  = ["--config=env:COLLECTOR_CONFIG"] => args  = ["--config=env:COLLECTOR_CONFIG"]
        ports {
          container_port = 4318
        }`,
	},
	{
		"A job of Cloud Scheduler has one target, whose token is of one kind. Its minutes are a divisor of 60, " +
			"as */n begins anew with each hour.",
		"https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules",
		func(p *plan) (found []string) {
			for _, j := range p.instances["google_cloud_scheduler_job"] {
				schedule := text(j, "schedule")
				n := 0
				fmt.Sscanf(schedule, "*/%d * * * *", &n)
				if kinds(j, "_target") != 1 || kinds(at(j, "http_target", 0), "_token") != 1 ||
					schedule != "0 * * * *" && (n == 0 || 60%n != 0) {
					found = append(found, schedule)
				}
			}
			return found
		},
		"scheduler.tf: */${var.revive_minutes} => */${var.revive_minutes + 2}",
	},
	{
		"A queue delivers 1 to 5,000 tasks at once, and 500 a second at most; all queues together less than the" +
			" service takes at once.",
		"https://cloud.google.com/tasks/docs/quotas",
		func(p *plan) (found []string) {
			all := 0
			for _, q := range p.instances["google_cloud_tasks_queue"] {
				n := number(at(q, "rate_limits", 0, "max_concurrent_dispatches"))
				if all += n; n < 1 || n > 5000 || number(at(q, "rate_limits", 0, "max_dispatches_per_second")) > 500 {
					found = append(found, text(q, "name"))
				}
			}
			if takes := number(p.variables["instances"]) * number(p.variables["concurrency"]); all >= takes &&
				takes > 1 {
				found = append(found, fmt.Sprintf("%d of %d requests are tasks", all, takes))
			}
			return found
		},
		"queue.tf: local.at_once - max(1, ceil(local.at_once / 10)) => local.at_once",
	},
	{
		"The ID of a service account has 6 to 30 characters, and ends with a letter or a digit.",
		"https://cloud.google.com/iam/docs/service-accounts-create",
		func(p *plan) (found []string) {
			for _, a := range p.instances["google_service_account"] {
				if id := text(a, "account_id"); !regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`).MatchString(id) {
					found = append(found, id)
				}
			}
			return found
		},
		`iam.tf: "${var.name}-tasks" => "${var.name}-runs-the-tasks-of-jobs"`,
	},
	{
		"A budget's alerts go to five channels at most; its projects are by their numbers, as the API answers " +
			"them, and each apply would change others.",
		"https://cloud.google.com/billing/docs/reference/budget/rest/v1/billingAccounts.budgets",
		func(p *plan) (found []string) {
			for _, b := range p.instances["google_billing_budget"] {
				channels := at(b, "all_updates_rule", 0, "monitoring_notification_channels")
				if channels != cty.NilVal && channels.LengthInt() > 5 {
					found = append(found, "channels")
				}
				if kinds(at(b, "amount", 0), "_amount") != 1 {
					found = append(found, "amount")
				}
				if project := text(b, "budget_filter", 0, "projects", 0); !regexp.MustCompile(`^projects/\d+$`).
					MatchString(project) {
					found = append(found, project)
				}
			}
			return found
		},
		"budget.tf: data.google_project.this.number => var.project",
	},
	{
		"A tile at the edge has no xPos or yPos in what the API answers: with a 0 each apply would change the " +
			"dashboard.",
		"https://github.com/GoogleCloudPlatform/magic-modules (monitoring_dashboard: \"The API omits " +
			"zero-valued tile positions\")",
		func(p *plan) (found []string) {
			for _, d := range p.instances["google_monitoring_dashboard"] {
				found = append(
					found,
					regexp.MustCompile(`"[xy]Pos":0\b`).FindAllString(text(d, "dashboard_json"), -1)...)
				var board struct {
					MosaicLayout struct {
						Columns int
						Tiles   []struct{ XPos, YPos, Width, Height int }
					}
				}
				if err := json.Unmarshal([]byte(text(d, "dashboard_json")), &board); err != nil {
					return append(found, err.Error())
				}
				taken := make(map[[2]int]bool)
				for _, tile := range board.MosaicLayout.Tiles {
					if at := [2]int{tile.XPos, tile.YPos}; taken[at] ||
						tile.XPos+tile.Width > board.MosaicLayout.Columns {
						found = append(found, fmt.Sprint(at))
					} else {
						taken[at] = true
					}
				}
			}
			return found
		},
		"dashboard.tf: if at != 0 => if at >= 0",
	},
	{
		"The API answers a duration with none, three, six or nine digits after the point: written otherwise " +
			"each apply would change it.",
		"https://protobuf.dev/reference/protobuf/google.protobuf/#duration",
		func(p *plan) (found []string) {
			for typ, all := range p.instances {
				for _, v := range all {
					_ = cty.Walk(v, func(path cty.Path, v cty.Value) (bool, error) {
						if v.Type() == cty.String && regexp.MustCompile(`^\d+(\.\d+)?s$`).MatchString(v.AsString()) &&
							!regexp.MustCompile(`^\d+(\.\d{3}|\.\d{6}|\.\d{9})?s$`).MatchString(v.AsString()) {
							found = append(found, typ+": "+v.AsString())
						}
						return true, nil
					})
				}
			}
			return found
		},
		`queue.tf: "0.100s" => "0.1s"`,
	},
	{
		"The state has no secret: nobody needs to guard it for this module's sake.",
		"https://developer.hashicorp.com/terraform/language/state/sensitive-data",
		func(p *plan) (found []string) {
			for typ := range p.instances {
				if strings.Contains(typ, "secret") || strings.Contains(typ, "_key") {
					found = append(found, typ)
				}
			}
			return found
		},
		`datastore.tf: locals { => resource "google_service_account_key" "key" {
  service_account_id = google_service_account.tasks.name
}
locals {`,
	},
	{
		"Cloud Run ends an instance whose sidecar fails its startup probe, and a container that depends on " +
			"another one waits for that one's probe.",
		"https://cloud.google.com/run/docs/configuring/services/containers#container-ordering, " +
			"https://github.com/GoogleCloudPlatform/cloud-run-samples/issues/230",
		func(p *plan) (found []string) {
			each(p, "google_cloud_run_v2_service", "template", func(_ string, template cty.Value) {
				for i := 0; at(template, "containers", i) != cty.NilVal; i++ {
					c := at(template, "containers", i)
					if at(c, "depends_on") != cty.NilVal || text(c, "name") == "collector" && kinds(c, "_probe") > 0 {
						found = append(found, text(c, "name"))
					}
				}
			})
			return found
		},
		`service.tf: name  = "service" => depends_on = ["collector"]
      name  = "service"`,
	},
}

// each calls f for each block with a name, in all instances of a type of resource.
func each(p *plan, typ, block string, f func(name string, v cty.Value)) {
	for _, v := range p.instances[typ] {
		for i := 0; at(v, block, i) != cty.NilVal; i++ {
			f(text(v, "display_name"), at(v, block, i))
		}
	}
}

// kinds counts the arguments and blocks in v whose names start or end with part.
func kinds(v cty.Value, part string) (n int) {
	if v == cty.NilVal {
		return 0
	}
	for name := range v.Type().AttributeTypes() {
		if strings.HasPrefix(name, part) || strings.HasSuffix(name, part) {
			n++
		}
	}
	return n
}

// ways are typical settings of the module's variables, by a description.
var ways = map[string]map[string]string{
	"the least":   {},
	"a collector": {"collector": "true", "alarm_emails": `["ann@example.com"]`},
	"groups":      {"operators": "[]", "operator_groups": `["data@example.com"]`, "revive_minutes": "60"},
	"on": {
		"auth":      `"on"`,
		"operators": `["ann@example.com", "ci@my-project.iam.gserviceaccount.com"]`,
		"name":      `"a-name-of-21-letters0"`,
	},
	"on, accounts": {
		"auth":        `"on"`,
		"operators":   `["ci@my-project.iam.gserviceaccount.com"]`,
		"instances":   "1",
		"concurrency": "2",
	},
	"a proxy": {
		"auth":         `"on"`,
		"operators":    "[]",
		"iap_audience": `"/projects/1/global/backendServices/2"`,
		"database":     `"jobs"`,
	},
	"two queues": {
		"queues":           `["fast", "night"]`,
		"secrets":          `{ WEBHOOK_URL = "webhook-url", WEBHOOK_SECRET = "webhook-secret" }`,
		"instances":        "1000",
		"concurrency":      "1000",
		"database_project": `"my-data"`,
	},
	"a budget": {
		"budget":                "100",
		"billing_account":       `"012345-6789AB-CDEF01"`,
		"collector":             "true",
		"alarm_emails":          `["a@b.c", "b@b.c", "c@b.c", "d@b.c"]`,
		"notification_channels": `["projects/p/notificationChannels/1", "projects/p/notificationChannels/2"]`,
	},
}

// allWays returns the typical settings of the module's variables, and the settings in the example.
func allWays(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := maps.Clone(ways)
	r := check(t, read(t, "example"), map[string]*reader{"./..": check(t, read(t, "."), nil)})
	given := make(map[string]cty.Value)
	needed := map[string]string{"project": "my-project", "image": "image", "operator": "ann@example.com"}
	for name, value := range needed {
		given[name] = cty.StringVal(value)
	}
	for _, b := range r.blocks {
		if b.Type != "variable" || given[b.Labels[0]] != cty.NilVal {
			continue
		}
		v, diagnostics := b.Body.Attributes["default"].Expr.Value(nil)
		if diagnostics.HasErrors() {
			t.Fatal(diagnostics)
		}
		given[b.Labels[0]] = v
	}
	variables := make(map[string]string)
	context := &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.ObjectVal(given)}}
	for name, a := range r.declared["module.credit"].Body.Attributes {
		if name == "source" {
			continue
		}
		v, diagnostics := a.Expr.Value(context)
		if diagnostics.HasErrors() {
			t.Fatal(diagnostics)
		}
		variables[name] = string(hclwrite.TokensForValue(v).Bytes())
	}
	all["the example"] = variables
	return all
}

// TestRefusals plans the module with all typical settings, and checks that no known problem would
// occur.
func TestRefusals(t *testing.T) {
	for way, variables := range allWays(t) {
		p := planOf(t, variables)
		for _, r := range p.refused {
			t.Errorf("%s: refused: %s", way, r)
		}
		for _, r := range refusals {
			if found := r.find(p); len(found) > 0 {
				t.Errorf("%s: %s\n%s: %q", way, r.what, r.source, found)
			}
		}
	}
}

// TestRefusalsAreFound changes the module so that it has each of the known problems, and checks
// that the problem is found.
func TestRefusalsAreFound(t *testing.T) {
	for _, r := range refusals {
		file, change, _ := strings.Cut(r.broken, ": ")
		before, after, _ := strings.Cut(change, " => ")
		m := read(t, ".")
		if !strings.Contains(m[file], before) {
			t.Errorf("%s does not have %q any more", file, before)
			continue
		}
		m[file] = strings.Replace(m[file], before, after, 1)
		found := false
		for _, way := range []string{"a budget", "a collector", "the least"} {
			variables := map[string]string{"revive_minutes": "5"}
			maps.Copy(variables, ways[way])
			p, err := planModule(t, m, variables)
			if err != nil {
				t.Fatalf("%s: %v", r.broken, err)
			}
			found = found || len(r.find(p)) > 0
		}
		if !found {
			t.Errorf("the test does not find the break %q", r.broken)
		}
	}
}

// apis has the API that a resource calls, by the prefix of the resource's type. The first match
// counts.
var apis = []struct{ prefix, api string }{
	{"google_project_service", ""}, // this resource enables an API, and calls none of them
	{"google_billing_budget", "billingbudgets"},
	{"google_cloud_run_v2_service", "run"},
	{"google_cloud_scheduler", "cloudscheduler"},
	{"google_cloud_tasks", "cloudtasks"},
	{"google_logging", "logging"},
	{"google_monitoring", "monitoring"},
	{"google_project", "cloudresourcemanager"},
	{"google_service_account", "iam"},
}

// TestOrder checks that each resource that calls an API depends on the resource that waits until
// the API is enabled. It also removes each such dependency, and checks that this is found.
func TestOrder(t *testing.T) {
	for way, variables := range allWays(t) {
		for _, problem := range order(planOf(t, variables)) {
			t.Errorf("%s: %s", way, problem)
		}
	}
	m := read(t, ".")
	for file := range m {
		const wait = "depends_on = [terraform_data.enabled]"
		for i := range strings.Count(m[file], wait) {
			broken := read(t, ".")
			parts := strings.SplitAfterN(broken[file], wait, i+2)
			last := len(parts) - 2
			parts[last] = strings.TrimSuffix(parts[last], wait) + "depends_on = []"
			broken[file] = strings.Join(parts, "")
			found := []string{}
			for _, way := range []string{"a budget", "on"} {
				p, err := planModule(t, broken, ways[way])
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, order(p)...)
			}
			if len(found) == 0 {
				t.Errorf("the test does not find that number %d of %s does not wait", i, file)
			}
		}
	}
}

// order returns the resources that do not wait until the API that they call is enabled.
func order(p *plan) (problems []string) {
	var waits func(b *hclsyntax.Block, under []string) bool
	var through func(vs []hcl.Traversal, under []string) bool
	through = func(vs []hcl.Traversal, under []string) bool {
		for _, v := range vs {
			parts := []string{v.RootName()}
			for _, step := range v[1:] {
				if a, ok := step.(hcl.TraverseAttr); ok {
					parts = append(parts, a.Name)
				}
			}
			address := strings.Join(parts[:min(2, len(parts))], ".")
			if parts[0] == "data" {
				address = strings.Join(parts[:min(3, len(parts))], ".")
			}
			switch {
			case address == "terraform_data.enabled":
				return true
			case slices.Contains(under, address):
			case parts[0] == "local":
				if through(p.r.locals[parts[1]].Expr.Variables(), append(slices.Clip(under), address)) {
					return true
				}
			case p.r.declared[address] != nil && parts[0] != "var":
				if waits(p.r.declared[address], append(slices.Clip(under), address)) {
					return true
				}
			}
		}
		return false
	}
	waits = func(b *hclsyntax.Block, under []string) bool {
		found := false
		_ = hclsyntax.VisitAll(b.Body, func(n hclsyntax.Node) hcl.Diagnostics {
			if a, ok := n.(*hclsyntax.Attribute); ok && through(a.Expr.Variables(), under) {
				found = true
			}
			return nil
		})
		return found
	}
	enabled := make(map[string]bool)
	for _, v := range p.instances["google_project_service"] {
		enabled[text(v, "service")] = true
		if at(v, "disable_on_destroy") == cty.NilVal || at(v, "disable_on_destroy").True() {
			problems = append(problems, "a destroy disables "+text(v, "service"))
		}
	}
	wait := p.r.declared["terraform_data.enabled"]
	if depends := wait.Body.Attributes["depends_on"]; depends == nil || len(depends.Expr.Variables()) != 1 ||
		depends.Expr.Variables()[0].RootName() != "google_project_service" {
		problems = append(problems, "terraform_data.enabled does not wait for google_project_service.apis")
	}
	for _, b := range p.r.blocks {
		if b.Type != "resource" && b.Type != "data" || !strings.HasPrefix(b.Labels[0], "google_") ||
			len(p.instances[b.Labels[0]]) == 0 {
			continue
		}
		address := strings.Join(b.Labels, ".")
		i := slices.IndexFunc(
			apis,
			func(a struct{ prefix, api string }) bool { return strings.HasPrefix(b.Labels[0], a.prefix) },
		)
		switch {
		case i < 0:
			problems = append(problems, "which API does "+address+" call?")
		case apis[i].api == "":
		case !enabled[apis[i].api+".googleapis.com"]:
			problems = append(problems, address+" calls "+apis[i].api+", which is not enabled")
		case !waits(b, nil):
			problems = append(problems, address+" does not wait for its API")
		}
	}
	return problems
}

// TestWho checks, for each way of access, who may call the service, and with which command.
func TestWho(t *testing.T) {
	const (
		url   = "https://scattermap-123456789012.europe-west1.run.app"
		ann   = "ann@example.com"
		robot = "ci@x.iam.gserviceaccount.com"
		team  = "scattermap-team@my-project.iam.gserviceaccount.com"
		tasks = "scattermap-tasks@my-project.iam.gserviceaccount.com"
		both  = `["` + ann + `", "` + robot + `"]`
		proxy = `"/projects/1/global/backendServices/2"`
	)
	for way, c := range map[string]struct {
		variables                map[string]string
		login, operators, became string
		invokers                 []string // accounts that may call the service, besides the tasks' account
	}{
		"iam": {
			map[string]string{"operators": both, "operator_groups": `["data@example.com"]`},
			"scattermap login " + url, "", "",
			[]string{"group:data@example.com", "serviceAccount:" + robot, "user:" + ann},
		},
		"on, with people": {
			map[string]string{"auth": `"on"`, "operators": both},
			"scattermap login " + url + " --impersonate " + team, ann + "," + robot + "," + team, "user:" + ann, nil,
		},
		"on, accounts only": {
			map[string]string{"auth": `"on"`, "operators": `["` + robot + `"]`},
			"scattermap login " + url + " --impersonate " + robot, robot, "", nil,
		},
		"on, a proxy": {
			map[string]string{"auth": `"on"`, "operators": `["` + ann + `"]`, "iap_audience": proxy}, "", ann, "", nil,
		},
	} {
		t.Run(way, func(t *testing.T) {
			p := planOf(t, c.variables)
			if got := p.outputs["login"].AsString(); got != c.login {
				t.Errorf("login is %q, want %q", got, c.login)
			}
			env := p.environment()
			if env["OPERATORS"] != c.operators || env["SERVICE_URL"] != url ||
				(env["AUTH"] == "on") != strings.HasPrefix(way, "on") {
				t.Errorf("the environment is %q", env)
			}
			var invokers, impersonate []string
			for _, m := range p.instances["google_cloud_run_v2_service_iam_member"] {
				if member := text(m, "member"); member != "serviceAccount:"+tasks &&
					text(m, "role") == "roles/run.invoker" {
					invokers = append(invokers, member)
				}
			}
			for _, m := range p.instances["google_service_account_iam_member"] {
				if text(m, "role") == "roles/iam.serviceAccountTokenCreator" {
					impersonate = append(impersonate, text(m, "member"))
				}
			}
			slices.Sort(invokers)
			if !slices.Equal(invokers, c.invokers) || strings.Join(impersonate, " ") != c.became ||
				(p.outputs["operators_account"].AsString() != "") != (c.became != "") {
				t.Errorf(
					"%q may call it, want %q; %q may impersonate, want %q",
					invokers,
					c.invokers,
					impersonate,
					c.became,
				)
			}
		})
	}
}

// environment returns the environment variables of the service's container. A pod may have other
// containers, too.
func (p *plan) environment() map[string]string {
	env := make(map[string]string)
	service := at(p.instances["google_cloud_run_v2_service"][0], "template", 0, "containers", 0)
	for i := 0; at(service, "env", i) != cty.NilVal; i++ {
		env[text(service, "env", i, "name")] = text(service, "env", i, "value")
	}
	return env
}

// TestSecrets checks that the service gets the variables of webhooks from Secret Manager, and that
// the plan does not have their values.
func TestSecrets(t *testing.T) {
	p := planOf(t, map[string]string{"secrets": `{ WEBHOOK_URL = "hook-url", WEBHOOK_SECRET = "hook-secret" }`})
	service := at(p.instances["google_cloud_run_v2_service"][0], "template", 0, "containers", 0)
	got := make(map[string]string)
	for i := 0; at(service, "env", i) != cty.NilVal; i++ {
		ref := []any{"env", i, "value_source", 0, "secret_key_ref", 0}
		if secret := text(service, append(ref, "secret")...); secret != "" {
			got[text(service, "env", i, "name")] = secret + " " + text(service, append(ref, "version")...)
		}
	}
	if len(got) != 2 || got["WEBHOOK_URL"] != "hook-url latest" || got["WEBHOOK_SECRET"] != "hook-secret latest" ||
		p.environment()["WEBHOOK_URL"] != "" {
		t.Errorf("the secrets of the environment are %q", got)
	}
}

// TestOtherProject checks the module for a database in another project. The service must get that
// project's name, and the permission to read and write its database.
func TestOtherProject(t *testing.T) {
	p := planOf(t, map[string]string{"database_project": `"my-data"`, "database": `"jobs"`})
	if env := p.environment(); env["GOOGLE_CLOUD_PROJECT"] != "my-project" || env["DATASTORE_PROJECT"] != "my-data" ||
		env["DATASTORE_DATABASE"] != "jobs" {
		t.Errorf("the environment is %q", env)
	}
	if _, err := p.find("google_project_iam_member", func(v cty.Value) bool {
		return text(v, "project") == "my-data" && text(v, "role") == "roles/datastore.user" &&
			strings.HasPrefix(text(v, "member"), "serviceAccount:scattermap-service@my-project.")
	}); err != nil {
		t.Error(err)
	}
	if ttl := p.outputs["ttl"].AsString(); strings.Count(ttl, "--project=my-data --database='jobs'") != 3 {
		t.Errorf("ttl is %q", ttl)
	}
}

// TestVariables checks that impossible values of variables are refused before anything is created.
func TestVariables(t *testing.T) {
	for want, variables := range map[string]map[string]string{
		"It has to divide 60":              {"revive_minutes": "45"},
		"can be WEBHOOK_URL and":           {"secrets": `{ AUTH = "off" }`},
		"Names of secrets have letters":    {"secrets": `{ WEBHOOK_URL = "https://example.com" }`},
		"need auth = \"iam\"":              {"auth": `"on"`, "operator_groups": `["data@example.com"]`},
		"iap_audience needs":               {"iap_audience": `"/projects/1/global/backendServices/2"`},
		"nobody could start a job":         {"operators": "[]"},
		"is too small":                     {"instances": "1", "concurrency": "2", "queues": `["a", "b"]`},
		"budget needs billing_account":     {"budget": "10"},
		"It has to be 1, 2, 4, 6 or 8":     {"cpu": `"0.5"`},
		"It has to have at least one name": {"queues": `["a", "a"]`},
		"They have to be e-mail":           {"alarm_emails": `["ann"]`},
		"It has to be like 012345":         {"budget": "10", "billing_account": `"mine"`},
		"It has to be a whole number":      {"budget": "1.5", "billing_account": `"012345-6789AB-CDEF01"`},
		"such as my-project-123, or empty": {"database_project": `"My Data"`},
		"for the database (default)":       {"database": `"(default)"`},
		"a whole number in [1, 1000]":      {"instances": "2.5"},
		"whole number in [1, 1000]":        {"concurrency": "12.5"},
	} {
		if p := planOf(t, variables); len(p.refused) != 1 || !strings.Contains(p.refused[0], want) {
			t.Errorf("%v: refused are %q, want %q", variables, p.refused, want)
		}
	}
}

// TestTTL checks the commands for time-to-live policies that the module prints. gcloud must know
// them, and their kinds must be the kinds of records with an expiry time.
func TestTTL(t *testing.T) {
	commands := strings.Split(planOf(t, nil).outputs["ttl"].AsString(), "\n")
	kinds := make(map[string]bool)
	for _, c := range commands {
		m := regexp.MustCompile(`^gcloud firestore fields ttls update expires --collection-group=(\w+) ` +
			`--enable-ttl --async --project=my-project --database='\(default\)'$`).
			FindStringSubmatch(c)
		if m == nil {
			t.Fatalf("what is %q?", c)
		}
		kinds[m[1]] = true
	}
	// Find the records that have the property expires.
	files, err := filepath.Glob("../../mapper/internal/record/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	n := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(b), "`datastore:\"expires,omitempty\"`")
	}
	if n != len(kinds) {
		t.Errorf("%d records may expire, and the commands are for %v", n, kinds)
	}
	gcloud, err := exec.LookPath("gcloud")
	if err == nil {
		gcloud, err = filepath.EvalSymlinks(gcloud)
	}
	if err != nil {
		t.Skip("left out: gcloud's own tree of commands, as gcloud is not installed")
	}
	roots := []string{filepath.Dir(filepath.Dir(gcloud)), "/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk"}
	for _, root := range roots {
		b, err := os.ReadFile(filepath.Join(root, "lib/surface/firestore/fields/ttls/update.yaml"))
		if err != nil {
			continue
		}
		for _, part := range []string{"arg_name: \"enable-ttl\"", "--collection-group=", "async:"} {
			if !strings.Contains(string(b), part) {
				t.Errorf("gcloud firestore fields ttls update has no %s", part)
			}
		}
		return
	}
	t.Skip("left out: gcloud's own tree of commands, which is not where gcloud is")
}
