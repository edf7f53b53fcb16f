package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// config is what the environment says.
//
//	GOOGLE_CLOUD_PROJECT   the project of the database
//	DATASTORE_DATABASE     the database's ID; the default database if empty
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE
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
//	OIDC_KEYS_URL          where the public keys of tokens are, with on; Google's if
//	                       empty
//	HOST, PORT             where to listen; PORT is 8080 if empty. HOST is 127.0.0.1
//	                       if empty, and all interfaces on Cloud Run, which sets
//	                       K_SERVICE
//
// DATASTORE_EMULATOR_HOST and CLOUD_TASKS_EMULATOR_HOST point the service at
// emulators.
type config struct {
	project, database string
	queue             string
	url               string
	serviceAccount    string
	verified          bool // requests have to prove themselves here
	operators         []string
	keysURL           string
	addr              string
}

// audience is whom the tokens of tasks are meant for.
func (c config) audience() string {
	if c.serviceAccount == "" {
		return ""
	}
	return c.url
}

var (
	queueName = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/queues/[A-Za-z0-9-]{1,100}$`)
	account   = regexp.MustCompile(`^[^@\s]+@[^@\s]+$`)
)

// configFrom reads the environment, and names everything that is wrong with it.
func configFrom(getenv func(string) string) (config, error) {
	e := environment{getenv: getenv}
	c := config{
		project:  e.required("GOOGLE_CLOUD_PROJECT", "it is the project of the database"),
		database: getenv("DATASTORE_DATABASE"),
		queue:    e.required("TASKS_QUEUE", "it is projects/PROJECT/locations/LOCATION/queues/QUEUE"),
		url:      strings.TrimSuffix(e.required("SERVICE_URL", "it is where Cloud Tasks reaches this service"), "/"),
	}
	if c.queue != "" && !queueName.MatchString(c.queue) {
		e.problem("TASKS_QUEUE is %q, it has to be projects/PROJECT/locations/LOCATION/queues/QUEUE", c.queue)
	}
	e.checkURL("SERVICE_URL", c.url, func(u *url.URL) bool { return u.Path == "" }, "http(s)://HOST without a path")
	e.auth(&c)
	host, port := getenv("HOST"), getenv("PORT")
	if host == "" && getenv("K_SERVICE") == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "8080"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		e.problem("PORT is %q, it has to be in [1, 65535]", port)
	}
	c.addr = net.JoinHostPort(host, port)
	if len(e.problems) > 0 {
		return config{}, errors.New(strings.Join(e.problems, "; "))
	}
	return c, nil
}

// auth reads AUTH and the variables that belong to it. One that would be ignored
// is a mistake of somebody who expects a check.
func (e *environment) auth(c *config) {
	belong := []string{"TASKS_SERVICE_ACCOUNT", "OPERATORS", "OIDC_KEYS_URL"}
	auth := e.getenv("AUTH")
	switch auth {
	case "", "on":
		c.verified = true
		c.keysURL = e.getenv("OIDC_KEYS_URL")
		e.checkURL("OIDC_KEYS_URL", c.keysURL, func(*url.URL) bool { return true }, "an http(s) URL without a query")
		c.operators = e.accounts("OPERATORS", "it lists the accounts that may start and see jobs")
		belong = nil
	case "iam":
		belong = []string{"OPERATORS", "OIDC_KEYS_URL"}
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
			e.problem("%s is set, and AUTH=%s does not use it", name, auth)
		}
	}
}

// An environment collects what is wrong with it.
type environment struct {
	getenv   func(string) string
	problems []string
}

func (e *environment) problem(format string, args ...any) {
	e.problems = append(e.problems, fmt.Sprintf(format, args...))
}

func (e *environment) required(name, hint string) string {
	v := e.getenv(name)
	if v == "" {
		e.problem("%s is not set: %s", name, hint)
	}
	return v
}

// accounts reads a list of e-mail addresses.
func (e *environment) accounts(name, hint string) []string {
	var all []string
	value := e.required(name, hint)
	for a := range strings.SplitSeq(value, ",") {
		if a = strings.TrimSpace(a); a != "" {
			all = append(all, a)
		}
	}
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
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || !ok(u) {
		e.problem("%s is %q, it has to be %s", name, value, want)
	}
}
