package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/tasks"
)

// config is what the environment says.
//
//	GOOGLE_CLOUD_PROJECT   the project of the service, whose logs are there
//	DATASTORE_PROJECT      the project of the database; the same if empty
//	DATASTORE_DATABASE     the database's ID; the default database if empty
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE, or several
//	                       of these with commas between: jobs belong to the first one,
//	                       unless their mapper or their start names another
//	CREATE_QUEUES          true: queues that are not there are created
//	MAX_INSTANCES          how many instances the service has at most,
//	CONCURRENCY            how many requests each of them takes at once, and
//	REQUEST_TIMEOUT        after how many seconds a request is cut off, as Cloud Run
//	                       is told: the queues' settings are compared with these
//	SERVICE_URL            where Cloud Tasks reaches this service: https://HOST
//	AUTH                   who proves what:
//	                       on (or empty): every request carries a token that is
//	                       verified here;
//	                       iam: Cloud Run's own check stands in front of the service
//	                       and verifies it;
//	                       off: nobody proves anything, for emulators only
//	TASKS_SERVICE_ACCOUNT  the account whose tokens the tasks carry, with on and iam
//	OPERATORS              the accounts that may start, see and control jobs, with commas
//	                       between, with on
//	IAP_AUDIENCE           with on: operators come through Identity-Aware Proxy, whose
//	                       assertions for this audience are verified here, such as
//	                       /projects/NUMBER/locations/REGION/services/SERVICE. OPERATORS
//	                       may be empty then: everybody may whom the proxy lets through.
//	                       docs/operate.md says where it stands
//	IAP_KEYS_URL           where the proxy's public keys are; Google's if empty
//	OIDC_KEYS_URL          where the public keys of tokens are, with on; Google's if
//	                       empty
//	OTEL_EXPORTER_OTLP_ENDPOINT
//	                       where metrics and traces are exported to by OTLP over HTTP,
//	                       such as http://localhost:4318, a collector beside the
//	                       service; nowhere if empty. OpenTelemetry's other variables
//	                       have an effect, too: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
//	                       OTEL_EXPORTER_OTLP_METRICS_ENDPOINT for one of the two,
//	                       OTEL_TRACES_EXPORTER=none and OTEL_METRICS_EXPORTER=none,
//	                       OTEL_SDK_DISABLED, OTEL_SERVICE_NAME,
//	                       OTEL_RESOURCE_ATTRIBUTES and those of the exporters
//	HOST, PORT             where to listen; PORT is 8080 if empty. HOST is 127.0.0.1
//	                       if empty, and all interfaces on Cloud Run, which sets
//	                       K_SERVICE
//
// K_SERVICE and K_REVISION, which Cloud Run sets, name the service in telemetry.
// DATASTORE_EMULATOR_HOST and CLOUD_TASKS_EMULATOR_HOST point the service at emulators.
type config struct {
	project         string // of the service and its logs
	databaseProject string
	database        string
	queues          []string
	createQueues    bool
	service         tasks.ServiceLimits
	url             string
	serviceAccount  string
	verified        bool // requests have to prove themselves here
	operators       []string
	keysURL         string
	iapAudience     string
	iapKeysURL      string
	traces, metrics bool // are exported
	addr            string

	serviceName, revision string // as Cloud Run says
}

// audience is whom the tokens of tasks are meant for.
func (c config) audience() string {
	if c.serviceAccount == "" {
		return ""
	}
	return c.url
}

var (
	queueName   = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/queues/[A-Za-z0-9-]{1,100}$`)
	iapAudience = regexp.MustCompile(`^/projects/[0-9]+/` +
		`(locations/[^/]+/services|(global|regions/[^/]+)/backendServices)/[^/\s]+$`)
	account = regexp.MustCompile(`^[^@\s]+@[^@\s]+$`)
)

// configFrom reads the environment, and names everything that is wrong with it.
func configFrom(getenv func(string) string) (config, error) {
	e := environment{getenv: getenv}
	c := config{
		project:  e.required("GOOGLE_CLOUD_PROJECT", "it is the project of the service"),
		database: getenv("DATASTORE_DATABASE"),
		queues:   list(e.required("TASKS_QUEUE", "it is projects/PROJECT/locations/LOCATION/queues/QUEUE")),
		url:      strings.TrimSuffix(e.required("SERVICE_URL", "it is where Cloud Tasks reaches this service"), "/"),
	}
	c.databaseProject = cmp.Or(getenv("DATASTORE_PROJECT"), c.project)
	for i, queue := range c.queues {
		if !queueName.MatchString(queue) {
			e.problem("TASKS_QUEUE has %q, it has to be projects/PROJECT/locations/LOCATION/queues/QUEUE", queue)
		} else if slices.Contains(c.queues[:i], queue) {
			e.problem("TASKS_QUEUE has %s twice", queue)
		}
	}
	if e.getenv("TASKS_QUEUE") != "" && len(c.queues) == 0 {
		e.problem("TASKS_QUEUE is %q, and names no queue", e.getenv("TASKS_QUEUE"))
	}
	c.createQueues = e.flag("CREATE_QUEUES")
	c.service = tasks.ServiceLimits{
		MaxInstances: e.number("MAX_INSTANCES", 100_000), Concurrency: e.number("CONCURRENCY", 1000),
		Timeout: time.Duration(e.number("REQUEST_TIMEOUT", 3600)) * time.Second, // the bounds are Cloud Run's
		Queues:  len(c.queues),
	}
	e.checkURL("SERVICE_URL", c.url, func(u *url.URL) bool { return u.Path == "" }, "http(s)://HOST without a path")
	e.auth(&c)
	const collector = "OTEL_EXPORTER_OTLP_ENDPOINT"
	e.checkURL(collector, getenv(collector), func(*url.URL) bool { return true }, "an http(s) URL without a query")
	c.traces, c.metrics = e.exports("traces", getenv(collector)), e.exports("metrics", getenv(collector))
	c.serviceName, c.revision = cmp.Or(getenv("K_SERVICE"), "cloudrun"), getenv("K_REVISION")
	host, port := getenv("HOST"), getenv("PORT")
	if host == "" && getenv("K_SERVICE") == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "8080"
	}
	e.number("PORT", 65535)
	c.addr = net.JoinHostPort(host, port)
	if len(e.problems) > 0 {
		return config{}, errors.New(strings.Join(e.problems, "; "))
	}
	return c, nil
}

// auth reads AUTH and the variables that belong to it. One that would be ignored
// is a mistake of somebody who expects a check.
func (e *environment) auth(c *config) {
	belong := []string{"TASKS_SERVICE_ACCOUNT", "OPERATORS", "OIDC_KEYS_URL", "IAP_AUDIENCE", "IAP_KEYS_URL"}
	auth := cmp.Or(e.getenv("AUTH"), "on")
	switch auth {
	case "on":
		c.verified = true
		c.keysURL = e.getenv("OIDC_KEYS_URL")
		e.checkURL("OIDC_KEYS_URL", c.keysURL, func(*url.URL) bool { return true }, "an http(s) URL without a query")
		c.iapAudience, c.iapKeysURL = e.getenv("IAP_AUDIENCE"), e.getenv("IAP_KEYS_URL")
		e.checkURL("IAP_KEYS_URL", c.iapKeysURL, func(*url.URL) bool { return true }, "an http(s) URL without a query")
		if c.iapAudience != "" && !iapAudience.MatchString(c.iapAudience) {
			e.problem("IAP_AUDIENCE is %q, it has to be like /projects/NUMBER/locations/REGION/services/SERVICE or "+
				"/projects/NUMBER/global/backendServices/ID", c.iapAudience)
		}
		if c.iapAudience == "" || e.getenv("OPERATORS") != "" {
			c.operators = e.accounts("OPERATORS", "it lists the accounts that may start and see jobs")
		} else {
			c.operators = []string{tasks.AnyAccount}
		}
		if belong = nil; c.iapAudience == "" {
			belong = []string{"IAP_KEYS_URL"}
		}
	case "iam":
		belong = []string{"OPERATORS", "OIDC_KEYS_URL", "IAP_AUDIENCE", "IAP_KEYS_URL"}
	case "off":
	default:
		e.problem("AUTH is %q, it has to be on, iam or off", auth)
		return
	}
	if auth != "off" {
		if all := e.accounts("TASKS_SERVICE_ACCOUNT", "it is the account whose tokens the tasks carry"); len(all) == 1 {
			c.serviceAccount = all[0]
		} else if len(all) > 1 {
			e.problem("TASKS_SERVICE_ACCOUNT names %d accounts, it has to be one", len(all))
		}
	}
	for _, name := range belong {
		if e.getenv(name) != "" {
			e.problem("%s is set, and AUTH=%s does not use it%s", name, auth,
				map[bool]string{true: " without IAP_AUDIENCE"}[auth == "on"])
		}
	}
}

// An environment collects what is wrong with it.
type environment struct {
	getenv   func(string) string
	problems []string
}

func (e *environment) problem(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(e.problems, text) {
		e.problems = append(e.problems, text)
	}
}

func (e *environment) required(name, hint string) string {
	v := e.getenv(name)
	if v == "" {
		e.problem("%s is not set: %s", name, hint)
	}
	return v
}

// flag reads whether something is wanted.
func (e *environment) flag(name string) bool {
	switch v := e.getenv(name); v {
	case "", "false":
	case "true":
		return true
	default:
		e.problem("%s is %q, it has to be true or false", name, v)
	}
	return false
}

// number reads a number in [1, most], or 0 if there is none.
func (e *environment) number(name string, most int) int {
	v := e.getenv(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		e.problem("%s is %q, it has to be in [1, %d]", name, v, most)
		return 0
	}
	return n
}

// list splits a text at its commas.
func list(text string) (all []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// accounts reads a list of e-mail addresses.
func (e *environment) accounts(name, hint string) []string {
	value := e.required(name, hint)
	all := list(value)
	if len(all) == 0 && value != "" {
		e.problem("%s is %q: %s", name, value, hint)
	}
	if i := slices.IndexFunc(all, func(a string) bool { return !account.MatchString(a) }); i >= 0 {
		e.problem("%s has %q, which is not an e-mail address", name, all[i])
	}
	return all
}

func (e *environment) checkURL(name, value string, ok func(*url.URL) bool, want string) {
	if value == "" {
		return
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil || !ok(u) {
		e.problem("%s is %q, it has to be %s", name, value, want)
	}
}
