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

// terraformFlags has, for each command of Terraform, the flags that the documentation may use. The
// value true means that the flag is followed by a value.
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

// A TerraformCall is a parsed command line of Terraform.
type TerraformCall struct {
	Command   string
	Folder    string // the value of -chdir
	Flags     map[string]bool
	Variables map[string]string
	Arguments []string
}

// ParseTerraform parses the arguments of Terraform. It returns an error if a variable is not
// declared in the checkout's deploy/terraform/example.
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
	return call, call.check(checkout)
}

// check returns an error for a call without a command, or with a variable that the module does not
// declare.
func (c TerraformCall) check(checkout string) error {
	switch c.Command {
	case "":
		return errors.New("Usage: terraform [global options] <subcommand> [args]")
	case "plan", "apply", "destroy":
		m, err := readModule(filepath.Join(checkout, "deploy", "terraform", "example"))
		if err != nil {
			return err
		}
		return m.checkVariables(slices.Sorted(maps.Keys(c.Variables)))
	}
	return nil
}

// terraform runs a command line of Terraform.
func (c *Cloud) terraform(ctx context.Context, cmd command) (reply, error) {
	call, err := ParseTerraform(c.options.Checkout, cmd.Args)
	if err != nil {
		return reply{}, err
	}
	folder := filepath.Join(cmd.Folder, call.Folder)
	if files, _ := filepath.Glob(filepath.Join(folder, "*.tf")); len(files) == 0 {
		return reply{}, fmt.Errorf("Error: No configuration files in %s", folder)
	}
	if target, err := filepath.EvalSymlinks(folder); err == nil {
		folder = target
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
		// cancel must not end this context, because a later destroy command also calls functions of
		// the plan
		p := &plan{cloud: c, ctx: context.WithoutCancel(ctx), made: m}
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

// A state is Terraform's record of the resources that it has created.
type state struct {
	there   map[string]bool // the addresses of the resources that exist
	undo    []func() error
	outputs map[string]string
}

// create creates a resource in the project. It returns the values that Google's provider would
// compute, and a function that removes the resource again.
func (p *plan) create(kind string, r object) (computed map[string]string, undo func() error, err error) {
	if m, ok := mere[kind]; ok {
		computed = make(map[string]string)
		for name, text := range m.computed {
			computed[name] = strings.NewReplacer("PROJECT", p.cloud.options.Project, "NUMBER", p.cloud.number,
				"NAME", r.text("name"), "SECRET_ID", r.text("secret_id"), "SECRET", r.text("secret")).Replace(text)
		}
		return computed, func() error { return nil }, p.cloud.needs(m.apis...)
	}
	if g, ok := grants[kind]; ok {
		return p.grant(grant{g.on(p.cloud, r), r.text("role"), r.text("member")}, g.api)
	}
	if create, ok := creates[kind]; ok {
		return create(p, r)
	}
	return nil, nil, fmt.Errorf("the stand-in has no model of %s: add it to create in "+
		"internal/cloudstandin/terraform.go", kind)
}

// mere has the kinds of resources that have no effect in the simulated project. They only have
// computed values, and need some APIs.
var mere = map[string]struct {
	computed map[string]string
	apis     []string
}{
	"google_project": {map[string]string{"number": "NUMBER", "project_id": "PROJECT"},
		[]string{"cloudresourcemanager.googleapis.com"}},
	"google_monitoring_dashboard": {map[string]string{"id": "projects/PROJECT/dashboards/1"},
		[]string{"monitoring.googleapis.com"}},
	"google_logging_metric": {map[string]string{"id": "NAME"}, []string{"logging.googleapis.com"}},
	"google_secret_manager_secret": {map[string]string{"id": "projects/PROJECT/secrets/SECRET_ID",
		"name": "projects/PROJECT/secrets/SECRET_ID"}, []string{"secretmanager.googleapis.com"}},
	"google_secret_manager_secret_version": {map[string]string{"version": "1", "id": "SECRET/versions/1"},
		[]string{"secretmanager.googleapis.com"}},
	"google_billing_budget": {map[string]string{"id": "billingAccounts/x/budgets/1"},
		[]string{"billingbudgets.googleapis.com"}},
	"time_sleep":     {map[string]string{"id": "1"}, nil},
	"terraform_data": {map[string]string{"id": "1"}, nil},
	"null_resource":  {map[string]string{"id": "1"}, nil},
}

// grants has the kinds of resources that give a member a role. The function on returns the resource
// to which the role applies. The api must be enabled.
var grants = map[string]struct {
	on  func(*Cloud, object) string
	api string
}{
	"google_project_iam_member": {func(*Cloud, object) string { return "project" },
		"cloudresourcemanager.googleapis.com"},
	"google_service_account_iam_member": {func(_ *Cloud, r object) string {
		_, email, _ := strings.Cut(r.text("service_account_id"), "/serviceAccounts/")
		return "account:" + email
	}, "iam.googleapis.com"},
	"google_cloud_tasks_queue_iam_member": {func(c *Cloud, r object) string {
		return "queue:" + c.queue(r.text("location"), r.text("name"))
	}, "cloudtasks.googleapis.com"},
	"google_cloud_run_v2_service_iam_member": {func(_ *Cloud, r object) string {
		return "service:" + r.text("location") + "/" + r.text("name")
	}, "run.googleapis.com"},
	"google_secret_manager_secret_iam_member": {func(_ *Cloud, r object) string {
		return "secret:" + r.text("secret_id")
	}, "secretmanager.googleapis.com"},
}

// grant gives a member a role. It returns an error if the API is not enabled. Its results are the
// same as create's.
func (p *plan) grant(g grant, api string) (map[string]string, func() error, error) {
	if err := p.cloud.needs(api); err != nil {
		return nil, nil, err
	}
	return map[string]string{}, p.drop(func() { delete(p.cloud.grants, g) }), p.cloud.give(g, true)
}

// drop returns a function that locks the Cloud and then calls f, which removes a resource from the
// project.
func (p *plan) drop(f func()) func() error {
	return func() error {
		p.cloud.mu.Lock()
		defer p.cloud.mu.Unlock()
		f()
		return nil
	}
}

// creates has the functions that create resources in the simulated project, by the kind of
// resource.
var creates = map[string]func(*plan, object) (map[string]string, func() error, error){
	"google_project_service":                 (*plan).createAPI,
	"google_service_account":                 (*plan).createAccount,
	"google_cloud_tasks_queue":               (*plan).createQueue,
	"google_cloud_run_v2_service":            (*plan).createService,
	"google_cloud_scheduler_job":             (*plan).createSchedule,
	"google_monitoring_notification_channel": (*plan).createChannel,
	"google_monitoring_alert_policy":         (*plan).createPolicy,
	"google_firestore_field": func(*plan, object) (map[string]string, func() error, error) {
		return nil, nil, errors.New("creating Field: googleapi: Error 400: Single-field indexing modes can't be " +
			"updated for databases in Datastore mode")
	},
}

func (p *plan) createAPI(r object) (map[string]string, func() error, error) {
	c := p.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	if !apiNames[r.text("service")] {
		return nil, nil, fmt.Errorf("service %s not found", r.text("service"))
	}
	c.apis[r.text("service")] = true
	return map[string]string{"id": c.options.Project + "/" + r.text("service")}, func() error { return nil }, nil
}

func (p *plan) createAccount(r object) (map[string]string, func() error, error) {
	c := p.cloud
	email := r.text("account_id") + "@" + c.options.Project + ".iam.gserviceaccount.com"
	if err := c.needs("iam.googleapis.com"); err != nil {
		return nil, nil, err
	}
	name := "projects/" + c.options.Project + "/serviceAccounts/" + email
	return map[string]string{"email": email, "member": "serviceAccount:" + email, "name": name, "id": name},
		p.drop(func() { delete(c.accounts, email) }), c.account(email)
}

func (p *plan) createSchedule(r object) (map[string]string, func() error, error) {
	c := p.cloud
	target := r.block("http_target")
	token := target.block("oidc_token")
	s := &schedule{
		name: r.text("name"), uri: target.text("uri"), method: target.text("http_method"),
		account: token.text("service_account_email"), audience: token.text("audience"),
	}
	if err := c.needs("cloudscheduler.googleapis.com"); err != nil {
		return nil, nil, err
	}
	return map[string]string{"id": s.name}, p.drop(func() { delete(c.schedules, s.name) }), c.addSchedule(s)
}

func (p *plan) createChannel(r object) (map[string]string, func() error, error) {
	c := p.cloud
	if err := c.needs("monitoring.googleapis.com"); err != nil {
		return nil, nil, err
	}
	name := c.channel(r.item("labels", "email_address"))
	return map[string]string{"name": name, "id": name}, p.drop(func() { delete(c.channels, name) }), nil
}

func (p *plan) createPolicy(r object) (map[string]string, func() error, error) {
	c := p.cloud
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
	return map[string]string{"name": name, "id": name}, p.drop(func() { delete(c.policies, name) }), err
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
			continue // a sidecar container, which is not simulated
		}
		image := container.text("image")
		if d.binary = c.images[image]; d.binary == "" {
			return nil, nil, fmt.Errorf("creating Service: Image '%s' not found.", image)
		}
		d.ready = container.block("startup_probe").block("http_get").text("path")
		for _, e := range container.blocks["env"] {
			if e.text("name") != "OTEL_EXPORTER_OTLP_ENDPOINT" { // no collector of telemetry runs here
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
