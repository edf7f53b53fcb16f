package cloudstandin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A handler implements one command of gcloud. Its function returns the texts that gcloud prints to
// stdout and to stderr.
type handler struct {
	apis string // the APIs that must be enabled, without .googleapis.com, and separated by spaces
	do   func(r *request) (out, said string, err error)
}

// A request is the argument of a handler: the parsed command line, and the Cloud.
type request struct {
	context.Context
	*Cloud
	Call
	cmd command
}

// Place returns the name of the command's flag for the location, or "" if it has no such flag.
// gcloud's parser does not require the flag: without it, gcloud uses its configuration or the
// project, or asks the user.
func (c Call) Place() string {
	for prefix, flag := range map[string]string{
		"tasks ": "--location", "scheduler ": "--location", "artifacts ": "--location", "firestore databases " +
			"create": "--location",
		"run ": "--region", "builds submit": "--region",
	} {
		if strings.HasPrefix(c.Path, prefix) {
			return flag
		}
	}
	return ""
}

// gcloud runs a command line of gcloud.
func (c *Cloud) gcloud(ctx context.Context, cmd command) (reply, error) {
	call, err := Gcloud().Parse(cmd.Args)
	if err != nil {
		return reply{}, err
	}
	h, ok := handlers[call.Path]
	if !ok {
		return reply{}, call.errorf("the stand-in has no model of this command: add one to handlers in " +
			"internal/cloudstandin/gcloud.go")
	}
	if !strings.HasPrefix(call.Path, "auth ") && c.user == "" {
		return reply{}, call.errorf("You do not currently have an active account selected.\nPlease run:\n\n  $ " +
			"gcloud auth login")
	}
	project := call.Get("--project")
	if project == "" {
		project = cmd.Environment["CLOUDSDK_CORE_PROJECT"]
	}
	if !strings.HasPrefix(call.Path, "auth ") && !strings.HasPrefix(call.Path, "projects ") &&
		!strings.HasPrefix(call.Path, "billing ") {
		if project == "" {
			return reply{}, call.errorf("The required property [project] is not currently set.")
		}
		if project != c.options.Project {
			return reply{}, call.errorf("PERMISSION_DENIED: The caller does not have permission on project %s (or "+
				"it may not exist).", project)
		}
	}
	if flag := call.Place(); flag != "" && call.Get(flag) == "" {
		return reply{}, call.errorf("Error parsing [%s].\nThe [%[1]s] resource is not properly specified.\nFailed "+
			"to find attribute [location]. "+
			"Please use the %s flag to manually specify a location.", call.Path, flag)
	}
	for api := range strings.FieldsSeq(h.apis) {
		if err := c.needs(api + ".googleapis.com"); err != nil {
			return reply{}, call.errorf("%v", err)
		}
	}
	out, said, err := h.do(&request{ctx, c, call, cmd})
	if err != nil {
		return reply{Err: said}, call.errorf("%v", message(err))
	}
	if call.Get("--format") == "none" {
		out = ""
	}
	return reply{Out: line(out), Err: line(said)}, nil
}

func line(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// message returns the text that gcloud prints for an error of the emulators.
func message(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(s.Code().String(),
			"${1}_$2")) + ": " + s.Message()
	}
	return err.Error()
}

// format returns named values as gcloud prints them. With the flag --format=value(...) it returns
// only the values named in the parentheses, and otherwise all. It returns an error if a named value
// is not in the map.
func format(call Call, values map[string]string) (string, error) {
	asked, ok := strings.CutPrefix(call.Get("--format"), "value(")
	if !ok {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			all = append(all, name+": "+values[name])
		}
		return strings.Join(all, "\n"), nil
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(asked, ")"), ",") {
		value, known := values[strings.TrimSpace(name)]
		if !known {
			return "", fmt.Errorf("the stand-in knows no field %q of it", name)
		}
		all = append(all, value)
	}
	return strings.Join(all, "\t"), nil
}

var handlers = map[string]handler{
	"auth login": {do: func(r *request) (string, string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.user = r.Positional(0); r.user == "" {
			r.user = "ann@example.com"
		}
		return "", fmt.Sprintf("Your browser has been opened to visit:\n\n    "+
			"https://accounts.google.com/o/oauth2/auth?...\n\n\n"+
			"You are now logged in as [%s].", r.user), nil
	}},
	"auth application-default login": {do: func(r *request) (string, string, error) {
		r.adc = true
		return "", "Your browser has been opened to visit:\n\n    " +
			"https://accounts.google.com/o/oauth2/auth?...\n\n\n" +
			"Credentials saved to file: [" + r.folder + "/application_default_credentials.json]", nil
	}},
	"auth print-access-token":   {do: accessToken},
	"auth print-identity-token": {do: identityToken},
	"billing projects describe": {do: func(r *request) (string, string, error) {
		if r.Positional(0) != r.options.Project {
			return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
		}
		out, err := format(r.Call, map[string]string{"billingEnabled": "True", "projectId": r.options.Project})
		return out, "", err
	}},
	"projects describe": {do: func(r *request) (string, string, error) {
		if r.Positional(0) != r.options.Project {
			return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
		}
		out, err := format(r.Call, map[string]string{"projectNumber": r.number, "projectId": r.options.Project})
		return out, "", err
	}},
	"projects add-iam-policy-binding":    {do: binding("project", true)},
	"projects remove-iam-policy-binding": {do: binding("project", false)},
	"services enable": {do: func(r *request) (string, string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, api := range r.Positionals {
			if !apiNames[api] {
				return "", "", fmt.Errorf("PERMISSION_DENIED: Not found or permission denied for service(s): %s.",
					api)
			}
			r.apis[api] = true
		}
		return "", fmt.Sprintf("Operation \"operations/acf.p2-%s-00000000-0000\" finished successfully.",
			r.number), nil
	}},

	"firestore databases create": {apis: "firestore", do: func(r *request) (string, string, error) {
		id, mode := r.Get("--database"), strings.ToUpper(strings.ReplaceAll(r.Get("--type"), "-", "_"))
		r.mu.Lock()
		defer r.mu.Unlock()
		if id == "" {
			id = "(default)"
		}
		if r.databases[id] != "" {
			return "", "", errors.New("ALREADY_EXISTS: Database already exists. Please use another database_id")
		}
		if mode == "" {
			mode = "FIRESTORE_NATIVE"
		}
		r.databases[id] = mode
		return fmt.Sprintf("name: projects/%s/databases/%s/operations/...\nresponse:\n  "+
			"'@type': type.googleapis.com/google.firestore.admin.v1.Database\n  locationId: %s\n  type: %s",
			r.options.Project, id, r.Get("--location"), mode), "", nil
	}},
	"firestore databases describe": {apis: "firestore", do: func(r *request) (string, string, error) {
		mode, ok := r.databases[r.Get("--database")]
		if !ok {
			return "", "", fmt.Errorf("NOT_FOUND: Project '%s' or database '%s' does not exist.",
				r.options.Project, r.Get("--database"))
		}
		out, err := format(r.Call, map[string]string{"type": mode, "name": r.Get("--database")})
		return out, "", err
	}},
	"firestore databases delete": {apis: "firestore", do: func(r *request) (string, string, error) {
		return remove(r, r.databases, r.Get("--database"), "Deleted database ["+r.Get("--database")+"].")
	}},
	"firestore fields ttls update": {apis: "firestore", do: func(r *request) (string, string, error) {
		id := r.Get("--database")
		if id == "" {
			id = "(default)"
		}
		if err := r.database(r.options.Project, id); err != nil {
			return "", "", err
		}
		r.ttl[id+"/"+r.Get("--collection-group")+"/"+r.Positional(0)] = r.Get("--enable-ttl") == "true"
		return "", "Request issued for: [" + r.Positional(0) + "]", nil
	}},

	"iam service-accounts create": {apis: "iam", do: func(r *request) (string, string, error) {
		name := r.Positional(0)
		if !regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`).MatchString(name) {
			return "", "", fmt.Errorf("argument NAME: Bad value [%s]: Service account name must be between 6 and "+
				"30 characters (inclusive), must begin with a lowercase letter, "+
				"and consist of lowercase alphanumeric characters that can be separated by hyphens.", name)
		}
		email := name + "@" + r.options.Project + ".iam.gserviceaccount.com"
		return "", "Created service account [" + name + "].", r.account(email)
	}},
	"iam service-accounts delete": {apis: "iam", do: func(r *request) (string, string, error) {
		return remove(r, r.accounts, r.Positional(0), "deleted service account ["+r.Positional(0)+"]")
	}},
	"iam service-accounts add-iam-policy-binding": {apis: "iam", do: binding("account", true)},

	"artifacts repositories create": {apis: "artifactregistry", do: func(r *request) (string, string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.repos[r.Get("--location")+"/"+r.Positional(0)] = true
		return "", fmt.Sprintf("Create request issued for: [%s]\nWaiting for operation "+
			"[projects/%s/locations/%s/operations/...] to complete...done.\nCreated repository [%[1]s].",
			r.Positional(0), r.options.Project, r.Get("--location")), nil
	}},
	"artifacts repositories delete": {apis: "artifactregistry", do: func(r *request) (string, string, error) {
		name := r.Get("--location") + "/" + r.Positional(0)
		return remove(r, r.repos, name, "Deleted repository ["+r.Positional(0)+"].")
	}},
	"builds submit": {apis: "cloudbuild artifactregistry storage logging", do: submit},

	"tasks queues create":                 {apis: "cloudtasks", do: createQueue},
	"tasks queues describe":               {apis: "cloudtasks", do: describeQueue},
	"tasks queues delete":                 {apis: "cloudtasks", do: deleteQueue},
	"tasks queues add-iam-policy-binding": {apis: "cloudtasks", do: binding("queue", true)},

	"run deploy":                          {apis: "run", do: deploy},
	"run services add-iam-policy-binding": {apis: "run", do: binding("service", true)},
	"run services delete": {apis: "run", do: func(r *request) (string, string, error) {
		r.services[r.Positional(0)].stop()
		return remove(r, r.services, r.Positional(0), "Deleted service ["+r.Positional(0)+"].")
	}},

	"scheduler jobs create http": {apis: "cloudscheduler", do: createSchedule},
	"scheduler jobs run": {apis: "cloudscheduler", do: func(r *request) (string, string, error) {
		s, err := r.schedule(r.Call)
		if err != nil {
			return "", "", err
		}
		return "", "", r.call(r.Context, s)
	}},
	"scheduler jobs describe": {apis: "cloudscheduler", do: func(r *request) (string, string, error) {
		s, err := r.schedule(r.Call)
		if err != nil {
			return "", "", err
		}
		code := ""
		if s.code != 0 {
			code = strconv.Itoa(s.code)
		}
		state := map[bool]string{true: "PAUSED", false: "ENABLED"}[s.paused]
		out, err := format(r.Call, map[string]string{"status.code": code, "state": state})
		return out, "", err
	}},
	"scheduler jobs delete": {apis: "cloudscheduler", do: func(r *request) (string, string, error) {
		return remove(r, r.schedules, r.Positional(0), "Deleted job ["+r.Positional(0)+"].")
	}},

	"beta monitoring channels create": {apis: "monitoring", do: func(r *request) (string, string, error) {
		address, ok := strings.CutPrefix(r.Get("--channel-labels"), "email_address=")
		if r.Get("--type") != "email" || !ok || !strings.Contains(address, "@") {
			return "", "", errors.New("INVALID_ARGUMENT: Field \"notification_channel.labels['email_address']\" is " +
				"required")
		}
		name := r.channel(address)
		out, err := format(r.Call, map[string]string{"name": name})
		return out, "Created notification channel [" + name + "].", err
	}},
	"beta monitoring channels list": {apis: "monitoring", do: func(r *request) (string, string, error) {
		out, err := format(r.Call, map[string]string{"name": strings.Join(slices.Sorted(maps.Keys(r.channels)), "\n")})
		return out, "", err
	}},
	"beta monitoring channels delete": {apis: "monitoring", do: func(r *request) (string, string, error) {
		for name, p := range r.policies {
			if slices.Contains(p.channels, r.Positional(0)) {
				return "", "", fmt.Errorf("FAILED_PRECONDITION: The channel is used by the policy %s.", name)
			}
		}
		return remove(r, r.channels, r.Positional(0), "Deleted notification channel ["+r.Positional(0)+"].")
	}},
	"alpha monitoring policies create": {apis: "monitoring logging", do: createPolicy},
	"alpha monitoring policies list": {apis: "monitoring", do: func(r *request) (string, string, error) {
		wanted, _ := strings.CutPrefix(r.Get("--filter"), "displayName:")
		var all []string
		for _, name := range slices.Sorted(maps.Keys(r.policies)) {
			if strings.Contains(r.policies[name].display, wanted) {
				out, err := format(r.Call, map[string]string{"name": name, "displayName": r.policies[name].display})
				if err != nil {
					return "", "", err
				}
				all = append(all, out)
			}
		}
		return strings.Join(all, "\n"), "", nil
	}},
	"alpha monitoring policies delete": {apis: "monitoring", do: func(r *request) (string, string, error) {
		return remove(r, r.policies, r.Positional(0), "Deleted alert policy ["+r.Positional(0)+"].")
	}},
}

// apiNames are the APIs that this simulated project knows.
var apiNames = setOf(`
	artifactregistry.googleapis.com billingbudgets.googleapis.com cloudbilling.googleapis.com
	cloudbuild.googleapis.com cloudresourcemanager.googleapis.com cloudscheduler.googleapis.com
	cloudtasks.googleapis.com cloudtrace.googleapis.com datastore.googleapis.com firestore.googleapis.com
	iam.googleapis.com iamcredentials.googleapis.com iap.googleapis.com logging.googleapis.com
	monitoring.googleapis.com run.googleapis.com serviceusage.googleapis.com secretmanager.googleapis.com
	storage.googleapis.com telemetry.googleapis.com`)

// remove deletes the resource name from the map from. It returns what gcloud prints to stdout and
// to stderr; the latter is said. If the resource does not exist, or the flag --quiet is not given,
// it returns an error.
func remove[V any](r *request, from map[string]V, name, said string) (string, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := from[name]; !ok {
		return "", "", fmt.Errorf("NOT_FOUND: Requested entity was not found: %s", name)
	}
	if r.Get("--quiet") != "true" {
		return "", "", errors.New("This command asks \"Do you want to continue (Y/n)?\", and nobody answers: --quiet")
	}
	delete(from, name)
	return "", said, nil
}

// account creates a service account.
func (c *Cloud) account(email string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accounts[email] {
		name, _, _ := strings.Cut(email, "@")
		return fmt.Errorf("Resource in projects [%s] is the subject of a conflict: Service account %s already "+
			"exists within project projects/%[1]s.", c.options.Project, name)
	}
	c.accounts[email] = true
	return nil
}

// channel creates a notification channel for a mail address, and returns its name.
func (c *Cloud) channel(address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := fmt.Sprintf("projects/%s/notificationChannels/%d", c.options.Project, 1000+len(c.channels))
	c.channels[name] = address
	return name
}

// accessToken handles the command that prints an access token. The token is "access-token-of-" and
// the signed-in account, which the simulated curl accepts.
func accessToken(r *request) (string, string, error) {
	if r.user == "" {
		return "", "", errors.New("You do not currently have an active account selected.")
	}
	return "access-token-of-" + r.user, "", nil
}

func identityToken(r *request) (string, string, error) {
	account, audience := r.Get("--impersonate-service-account"), r.Get("--audiences")
	switch {
	case r.user == "":
		return "", "", errors.New("You do not currently have an active account selected.")
	case account == "" && (audience != "" || r.Get("--include-email") != ""):
		return "", "", errors.New("Invalid account type for `--audiences`. Requires valid service account.")
	case account == "":
		token, err := r.emulator.Token(r.user, gcloudAudience)
		return token, "", err
	}
	if err := r.needs("iamcredentials.googleapis.com"); err != nil {
		return "", "", err
	}
	if !r.accounts[account] || !r.has(memberOf(r.user), "account:"+account,
		"roles/iam.serviceAccountTokenCreator", "roles/iam.serviceAccountOpenIdTokenCreator") {
		return "", "", fmt.Errorf("PERMISSION_DENIED: Failed to impersonate [%s]. Make sure the account that's "+
			"trying to impersonate it has access to the service account "+
			"itself and the \"roles/iam.serviceAccountTokenCreator\" role.", account)
	}
	email := account
	if r.Get("--include-email") != "true" {
		email = ""
	}
	token, err := r.emulator.Token(email, audience)
	return token, "WARNING: This command is using service account impersonation. All API calls will be executed as " +
		"[" + account + "].", err
}

// binding returns a handler that adds a role binding on a resource of a kind, or removes it if on
// is false.
func binding(kind string, on bool) func(*request) (string, string, error) {
	return func(r *request) (string, string, error) {
		name := r.Positional(0)
		resource, what := kind, kind
		switch kind {
		case "project":
			if name != r.options.Project {
				return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
			}
		case "account":
			resource, what = "account:"+name, "serviceAccount"
			if !r.accounts[name] {
				return "", "", fmt.Errorf("NOT_FOUND: Unknown service account %s", name)
			}
		case "queue":
			resource = "queue:" + r.queue(r.Get("--location"), name)
			if r.locations[name] != r.Get("--location") {
				return "", "", errors.New("NOT_FOUND: Queue does not exist.")
			}
		case "service":
			resource = "service:" + r.Get("--region") + "/" + name
			if s := r.services[name]; s == nil || s.region != r.Get("--region") {
				return "", "", fmt.Errorf("NOT_FOUND: Resource '%s' of kind 'SERVICE' in region '%s' in project "+
					"'%s' does not exist.", name, r.Get("--region"), r.options.Project)
			}
		}
		return "bindings:\n- members:\n  - " + r.Get("--member") + "\n  role: " + r.Get("--role"),
			fmt.Sprintf("Updated IAM policy for %s [%s].", what, name),
			r.give(grant{resource, r.Get("--role"), r.Get("--member")}, on)
	}
}

func (c *Cloud) queue(location, name string) string {
	return "projects/" + c.options.Project + "/locations/" + location + "/queues/" + name
}

// submit handles "gcloud builds submit": it builds an image.
func submit(r *request) (string, string, error) {
	config, err := os.ReadFile(filepath.Join(r.cmd.Folder, r.Get("--config")))
	if err != nil {
		return "", "", err
	}
	image, ok := strings.CutPrefix(r.Get("--substitutions"), "_IMAGE=")
	if !ok || !strings.Contains(string(config), "$_IMAGE") {
		return "", "", errors.New("INVALID_ARGUMENT: generic::invalid_argument: key in the template \"_IMAGE\" is " +
			"not matched in the substitution data")
	}
	account := r.Get("--service-account")
	if account == "" {
		account = "projects/" + r.options.Project + "/serviceAccounts/" + r.number +
			"-compute@developer.gserviceaccount.com"
	} else if r.Get("--default-buckets-behavior") == "" && !strings.Contains(string(config), "logging:") {
		return "", "", errors.New("INVALID_ARGUMENT: if 'build.service_account' is specified, the build must " +
			"either (a) specify 'build.logs_bucket', (b) use the " +
			"REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either " +
			"CLOUD_LOGGING_ONLY / NONE logging options")
	}
	if err := r.mayBuild(account, image, "roles/cloudbuild.builds.builder"); err != nil {
		return "", "", err
	}
	pkg := "./" + filepath.Dir(r.Get("--config"))
	return "", "Creating temporary archive of files...\nID  CREATE_TIME  DURATION  SOURCE  IMAGES  STATUS\n...  " +
		"" + image + "  SUCCESS", r.build(r.Context, filepath.Join(r.cmd.Folder, r.Positional(0)), pkg, image)
}

// mayBuild returns an error if an account lacks a role that it needs to build an image, or if the
// project has no repository for this image. The account is projects/PROJECT/serviceAccounts/EMAIL.
func (c *Cloud) mayBuild(account, image, role string) error {
	email, ok := strings.CutPrefix(account, "projects/"+c.options.Project+"/serviceAccounts/")
	if !ok {
		return fmt.Errorf("INVALID_ARGUMENT: %s is not projects/PROJECT/serviceAccounts/ACCOUNT", account)
	}
	if !c.has("serviceAccount:"+email, "project", role) {
		return fmt.Errorf("PERMISSION_DENIED: %s does not have permission to build: it lacks %s", email, role)
	}
	host, rest, _ := strings.Cut(image, "/")
	location, ok := strings.CutSuffix(host, "-docker.pkg.dev")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || parts[0] != c.options.Project || !c.repos[location+"/"+parts[1]] {
		return fmt.Errorf("name unknown: Repository %q not found", image)
	}
	return nil
}

func createQueue(r *request) (string, string, error) {
	q := &cloudtaskspb.Queue{Name: r.queue(r.Get("--location"), r.Positional(0)),
		RateLimits: &cloudtaskspb.RateLimits{}, RetryConfig: &cloudtaskspb.RetryConfig{}}
	var problems []error
	number := func(flag string, most float64) float64 {
		text := r.Get(flag)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n > most {
			problems = append(problems, fmt.Errorf("argument %s: Value must be a number of at most %v; received: "+
				"%s", flag, most, text))
		}
		return n
	}
	duration := func(flag string) *durationpb.Duration {
		text := r.Get(flag)
		if text == "" {
			return nil
		}
		d, err := time.ParseDuration(text)
		if err != nil || !strings.HasSuffix(text, "s") {
			problems = append(problems, fmt.Errorf("argument %s: must be seconds followed by 's'; received: %s",
				flag, text))
		}
		return durationpb.New(d)
	}
	q.RateLimits.MaxConcurrentDispatches = int32(number("--max-concurrent-dispatches", 5000))
	q.RateLimits.MaxDispatchesPerSecond = number("--max-dispatches-per-second", 500)
	if r.Get("--max-attempts") == "unlimited" {
		q.RetryConfig.MaxAttempts = -1
	} else {
		q.RetryConfig.MaxAttempts = int32(number("--max-attempts", 1e9))
	}
	q.RetryConfig.MinBackoff, q.RetryConfig.MaxBackoff = duration("--min-backoff"), duration("--max-backoff")
	if err := errors.Join(problems...); err != nil {
		return "", "", err
	}
	return "", "Created queue [" + r.Get("--location") + "/" + r.Positional(0) + "].", r.makeQueue(r.Context, q)
}

// makeQueue creates a queue in the embedded Cloud Tasks.
func (c *Cloud) makeQueue(ctx context.Context, q *cloudtaskspb.Queue) error {
	parent, name, _ := strings.Cut(q.Name, "/queues/")
	if _, err := c.queues.CreateQueue(c.marked(ctx), &cloudtaskspb.CreateQueueRequest{Parent: parent,
		Queue: q}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locations[name] = parent[strings.LastIndexByte(parent, '/')+1:]
	return nil
}

func describeQueue(r *request) (string, string, error) {
	q, err := r.queues.GetQueue(r.marked(r.Context),
		&cloudtaskspb.GetQueueRequest{Name: r.queue(r.Get("--location"), r.Positional(0))})
	if err != nil {
		return "", "", err
	}
	out, err := format(r.Call, map[string]string{"name": q.Name, "state": q.State.String()})
	return out, "", err
}

func deleteQueue(r *request) (string, string, error) {
	_, said, err := remove(r, r.locations, r.Positional(0), "Deleted queue "+
		"["+r.Get("--location")+"/"+r.Positional(0)+"].")
	if err == nil {
		err = r.queues.DeleteQueue(r.marked(r.Context),
			&cloudtaskspb.DeleteQueueRequest{Name: r.queue(r.Get("--location"), r.Positional(0))})
	}
	return "", said, err
}

// imageOf returns the image that a command deploys. If the command has a source folder instead of
// an image, imageOf builds the image first.
func imageOf(r *request, name, region string) (string, error) {
	image, source := r.Get("--image"), r.Get("--source")
	switch {
	case (image == "") == (source == ""):
		return "", errors.New("Requires a container image to deploy (e.g. " +
			"`us-docker.pkg.dev/cloudrun/container/hello:latest`), or --source")
	case image != "":
		return image, nil
	}
	if err := r.needs("cloudbuild.googleapis.com", "artifactregistry.googleapis.com",
		"storage.googleapis.com"); err != nil {
		return "", err
	}
	if !r.repos[region+"/cloud-run-source-deploy"] {
		if r.Get("--quiet") != "true" {
			return "", errors.New("This command asks whether it may create the repository " +
				"[cloud-run-source-deploy], and nobody answers: --quiet")
		}
		r.repos[region+"/cloud-run-source-deploy"] = true
	}
	image = fmt.Sprintf("%s-docker.pkg.dev/%s/cloud-run-source-deploy/%s", region, r.options.Project, name)
	if err := r.mayBuild(r.Get("--build-service-account"), image, "roles/run.builder"); err != nil {
		return "", err
	}
	if err := r.build(r.Context, filepath.Join(r.cmd.Folder, source), ".", image); err != nil {
		return "", fmt.Errorf("Build failed: %w", err)
	}
	return image, nil
}

// deploy handles "gcloud run deploy". It deploys an image, or builds one from a source folder and
// deploys it.
func deploy(r *request) (string, string, error) {
	name, region := r.Positional(0), r.Get("--region")
	if name == "" {
		return "", "", errors.New("This command asks for the name of the service, and nobody answers")
	}
	image, err := imageOf(r, name, region)
	if err != nil {
		return "", "", err
	}
	if r.images[image] == "" {
		return "", "", fmt.Errorf("Image '%s' not found.", image)
	}
	if r.Get("--service-account") == "" {
		return "", "", errors.New("the service would run as the Compute Engine account, which has no role here: " +
			"--service-account")
	}
	d := deployment{name: name, region: region, account: r.Get("--service-account"), binary: r.images[image],
		environment: make(map[string]string)}
	d.open = r.Get("--invoker-iam-check") == "false"
	for part := range strings.SplitSeq(r.Get("--startup-probe"), ",") {
		if path, ok := strings.CutPrefix(part, "httpGet.path="); ok {
			d.ready = path
		}
	}
	if _, ok := r.Flags["--allow-unauthenticated"]; !ok && r.Get("--quiet") != "true" && !d.open {
		return "", "", errors.New("This command asks \"Allow unauthenticated invocations to [" + name + "] " +
			"(y/N)?\", and nobody answers: --no-allow-unauthenticated")
	}
	for pair := range strings.SplitSeq(r.Get("--set-env-vars"), ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok && pair != "" {
			return "", "", fmt.Errorf("argument --set-env-vars: Bad syntax for dict arg: [%s].", pair)
		}
		d.environment[key] = value
	}
	delete(d.environment, "")
	s, err := r.deploy(d)
	if err != nil {
		return "", "", err
	}
	return "", fmt.Sprintf("Deploying container to Cloud Run service [%s] in project [%s] region [%s]\nDone.\n"+
		"Service [%[1]s] revision [%[1]s-%05[4]d-abc] has been deployed and is serving 100 percent of "+
		"traffic.\nService URL: %s", name, r.options.Project, region, s.revision, s.url), nil
}

func createSchedule(r *request) (string, string, error) {
	s := &schedule{
		name: r.Positional(0), uri: r.Get("--uri"), method: r.Get("--http-method"),
		account: r.Get("--oidc-service-account-email"), audience: r.Get("--oidc-token-audience"),
	}
	if len(strings.Fields(r.Get("--schedule"))) != 5 {
		return "", "", errors.New("INVALID_ARGUMENT: Schedule or time zone is invalid.")
	}
	return "", "", r.addSchedule(s)
}

func (c *Cloud) addSchedule(s *schedule) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.schedules[s.name] != nil:
		return fmt.Errorf("ALREADY_EXISTS: Job [%s] already exists.", s.name)
	case s.account != "" && !c.accounts[s.account]:
		return fmt.Errorf("NOT_FOUND: The service account %s does not exist.", s.account)
	}
	if s.audience == "" {
		s.audience = s.uri
	}
	c.schedules[s.name] = s
	return nil
}

func (c *Cloud) schedule(call Call) (*schedule, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.schedules[call.Positional(0)]; s != nil {
		return s, nil
	}
	return nil, errors.New("NOT_FOUND: Job not found.")
}

func createPolicy(r *request) (string, string, error) {
	path := r.Get("--policy-from-file")
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.cmd.Folder, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("argument --policy-from-file: Unable to read file [%s]", path)
	}
	var given struct {
		DisplayName, Combiner string
		Conditions            []struct {
			DisplayName         string
			ConditionMatchedLog struct{ Filter string }
		}
		AlertStrategy struct {
			NotificationRateLimit struct{ Period string }
		}
	}
	if err := json.Unmarshal(text, &given); err != nil {
		return "", "", fmt.Errorf("Could not parse file [%s]: %w", path, err)
	}
	if given.Combiner == "" || len(given.Conditions) == 0 ||
		given.Conditions[0].ConditionMatchedLog.Filter == "" ||
		given.AlertStrategy.NotificationRateLimit.Period == "" {
		return "", "", errors.New("INVALID_ARGUMENT: a policy over the log needs a combiner, a condition with a " +
			"filter, and a rate limit of its notifications")
	}
	name, err := r.policy(policy{given.DisplayName, given.Conditions[0].ConditionMatchedLog.Filter,
		strings.Split(r.Get("--notification-channels"), ",")})
	return "", "Created alert policy [" + name + "].", err
}

// policy creates an alert policy, and returns its name.
func (c *Cloud) policy(p policy) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, channel := range p.channels {
		if c.channels[channel] == "" {
			return "", fmt.Errorf("NOT_FOUND: Could not find notification channel %q", channel)
		}
	}
	name := fmt.Sprintf("projects/%s/alertPolicies/%d", c.options.Project, 2000+len(c.policies))
	c.policies[name] = p
	return name, nil
}
