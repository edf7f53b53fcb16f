package cloudstandin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// terraformFlags are the flags of Terraform's commands that the documentation may use, and whether
// they have a value.
var terraformFlags = map[string]map[string]bool{
	"init":     {"-upgrade": false, "-input": true, "-backend-config": true},
	"plan":     {"-var": true, "-var-file": true, "-out": true, "-target": true},
	"apply":    {"-var": true, "-var-file": true, "-auto-approve": false, "-target": true},
	"destroy":  {"-var": true, "-var-file": true, "-auto-approve": false, "-target": true},
	"output":   {"-raw": false, "-json": false},
	"validate": {"-json": false},
	"fmt":      {"-check": false, "-recursive": false, "-diff": false},
	"import":   {"-var": true, "-var-file": true},
	"state":    {},
}

// A TerraformCall is a command line of Terraform.
type TerraformCall struct {
	Command   string
	Folder    string // of -chdir
	Flags     map[string]bool
	Variables map[string]string
	Arguments []string
}

// ParseTerraform reads the arguments of Terraform, and compares its variables with those of
// deploy/terraform/example in a checkout.
func ParseTerraform(checkout string, args []string) (TerraformCall, error) {
	call := TerraformCall{Flags: make(map[string]bool), Variables: make(map[string]string)}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, has := strings.Cut(arg, "=")
		switch {
		case name == "-chdir" && has && call.Command == "":
			call.Folder = value
			continue
		case !strings.HasPrefix(arg, "-") && call.Command == "":
			if call.Command = arg; terraformFlags[arg] == nil {
				return call, fmt.Errorf("Terraform has no command named %q.", arg)
			}
			continue
		case !strings.HasPrefix(arg, "-"):
			call.Arguments = append(call.Arguments, arg)
			continue
		}
		takes, known := terraformFlags[call.Command][name]
		switch {
		case !known || has && !takes:
			return call, fmt.Errorf("Error: Failed to parse command-line flags: flag provided but not defined: "+
				"%s", arg)
		case takes && !has && i+1 == len(args):
			return call, fmt.Errorf("Error: Failed to parse command-line flags: flag needs an argument: %s", arg)
		case takes && !has:
			i++
			value = args[i]
		}
		call.Flags[name] = true
		if name == "-var" {
			variable, text, ok := strings.Cut(value, "=")
			if !ok {
				return call, fmt.Errorf("Error: The given -var option %q is not correctly specified. Must be a "+
					"variable name and value separated by an equals sign.", value)
			}
			call.Variables[variable] = text
		}
	}
	switch call.Command {
	case "":
		return call, errors.New("Usage: terraform [global options] <subcommand> [args]")
	case "plan", "apply", "destroy":
		m, err := readModule(filepath.Join(checkout, "deploy", "terraform", "example"))
		if err != nil {
			return call, err
		}
		if err := m.checkVariables(slices.Sorted(maps.Keys(call.Variables))); err != nil {
			return call, err
		}
	}
	return call, nil
}

// terraform carries out a command line of Terraform.
func (c *Cloud) terraform(ctx context.Context, cmd command) (reply, error) {
	call, err := ParseTerraform(c.options.Checkout, cmd.Args)
	if err != nil {
		return reply{}, err
	}
	folder := filepath.Join(cmd.Folder, call.Folder)
	if files, _ := filepath.Glob(filepath.Join(folder, "*.tf")); len(files) == 0 {
		return reply{}, fmt.Errorf("Error: No configuration files in %s", folder)
	}
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	m := c.states[folder]
	switch {
	case call.Command == "init":
		if m == nil {
			c.states[folder] = &state{}
		}
		return reply{Out: "Terraform has been successfully initialized!\n"}, nil
	case m == nil:
		return reply{}, errors.New("Error: Inconsistent dependency lock file. To make the initial dependency " +
			"selections that will initialize the dependency lock file, run:\n  terraform init")
	case call.Command == "output":
		if len(call.Arguments) != 1 {
			return reply{}, errors.New("the stand-in prints one output by its name")
		}
		value, ok := m.outputs[call.Arguments[0]]
		if !ok {
			return reply{}, fmt.Errorf("Error: Output %q not found", call.Arguments[0])
		}
		return reply{Out: value}, nil
	case !c.adc:
		return reply{}, errors.New("Error: Attempted to load application default credentials since neither " +
			"`credentials` nor `access_token` was set in the provider block. No credentials loaded. " +
			"To use your gcloud credentials, run 'gcloud auth application-default login'")
	case !call.Flags["-auto-approve"]:
		return reply{}, errors.New("Do you want to perform these actions? Nobody answers: -auto-approve")
	case call.Command == "apply":
		root, err := readModule(folder)
		if err != nil {
			return reply{}, err
		}
		p := &plan{cloud: c, ctx: context.WithoutCancel(ctx), made: m} // what it undoes is undone by another command
		added := len(m.undo)
		err = p.apply(root, call.Variables)
		if err != nil {
			return reply{}, fmt.Errorf("Error: %w", err)
		}
		m.outputs = p.outputs
		return reply{Out: fmt.Sprintf("\nApply complete! Resources: %d added, 0 changed, 0 destroyed.\n",
			len(m.undo)-added)}, nil
	case call.Command == "destroy":
		n := len(m.undo)
		for _, undo := range slices.Backward(m.undo) {
			if err := undo(); err != nil {
				return reply{}, fmt.Errorf("Error: %w", err)
			}
		}
		m.undo, m.there, m.outputs = nil, nil, nil
		return reply{Out: fmt.Sprintf("\nDestroy complete! Resources: %d destroyed.\n", n)}, nil
	}
	return reply{}, fmt.Errorf("the stand-in has no model of terraform %s", call.Command)
}

// A state is what Terraform knows of what it has made.
type state struct {
	there   map[string]bool // addresses
	undo    []func() error
	outputs map[string]string
}

// create makes what a resource declares, and returns what the provider says of it.
func (p *plan) create(kind string, r object) (computed map[string]string, undo func() error, err error) {
	c := p.cloud
	nothing := func() error { return nil }
	drop := func(f func()) func() error {
		return func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			f()
			return nil
		}
	}
	grants := func(resource string, apis ...string) (map[string]string, func() error, error) {
		g := grant{resource, r.text("role"), r.text("member")}
		if err := c.needs(apis...); err != nil {
			return nil, nil, err
		}
		return map[string]string{}, drop(func() { delete(c.grants, g) }), c.give(g, true)
	}
	project := "projects/" + c.options.Project
	switch kind {
	case "google_project":
		return map[string]string{"number": c.number, "project_id": c.options.Project}, nothing,
			c.needs("cloudresourcemanager.googleapis.com")
	case "google_project_service":
		c.mu.Lock()
		defer c.mu.Unlock()
		if !apiNames[r.text("service")] {
			return nil, nil, fmt.Errorf("service %s not found", r.text("service"))
		}
		c.apis[r.text("service")] = true
		return map[string]string{"id": c.options.Project + "/" + r.text("service")}, nothing, nil
	case "google_service_account":
		email := r.text("account_id") + "@" + c.options.Project + ".iam.gserviceaccount.com"
		if err := c.needs("iam.googleapis.com"); err != nil {
			return nil, nil, err
		}
		return map[string]string{
			"email": email, "member": "serviceAccount:" + email, "name": project + "/serviceAccounts/" + email,
			"id": project + "/serviceAccounts/" + email,
		}, drop(func() { delete(c.accounts, email) }), c.account(email)
	case "google_project_iam_member":
		return grants("project", "cloudresourcemanager.googleapis.com")
	case "google_service_account_iam_member":
		_, email, _ := strings.Cut(r.text("service_account_id"), "/serviceAccounts/")
		return grants("account:"+email, "iam.googleapis.com")
	case "google_cloud_tasks_queue_iam_member":
		return grants("queue:"+c.queue(r.text("location"), r.text("name")), "cloudtasks.googleapis.com")
	case "google_cloud_run_v2_service_iam_member":
		return grants("service:"+r.text("location")+"/"+r.text("name"), "run.googleapis.com")
	case "google_secret_manager_secret_iam_member":
		return grants("secret:"+r.text("secret_id"), "secretmanager.googleapis.com")
	case "google_cloud_tasks_queue":
		return p.createQueue(r)
	case "google_cloud_run_v2_service":
		return p.createService(r)
	case "google_cloud_scheduler_job":
		target := r.block("http_target")
		token := target.block("oidc_token")
		s := &schedule{
			name: r.text("name"), uri: target.text("uri"), method: target.text("http_method"),
			account: token.text("service_account_email"), audience: token.text("audience"),
		}
		if err := c.needs("cloudscheduler.googleapis.com"); err != nil {
			return nil, nil, err
		}
		return map[string]string{"id": s.name}, drop(func() { delete(c.schedules, s.name) }), c.addSchedule(s)
	case "google_monitoring_notification_channel":
		if err := c.needs("monitoring.googleapis.com"); err != nil {
			return nil, nil, err
		}
		name := c.channel(r.item("labels", "email_address"))
		return map[string]string{"name": name, "id": name}, drop(func() { delete(c.channels, name) }), nil
	case "google_monitoring_alert_policy":
		if err := c.needs("monitoring.googleapis.com", "logging.googleapis.com"); err != nil {
			return nil, nil, err
		}
		var conditions []string
		for _, condition := range r.blocks["conditions"] {
			for _, inner := range []string{"condition_matched_log", "condition_prometheus_query_language",
				"condition_absent", "condition_threshold"} {
				conditions = append(conditions, condition.block(inner).text("filter"),
					condition.block(inner).text("query"))
			}
		}
		name, err := c.policy(policy{r.text("display_name"), strings.Join(conditions, "\n"),
			r.list("notification_channels")})
		return map[string]string{"name": name, "id": name}, drop(func() { delete(c.policies, name) }), err
	case "google_monitoring_dashboard":
		return map[string]string{"id": project + "/dashboards/1"}, nothing, c.needs("monitoring.googleapis.com")
	case "google_logging_metric":
		return map[string]string{"id": r.text("name")}, nothing, c.needs("logging.googleapis.com")
	case "google_secret_manager_secret":
		id := project + "/secrets/" + r.text("secret_id")
		return map[string]string{"id": id, "name": id}, nothing, c.needs("secretmanager.googleapis.com")
	case "google_secret_manager_secret_version":
		return map[string]string{"version": "1", "id": r.text("secret") + "/versions/1"}, nothing,
			c.needs("secretmanager.googleapis.com")
	case "google_firestore_field":
		return nil, nil, errors.New("creating Field: googleapi: Error 400: Single-field indexing modes can't be " +
			"updated for databases in Datastore mode")
	case "google_billing_budget":
		return map[string]string{"id": "billingAccounts/x/budgets/1"}, nothing,
			c.needs("billingbudgets.googleapis.com")
	case "time_sleep", "terraform_data", "null_resource":
		return map[string]string{"id": "1"}, nothing, nil
	}
	return nil, nil, fmt.Errorf("the stand-in has no model of %s: add it to create in "+
		"internal/cloudstandin/terraform.go", kind)
}

func (p *plan) createQueue(r object) (map[string]string, func() error, error) {
	c := p.cloud
	if err := c.needs("cloudtasks.googleapis.com"); err != nil {
		return nil, nil, err
	}
	limits, retry := r.block("rate_limits"), r.block("retry_config")
	q := &cloudtaskspb.Queue{
		Name: c.queue(r.text("location"), r.text("name")),
		RateLimits: &cloudtaskspb.RateLimits{
			MaxConcurrentDispatches: int32(limits.number("max_concurrent_dispatches")),
			MaxDispatchesPerSecond:  limits.number("max_dispatches_per_second"),
		},
		RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: int32(retry.number("max_attempts"))},
	}
	for name, field := range map[string]**durationpb.Duration{"min_backoff": &q.RetryConfig.MinBackoff,
		"max_backoff": &q.RetryConfig.MaxBackoff} {
		if text := retry.text(name); text != "" {
			d, err := time.ParseDuration(text)
			if err != nil {
				return nil, nil, err
			}
			*field = durationpb.New(d)
		}
	}
	undo := func() error {
		c.mu.Lock()
		delete(c.locations, r.text("name"))
		c.mu.Unlock()
		return c.queues.DeleteQueue(c.marked(p.ctx), &cloudtaskspb.DeleteQueueRequest{Name: q.Name})
	}
	return map[string]string{"id": q.Name}, undo, c.makeQueue(p.ctx, q)
}

func (p *plan) createService(r object) (map[string]string, func() error, error) {
	c := p.cloud
	if err := c.needs("run.googleapis.com"); err != nil {
		return nil, nil, err
	}
	template := r.block("template")
	d := deployment{
		name: r.text("name"), region: r.text("location"), account: template.text("service_account"),
		open: r.text("invoker_iam_disabled") == "true", environment: make(map[string]string),
	}
	for _, container := range template.blocks["containers"] {
		if len(container.blocks["ports"]) == 0 {
			continue // one beside it
		}
		image := container.text("image")
		if d.binary = c.images[image]; d.binary == "" {
			return nil, nil, fmt.Errorf("creating Service: Image '%s' not found.", image)
		}
		d.ready = container.block("startup_probe").block("http_get").text("path")
		for _, e := range container.blocks["env"] {
			if e.text("name") != "OTEL_EXPORTER_OTLP_ENDPOINT" { // no collector runs here
				d.environment[e.text("name")] = e.text("value")
			}
		}
	}
	s, err := c.deploy(d)
	if err != nil {
		return nil, nil, err
	}
	undo := func() error {
		s.stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.services, d.name)
		return nil
	}
	return map[string]string{"uri": s.url, "id": d.name}, undo, nil
}
