package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// config is what the environment says.
//
//	GOOGLE_CLOUD_PROJECT   the project of the database
//	DATASTORE_DATABASE     the database's ID; the default database if empty
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE
//	SERVICE_URL            where Cloud Tasks reaches this service, https://…run.app
//	TASKS_SERVICE_ACCOUNT  the account whose tokens the tasks carry
//	OPERATORS              the accounts that may start and see jobs, with commas between
//	AUTH                   "off" takes every request: for emulators only, or behind Cloud
//	                       Run's own IAM check
//	OIDC_KEYS_URL          where the tokens' public keys are; Google's if empty
//	HOST, PORT             where to listen; 127.0.0.1 and 8080 if empty
//
// DATASTORE_EMULATOR_HOST and CLOUD_TASKS_EMULATOR_HOST point the service at
// emulators.
type config struct {
	project, database string
	queue             string
	url               string
	serviceAccount    string
	operators         []string
	open              bool // no request has to prove itself
	keysURL           string
	addr              string
}

// configFrom reads the environment, and names everything that is wrong with it.
func configFrom(getenv func(string) string) (config, error) {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	required := func(name, hint string) string {
		v := getenv(name)
		if v == "" {
			problem("%s is not set: %s", name, hint)
		}
		return v
	}
	orElse := func(name, value string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return value
	}
	c := config{
		project:  required("GOOGLE_CLOUD_PROJECT", "the project of the database"),
		database: getenv("DATASTORE_DATABASE"),
		queue:    required("TASKS_QUEUE", "projects/PROJECT/locations/LOCATION/queues/QUEUE"),
		url:      strings.TrimSuffix(required("SERVICE_URL", "where Cloud Tasks reaches this service"), "/"),
		keysURL:  getenv("OIDC_KEYS_URL"),
		addr:     net.JoinHostPort(orElse("HOST", "127.0.0.1"), orElse("PORT", "8080")),
	}
	if u, err := url.Parse(c.url); c.url != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		problem("SERVICE_URL is %q, it has to be an http or https URL", c.url)
	}
	switch auth := getenv("AUTH"); auth {
	case "off":
		c.open = true
	case "", "on":
		c.serviceAccount = required("TASKS_SERVICE_ACCOUNT", "the account whose tokens the tasks carry, or set AUTH=off")
		for account := range strings.SplitSeq(required("OPERATORS", "the accounts that may start jobs, or set AUTH=off"), ",") {
			if account = strings.TrimSpace(account); account != "" {
				c.operators = append(c.operators, account)
			}
		}
	default:
		problem("AUTH is %q, it has to be on or off", auth)
	}
	return c, errors.Join(problems...)
}
