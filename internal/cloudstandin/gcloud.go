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

// A handler carries out a command of gcloud. What it returns is printed: the result, and the status beside it.
type handler struct {
	apis []string // that have to be enabled
	do   func(ctx context.Context, c *Cloud, call Call, cmd command) (out, said string, err error)
}

// Place returns the flag that names the location, or "". gcloud's parser does not require it, as gcloud looks elsewhere
// without it: in its configuration, in the project, or at the console.
func (c Call) Place() string {
	for prefix, flag := range map[string]string{
		"tasks ": "--location", "scheduler ": "--location", "artifacts ": "--location", "firestore databases create": "--location",
		"run ": "--region", "builds submit": "--region",
	} {
		if strings.HasPrefix(c.Path, prefix) {
			return flag
		}
	}
	return ""
}

// gcloud carries out a command line of gcloud.
func (c *Cloud) gcloud(ctx context.Context, cmd command) (reply, error) {
	call, err := Gcloud().Parse(cmd.Args)
	if err != nil {
		return reply{}, err
	}
	h, ok := handlers[call.Path]
	if !ok {
		return reply{}, call.errorf("the stand-in has no model of this command: add one to handlers in internal/cloudstandin/gcloud.go")
	}
	if !strings.HasPrefix(call.Path, "auth ") && c.user == "" {
		return reply{}, call.errorf("You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login")
	}
	project := call.Get("--project")
	if project == "" {
		project = cmd.Environment["CLOUDSDK_CORE_PROJECT"]
	}
	if !strings.HasPrefix(call.Path, "auth ") && !strings.HasPrefix(call.Path, "projects ") && !strings.HasPrefix(call.Path, "billing ") {
		if project == "" {
			return reply{}, call.errorf("The required property [project] is not currently set.")
		}
		if project != c.options.Project {
			return reply{}, call.errorf("PERMISSION_DENIED: The caller does not have permission on project %s (or it may not exist).", project)
		}
	}
	if flag := call.Place(); flag != "" && call.Get(flag) == "" {
		return reply{}, call.errorf("Error parsing [%s].\nThe [%[1]s] resource is not properly specified.\nFailed to find attribute [location]. "+
			"Please use the %s flag to manually specify a location.", call.Path, flag)
	}
	if err := c.needs(h.apis...); err != nil {
		return reply{}, call.errorf("%v", err)
	}
	out, said, err := h.do(ctx, c, call, cmd)
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

// message returns an error of the emulators as gcloud prints it.
func message(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(s.Code().String(), "${1}_$2")) + ": " + s.Message()
	}
	return err.Error()
}

// format returns some values as --format=value(...) prints them, or all of them.
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
	"auth login": {do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.user = call.Positional(0); c.user == "" {
			c.user = "ann@example.com"
		}
		return "", fmt.Sprintf("Your browser has been opened to visit:\n\n    https://accounts.google.com/o/oauth2/auth?...\n\n\n"+
			"You are now logged in as [%s].", c.user), nil
	}},
	"auth application-default login": {do: func(_ context.Context, c *Cloud, _ Call, _ command) (string, string, error) {
		c.adc = true
		return "", "Your browser has been opened to visit:\n\n    https://accounts.google.com/o/oauth2/auth?...\n\n\n" +
			"Credentials saved to file: [" + c.folder + "/application_default_credentials.json]", nil
	}},
	"auth print-access-token":   {do: accessToken},
	"auth print-identity-token": {do: identityToken},
	"billing projects describe": {do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		if call.Positional(0) != c.options.Project {
			return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
		}
		out, err := format(call, map[string]string{"billingEnabled": "True", "projectId": c.options.Project})
		return out, "", err
	}},
	"projects describe": {do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		if call.Positional(0) != c.options.Project {
			return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
		}
		out, err := format(call, map[string]string{"projectNumber": c.number, "projectId": c.options.Project})
		return out, "", err
	}},
	"projects add-iam-policy-binding":    {do: binding("project", true)},
	"projects remove-iam-policy-binding": {do: binding("project", false)},
	"services enable": {do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, api := range call.Positionals {
			if !apiNames[api] {
				return "", "", fmt.Errorf("PERMISSION_DENIED: Not found or permission denied for service(s): %s.", api)
			}
			c.apis[api] = true
		}
		return "", fmt.Sprintf("Operation \"operations/acf.p2-%s-00000000-0000\" finished successfully.", c.number), nil
	}},

	"firestore databases create": {apis: []string{"firestore.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		id, mode := call.Get("--database"), strings.ToUpper(strings.ReplaceAll(call.Get("--type"), "-", "_"))
		c.mu.Lock()
		defer c.mu.Unlock()
		if id == "" {
			id = "(default)"
		}
		if c.databases[id] != "" {
			return "", "", errors.New("ALREADY_EXISTS: Database already exists. Please use another database_id")
		}
		if mode == "" {
			mode = "FIRESTORE_NATIVE"
		}
		c.databases[id] = mode
		return fmt.Sprintf("metadata:\n  '@type': type.googleapis.com/google.firestore.admin.v1.CreateDatabaseMetadata\nname: projects/%s/databases/%s/operations/...\n"+
			"response:\n  '@type': type.googleapis.com/google.firestore.admin.v1.Database\n  locationId: %s\n  type: %s", c.options.Project, id, call.Get("--location"), mode), "", nil
	}},
	"firestore databases describe": {apis: []string{"firestore.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		mode, ok := c.databases[call.Get("--database")]
		if !ok {
			return "", "", fmt.Errorf("NOT_FOUND: Project '%s' or database '%s' does not exist.", c.options.Project, call.Get("--database"))
		}
		out, err := format(call, map[string]string{"type": mode, "name": "projects/" + c.options.Project + "/databases/" + call.Get("--database")})
		return out, "", err
	}},
	"firestore databases delete": {apis: []string{"firestore.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		return remove(c, call, c.databases, call.Get("--database"), "Deleted database ["+call.Get("--database")+"].")
	}},
	"firestore fields ttls update": {apis: []string{"firestore.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		id := call.Get("--database")
		if id == "" {
			id = "(default)"
		}
		if err := c.database(c.options.Project, id); err != nil {
			return "", "", err
		}
		c.ttl[id+"/"+call.Get("--collection-group")+"/"+call.Positional(0)] = call.Get("--enable-ttl") == "true"
		return "", "Request issued for: [" + call.Positional(0) + "]", nil
	}},

	"iam service-accounts create": {apis: []string{"iam.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		name := call.Positional(0)
		if !regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`).MatchString(name) {
			return "", "", fmt.Errorf("argument NAME: Bad value [%s]: Service account name must be between 6 and 30 characters (inclusive), must begin with a lowercase letter, "+
				"and consist of lowercase alphanumeric characters that can be separated by hyphens.", name)
		}
		return "", "Created service account [" + name + "].", c.account(name + "@" + c.options.Project + ".iam.gserviceaccount.com")
	}},
	"iam service-accounts delete": {apis: []string{"iam.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		return remove(c, call, c.accounts, call.Positional(0), "deleted service account ["+call.Positional(0)+"]")
	}},
	"iam service-accounts add-iam-policy-binding": {apis: []string{"iam.googleapis.com"}, do: binding("account", true)},

	"artifacts repositories create": {apis: []string{"artifactregistry.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.repos[call.Get("--location")+"/"+call.Positional(0)] = true
		return "", fmt.Sprintf("Create request issued for: [%s]\nWaiting for operation [projects/%s/locations/%s/operations/...] to complete...done.\nCreated repository [%[1]s].",
			call.Positional(0), c.options.Project, call.Get("--location")), nil
	}},
	"artifacts repositories delete": {apis: []string{"artifactregistry.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		return remove(c, call, c.repos, call.Get("--location")+"/"+call.Positional(0), "Deleted repository ["+call.Positional(0)+"].")
	}},
	"builds submit": {apis: []string{"cloudbuild.googleapis.com", "artifactregistry.googleapis.com", "storage.googleapis.com", "logging.googleapis.com"}, do: submit},

	"tasks queues create":                 {apis: []string{"cloudtasks.googleapis.com"}, do: createQueue},
	"tasks queues describe":               {apis: []string{"cloudtasks.googleapis.com"}, do: describeQueue},
	"tasks queues delete":                 {apis: []string{"cloudtasks.googleapis.com"}, do: deleteQueue},
	"tasks queues add-iam-policy-binding": {apis: []string{"cloudtasks.googleapis.com"}, do: binding("queue", true)},

	"run deploy":                          {apis: []string{"run.googleapis.com"}, do: deploy},
	"run services add-iam-policy-binding": {apis: []string{"run.googleapis.com"}, do: binding("service", true)},
	"run services delete": {apis: []string{"run.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		c.services[call.Positional(0)].stop()
		return remove(c, call, c.services, call.Positional(0), "Deleted service ["+call.Positional(0)+"].")
	}},

	"scheduler jobs create http": {apis: []string{"cloudscheduler.googleapis.com"}, do: createSchedule},
	"scheduler jobs run": {apis: []string{"cloudscheduler.googleapis.com"}, do: func(ctx context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		s, err := c.schedule(call)
		if err != nil {
			return "", "", err
		}
		return "", "", c.call(ctx, s)
	}},
	"scheduler jobs describe": {apis: []string{"cloudscheduler.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		s, err := c.schedule(call)
		if err != nil {
			return "", "", err
		}
		code := ""
		if s.code != 0 {
			code = strconv.Itoa(s.code)
		}
		out, err := format(call, map[string]string{"status.code": code, "state": map[bool]string{true: "PAUSED", false: "ENABLED"}[s.paused]})
		return out, "", err
	}},
	"scheduler jobs delete": {apis: []string{"cloudscheduler.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		return remove(c, call, c.schedules, call.Positional(0), "Deleted job ["+call.Positional(0)+"].")
	}},

	"beta monitoring channels create": {apis: []string{"monitoring.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		address, ok := strings.CutPrefix(call.Get("--channel-labels"), "email_address=")
		if call.Get("--type") != "email" || !ok || !strings.Contains(address, "@") {
			return "", "", errors.New("INVALID_ARGUMENT: Field \"notification_channel.labels['email_address']\" is required")
		}
		name := c.channel(address)
		out, err := format(call, map[string]string{"name": name})
		return out, "Created notification channel [" + name + "].", err
	}},
	"beta monitoring channels delete": {apis: []string{"monitoring.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		for name, p := range c.policies {
			if slices.Contains(p.channels, call.Positional(0)) {
				return "", "", fmt.Errorf("FAILED_PRECONDITION: The channel is used by the policy %s.", name)
			}
		}
		return remove(c, call, c.channels, call.Positional(0), "Deleted notification channel ["+call.Positional(0)+"].")
	}},
	"alpha monitoring policies create": {apis: []string{"monitoring.googleapis.com", "logging.googleapis.com"}, do: createPolicy},
	"alpha monitoring policies list": {apis: []string{"monitoring.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		wanted, _ := strings.CutPrefix(call.Get("--filter"), "displayName:")
		var all []string
		for _, name := range slices.Sorted(maps.Keys(c.policies)) {
			if strings.Contains(c.policies[name].display, wanted) {
				out, err := format(call, map[string]string{"name": name, "displayName": c.policies[name].display})
				if err != nil {
					return "", "", err
				}
				all = append(all, out)
			}
		}
		return strings.Join(all, "\n"), "", nil
	}},
	"alpha monitoring policies delete": {apis: []string{"monitoring.googleapis.com"}, do: func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		return remove(c, call, c.policies, call.Positional(0), "Deleted alert policy ["+call.Positional(0)+"].")
	}},
}

// apiNames are the APIs that there are.
var apiNames = map[string]bool{
	"artifactregistry.googleapis.com": true, "billingbudgets.googleapis.com": true, "cloudbilling.googleapis.com": true,
	"cloudbuild.googleapis.com": true, "cloudresourcemanager.googleapis.com": true, "cloudscheduler.googleapis.com": true,
	"cloudtasks.googleapis.com": true, "cloudtrace.googleapis.com": true, "datastore.googleapis.com": true, "firestore.googleapis.com": true,
	"iam.googleapis.com": true, "iamcredentials.googleapis.com": true, "iap.googleapis.com": true, "logging.googleapis.com": true,
	"monitoring.googleapis.com": true, "run.googleapis.com": true, "secretmanager.googleapis.com": true, "storage.googleapis.com": true,
	"telemetry.googleapis.com": true,
}

// remove removes what is there.
func remove[V any](c *Cloud, call Call, from map[string]V, name, said string) (string, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := from[name]; !ok {
		return "", "", fmt.Errorf("NOT_FOUND: Requested entity was not found: %s", name)
	}
	if call.Get("--quiet") != "true" {
		return "", "", errors.New("This command asks \"Do you want to continue (Y/n)?\", and nobody answers: --quiet")
	}
	delete(from, name)
	return "", said, nil
}

// account creates an account.
func (c *Cloud) account(email string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accounts[email] {
		name, _, _ := strings.Cut(email, "@")
		return fmt.Errorf("Resource in projects [%s] is the subject of a conflict: Service account %s already exists within project projects/%[1]s.", c.options.Project, name)
	}
	c.accounts[email] = true
	return nil
}

// channel creates a channel of notifications.
func (c *Cloud) channel(address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := fmt.Sprintf("projects/%s/notificationChannels/%d", c.options.Project, 1000+len(c.channels))
	c.channels[name] = address
	return name
}

// accessToken is "access-token-of-" and who is signed in: curl takes it.
func accessToken(_ context.Context, c *Cloud, _ Call, _ command) (string, string, error) {
	if c.user == "" {
		return "", "", errors.New("You do not currently have an active account selected.")
	}
	return "access-token-of-" + c.user, "", nil
}

func identityToken(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
	account, audience := call.Get("--impersonate-service-account"), call.Get("--audiences")
	switch {
	case c.user == "":
		return "", "", errors.New("You do not currently have an active account selected.")
	case account == "" && (audience != "" || call.Get("--include-email") != ""):
		return "", "", errors.New("Invalid account type for `--audiences`. Requires valid service account.")
	case account == "":
		token, err := c.emulator.Token(c.user, gcloudAudience)
		return token, "", err
	}
	if err := c.needs("iamcredentials.googleapis.com"); err != nil {
		return "", "", err
	}
	if !c.accounts[account] || !c.has(memberOf(c.user), "account:"+account, "roles/iam.serviceAccountTokenCreator", "roles/iam.serviceAccountOpenIdTokenCreator") {
		return "", "", fmt.Errorf("PERMISSION_DENIED: Failed to impersonate [%s]. Make sure the account that's trying to impersonate it has access to the service account "+
			"itself and the \"roles/iam.serviceAccountTokenCreator\" role.", account)
	}
	email := account
	if call.Get("--include-email") != "true" {
		email = ""
	}
	token, err := c.emulator.Token(email, audience)
	return token, "WARNING: This command is using service account impersonation. All API calls will be executed as [" + account + "].", err
}

// binding grants a role on something, or takes it away.
func binding(kind string, on bool) func(context.Context, *Cloud, Call, command) (string, string, error) {
	return func(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
		name := call.Positional(0)
		resource, what := kind, kind
		switch kind {
		case "project":
			if name != c.options.Project {
				return "", "", errors.New("PERMISSION_DENIED: The caller does not have permission")
			}
		case "account":
			resource, what = "account:"+name, "serviceAccount"
			if !c.accounts[name] {
				return "", "", fmt.Errorf("NOT_FOUND: Unknown service account %s", name)
			}
		case "queue":
			resource = "queue:" + c.queue(call.Get("--location"), name)
			if c.locations[name] != call.Get("--location") {
				return "", "", errors.New("NOT_FOUND: Queue does not exist.")
			}
		case "service":
			resource = "service:" + call.Get("--region") + "/" + name
			if s := c.services[name]; s == nil || s.region != call.Get("--region") {
				return "", "", fmt.Errorf("NOT_FOUND: Resource '%s' of kind 'SERVICE' in region '%s' in project '%s' does not exist.", name, call.Get("--region"), c.options.Project)
			}
		}
		return "bindings:\n- members:\n  - " + call.Get("--member") + "\n  role: " + call.Get("--role"),
			fmt.Sprintf("Updated IAM policy for %s [%s].", what, name),
			c.give(grant{resource, call.Get("--role"), call.Get("--member")}, on)
	}
}

func (c *Cloud) queue(location, name string) string {
	return "projects/" + c.options.Project + "/locations/" + location + "/queues/" + name
}

// submit builds an image.
func submit(ctx context.Context, c *Cloud, call Call, cmd command) (string, string, error) {
	config, err := os.ReadFile(filepath.Join(cmd.Folder, call.Get("--config")))
	if err != nil {
		return "", "", err
	}
	image, ok := strings.CutPrefix(call.Get("--substitutions"), "_IMAGE=")
	if !ok || !strings.Contains(string(config), "$_IMAGE") {
		return "", "", errors.New("INVALID_ARGUMENT: generic::invalid_argument: key in the template \"_IMAGE\" is not matched in the substitution data")
	}
	account := call.Get("--service-account")
	if account == "" {
		account = "projects/" + c.options.Project + "/serviceAccounts/" + c.number + "-compute@developer.gserviceaccount.com"
	} else if call.Get("--default-buckets-behavior") == "" && !strings.Contains(string(config), "logging:") {
		return "", "", errors.New("INVALID_ARGUMENT: if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use the " +
			"REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either CLOUD_LOGGING_ONLY / NONE logging options")
	}
	if err := c.mayBuild(account, image, "roles/cloudbuild.builds.builder"); err != nil {
		return "", "", err
	}
	pkg := "./" + filepath.Dir(call.Get("--config"))
	return "", "Creating temporary archive of files...\nID  CREATE_TIME  DURATION  SOURCE  IMAGES  STATUS\n...  " + image + "  SUCCESS", c.build(ctx, filepath.Join(cmd.Folder, call.Positional(0)), pkg, image)
}

// mayBuild checks what an account needs to build an image.
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

func createQueue(ctx context.Context, c *Cloud, call Call, _ command) (string, string, error) {
	q := &cloudtaskspb.Queue{Name: c.queue(call.Get("--location"), call.Positional(0)), RateLimits: &cloudtaskspb.RateLimits{}, RetryConfig: &cloudtaskspb.RetryConfig{}}
	var problems []error
	number := func(flag string, most float64) float64 {
		text := call.Get(flag)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n > most {
			problems = append(problems, fmt.Errorf("argument %s: Value must be a number of at most %v; received: %s", flag, most, text))
		}
		return n
	}
	duration := func(flag string) *durationpb.Duration {
		text := call.Get(flag)
		if text == "" {
			return nil
		}
		d, err := time.ParseDuration(text)
		if err != nil || !strings.HasSuffix(text, "s") {
			problems = append(problems, fmt.Errorf("argument %s: must be seconds followed by 's'; received: %s", flag, text))
		}
		return durationpb.New(d)
	}
	q.RateLimits.MaxConcurrentDispatches = int32(number("--max-concurrent-dispatches", 5000))
	q.RateLimits.MaxDispatchesPerSecond = number("--max-dispatches-per-second", 500)
	if call.Get("--max-attempts") == "unlimited" {
		q.RetryConfig.MaxAttempts = -1
	} else {
		q.RetryConfig.MaxAttempts = int32(number("--max-attempts", 1e9))
	}
	q.RetryConfig.MinBackoff, q.RetryConfig.MaxBackoff = duration("--min-backoff"), duration("--max-backoff")
	if err := errors.Join(problems...); err != nil {
		return "", "", err
	}
	return "", "Created queue [" + call.Get("--location") + "/" + call.Positional(0) + "].", c.makeQueue(ctx, q)
}

// makeQueue creates a queue.
func (c *Cloud) makeQueue(ctx context.Context, q *cloudtaskspb.Queue) error {
	parent, name, _ := strings.Cut(q.Name, "/queues/")
	if _, err := c.queues.CreateQueue(c.marked(ctx), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: q}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locations[name] = parent[strings.LastIndexByte(parent, '/')+1:]
	return nil
}

func describeQueue(ctx context.Context, c *Cloud, call Call, _ command) (string, string, error) {
	q, err := c.queues.GetQueue(c.marked(ctx), &cloudtaskspb.GetQueueRequest{Name: c.queue(call.Get("--location"), call.Positional(0))})
	if err != nil {
		return "", "", err
	}
	out, err := format(call, map[string]string{"name": q.Name, "state": q.State.String()})
	return out, "", err
}

func deleteQueue(ctx context.Context, c *Cloud, call Call, _ command) (string, string, error) {
	_, said, err := remove(c, call, c.locations, call.Positional(0), "Deleted queue ["+call.Get("--location")+"/"+call.Positional(0)+"].")
	if err == nil {
		err = c.queues.DeleteQueue(c.marked(ctx), &cloudtaskspb.DeleteQueueRequest{Name: c.queue(call.Get("--location"), call.Positional(0))})
	}
	return "", said, err
}

// deploy deploys an image, or builds a folder before.
func deploy(ctx context.Context, c *Cloud, call Call, cmd command) (string, string, error) {
	name, region := call.Positional(0), call.Get("--region")
	if name == "" {
		return "", "", errors.New("This command asks for the name of the service, and nobody answers")
	}
	image := call.Get("--image")
	switch source := call.Get("--source"); {
	case image == "" && source == "" || image != "" && source != "":
		return "", "", errors.New("Requires a container image to deploy (e.g. `us-docker.pkg.dev/cloudrun/container/hello:latest`), or --source")
	case source != "":
		if err := c.needs("cloudbuild.googleapis.com", "artifactregistry.googleapis.com", "storage.googleapis.com"); err != nil {
			return "", "", err
		}
		if !c.repos[region+"/cloud-run-source-deploy"] {
			if call.Get("--quiet") != "true" {
				return "", "", errors.New("This command asks whether it may create the repository [cloud-run-source-deploy], and nobody answers: --quiet")
			}
			c.repos[region+"/cloud-run-source-deploy"] = true
		}
		image = fmt.Sprintf("%s-docker.pkg.dev/%s/cloud-run-source-deploy/%s", region, c.options.Project, name)
		if err := c.mayBuild(call.Get("--build-service-account"), image, "roles/run.builder"); err != nil {
			return "", "", err
		}
		if err := c.build(ctx, filepath.Join(cmd.Folder, source), ".", image); err != nil {
			return "", "", fmt.Errorf("Build failed: %w", err)
		}
	}
	if c.images[image] == "" {
		return "", "", fmt.Errorf("Image '%s' not found.", image)
	}
	if call.Get("--service-account") == "" {
		return "", "", errors.New("the service would run as the Compute Engine account, which has no role here: --service-account")
	}
	d := deployment{name: name, region: region, account: call.Get("--service-account"), binary: c.images[image], environment: make(map[string]string)}
	d.open = call.Get("--invoker-iam-check") == "false"
	for part := range strings.SplitSeq(call.Get("--startup-probe"), ",") {
		if path, ok := strings.CutPrefix(part, "httpGet.path="); ok {
			d.ready = path
		}
	}
	if _, ok := call.Flags["--allow-unauthenticated"]; !ok && call.Get("--quiet") != "true" && !d.open {
		return "", "", errors.New("This command asks \"Allow unauthenticated invocations to [" + name + "] (y/N)?\", and nobody answers: --no-allow-unauthenticated")
	}
	for pair := range strings.SplitSeq(call.Get("--set-env-vars"), ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok && pair != "" {
			return "", "", fmt.Errorf("argument --set-env-vars: Bad syntax for dict arg: [%s].", pair)
		}
		d.environment[key] = value
	}
	delete(d.environment, "")
	s, err := c.deploy(d)
	if err != nil {
		return "", "", err
	}
	return "", fmt.Sprintf("Deploying container to Cloud Run service [%s] in project [%s] region [%s]\nDone.\n"+
		"Service [%[1]s] revision [%[1]s-%05[4]d-abc] has been deployed and is serving 100 percent of traffic.\nService URL: %s", name, c.options.Project, region, s.revision, s.url), nil
}

func createSchedule(_ context.Context, c *Cloud, call Call, _ command) (string, string, error) {
	s := &schedule{
		name: call.Positional(0), uri: call.Get("--uri"), method: call.Get("--http-method"),
		account: call.Get("--oidc-service-account-email"), audience: call.Get("--oidc-token-audience"),
	}
	if len(strings.Fields(call.Get("--schedule"))) != 5 {
		return "", "", errors.New("INVALID_ARGUMENT: Schedule or time zone is invalid.")
	}
	return "", "", c.addSchedule(s)
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

func createPolicy(_ context.Context, c *Cloud, call Call, cmd command) (string, string, error) {
	path := call.Get("--policy-from-file")
	if !filepath.IsAbs(path) {
		path = filepath.Join(cmd.Folder, path)
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
	if given.Combiner == "" || len(given.Conditions) == 0 || given.Conditions[0].ConditionMatchedLog.Filter == "" || given.AlertStrategy.NotificationRateLimit.Period == "" {
		return "", "", errors.New("INVALID_ARGUMENT: a policy over the log needs a combiner, a condition with a filter, and a rate limit of its notifications")
	}
	name, err := c.policy(policy{given.DisplayName, given.Conditions[0].ConditionMatchedLog.Filter, strings.Split(call.Get("--notification-channels"), ",")})
	return "", "Created alert policy [" + name + "].", err
}

// policy creates an alarm.
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
