package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/tasks"
	"github.com/scattermap/scattermap/webhook"
)

// config has the settings of the service, from its environment.
//
//	GOOGLE_CLOUD_PROJECT   the project of the service and its logs
//	DATASTORE_PROJECT      the project of the database; by default that project
//	DATASTORE_DATABASE     the ID of the database; by default the default database
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE, or several,
//	                       separated by commas. Jobs belong to the first, unless
//	                       their mapper or their start names another
//	CREATE_QUEUES          true: the service creates missing queues
//	MAX_INSTANCES          Cloud Run's maximum number of instances,
//	CONCURRENCY            its number of requests at once for an instance, and
//	REQUEST_TIMEOUT        its timeout of requests in seconds: the service logs a
//	                       warning if settings of the queues contradict them
//	SERVICE_URL            the URL that Cloud Tasks calls: https://HOST
//	AUTH                   who verifies tokens:
//	                       on (the default): this service;
//	                       iam: Cloud Run, in front of the service;
//	                       off: nobody, for emulators only
//	TASKS_SERVICE_ACCOUNT  with on and iam: the account whose tokens tasks carry
//	OPERATORS              with on: the accounts that may start, see and control jobs,
//	                       separated by commas
//	IAP_AUDIENCE           with on: operators use Identity-Aware Proxy, and the service
//	                       verifies its assertions for this audience, such as
//	                       /projects/NUMBER/locations/REGION/services/SERVICE.
//	                       Without OPERATORS, everybody may that the proxy lets
//	                       through. See docs/operate.md
//	IAP_KEYS_URL           the URL of the proxy's public keys; by default Google's
//	OIDC_KEYS_URL          with on: the URL of the public keys of tokens; by default
//	                       Google's
//	WEBHOOK_URL            the service posts to this URL when a job ends or pauses, see
//	                       package webhook: for example the incoming webhook of a chat
//	                       service. By default it posts nothing
//	WEBHOOK_SECRET         signs these requests: what "openssl rand -base64 32" prints; by
//	                       default they are not signed. Take both from Secret Manager
//	OTEL_EXPORTER_OTLP_ENDPOINT
//	                       the service exports metrics and traces to this URL, by OTLP
//	                       over HTTP, such as http://localhost:4318 for a collector
//	                       beside it; by default it exports nothing. OpenTelemetry's
//	                       other variables work too:
//	                       OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
//	                       OTEL_EXPORTER_OTLP_METRICS_ENDPOINT for one of the two,
//	                       OTEL_TRACES_EXPORTER=none and OTEL_METRICS_EXPORTER=none,
//	                       OTEL_SDK_DISABLED, OTEL_SERVICE_NAME,
//	                       OTEL_RESOURCE_ATTRIBUTES and the exporters' variables
//	HOST, PORT             the address to listen at. PORT is 8080 by default. HOST is
//	                       127.0.0.1 by default, and all interfaces on Cloud Run,
//	                       which sets K_SERVICE
//
// Cloud Run sets K_SERVICE and K_REVISION, which name the service in telemetry.
// DATASTORE_EMULATOR_HOST and CLOUD_TASKS_EMULATOR_HOST point the service at emulators.
type config struct {
	project         string // the project of the service and its logs
	databaseProject string
	database        string
	queues          []string
	createQueues    bool
	service         tasks.ServiceLimits
	url             string
	serviceAccount  string
	verified        bool // whether this service verifies the tokens of requests
	operators       []string
	keysURL         string
	iapAudience     string
	iapKeysURL      string
	newHook         func(*slog.Logger) (*webhook.Sender, error) // nil: the service has no webhook
	traces, metrics bool                                        // whether the service exports traces and metrics
	addr            string

	serviceName, revision string // the names that Cloud Run gives the service and its revision
}

// audience returns the audience of the tokens that tasks carry, or "" if tasks carry no tokens.
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

// configFrom reads the service's settings from the environment. The error names every variable that
// is wrong.
func configFrom(getenv func(string) string) (config, error) {
	e := environment{getenv: getenv}
	c := config{
		project:  e.required("GOOGLE_CLOUD_PROJECT", "set it to the ID of the project of the service"),
		database: getenv("DATASTORE_DATABASE"),
		queues:   list(e.required("TASKS_QUEUE", "set it to projects/PROJECT/locations/LOCATION/queues/QUEUE")),
		url: strings.TrimSuffix(e.required("SERVICE_URL",
			"set it to the URL of this service, which Cloud Tasks calls"), "/"),
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
		e.problem("TASKS_QUEUE is %q, it has to name a queue", e.getenv("TASKS_QUEUE"))
	}
	c.createQueues = e.flag("CREATE_QUEUES")
	c.service = tasks.ServiceLimits{
		MaxInstances: e.number("MAX_INSTANCES", 100_000), Concurrency: e.number("CONCURRENCY", 1000),
		// 3,600 s is Cloud Run's longest timeout
		Timeout: time.Duration(e.number("REQUEST_TIMEOUT", 3600)) * time.Second,
		Queues:  len(c.queues),
	}
	e.checkURL("SERVICE_URL", c.url, func(u *url.URL) bool { return u.Path == "" }, "http(s)://HOST without a path")
	e.auth(&c)
	e.webhook(&c)
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

// auth reads the variable AUTH and the variables that depend on it. A variable that would be
// ignored is an error, because the operator may believe that it protects the service.
func (e *environment) auth(c *config) {
	belong := []string{"TASKS_SERVICE_ACCOUNT", "OPERATORS", "OIDC_KEYS_URL", "IAP_AUDIENCE", "IAP_KEYS_URL"}
	how := cmp.Or(e.getenv("AUTH"), "on")
	switch how {
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
			c.operators = e.accounts("OPERATORS", "list the accounts that may start, see and control jobs")
		} else {
			c.operators = []string{auth.AnyAccount}
		}
		if belong = nil; c.iapAudience == "" {
			belong = []string{"IAP_KEYS_URL"}
		}
	case "iam":
		belong = []string{"OPERATORS", "OIDC_KEYS_URL", "IAP_AUDIENCE", "IAP_KEYS_URL"}
	case "off":
	default:
		e.problem("AUTH is %q, it has to be on, iam or off", how)
		return
	}
	if how != "off" {
		if all := e.accounts("TASKS_SERVICE_ACCOUNT",
			"set it to the account whose tokens the tasks carry"); len(all) == 1 {
			c.serviceAccount = all[0]
		} else if len(all) > 1 {
			e.problem("TASKS_SERVICE_ACCOUNT names %d accounts, it has to be one", len(all))
		}
	}
	for _, name := range belong {
		if e.getenv(name) != "" {
			e.problem("%s is set, and AUTH=%s does not use it%s: remove it", name, how,
				map[bool]string{true: " without IAP_AUDIENCE"}[how == "on"])
		}
	}
}

// webhook reads the variables of the webhook. The URL may have a token, so it and the secret are only
// in a function, and nothing prints them.
func (e *environment) webhook(c *config) {
	url, secret := e.getenv("WEBHOOK_URL"), e.getenv("WEBHOOK_SECRET")
	if url == "" {
		if secret != "" {
			e.problem("WEBHOOK_SECRET is set, and WEBHOOK_URL is not: set both, or none")
		}
		return
	}
	newHook := func(log *slog.Logger) (*webhook.Sender, error) {
		return webhook.New(url, secret, &webhook.Options{Filter: webhook.Stopped, Logger: log})
	}
	if _, err := newHook(nil); err != nil {
		e.problem("WEBHOOK_URL or WEBHOOK_SECRET is wrong: %v", err)
		return
	}
	c.newHook = newHook
}

// An environment reads environment variables, and collects the mistakes in them.
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

// flag reads a variable whose value is true or false.
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

// number reads the variable name, whose value is a number in [1, most]. It returns 0 if the
// variable is empty.
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

// accounts reads the required variable name, which has a list of e-mail addresses. The hint says in
// an error what the variable is for.
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
