// Package command has the main function of the examples' commands, and the flags that say where and
// how a job runs.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/scattermap/scattermap/examples/internal/cloud"
)

// Main runs a command until it returns or the process is interrupted. It prints an error, and exits
// with code 1. It ignores flag.ErrHelp.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// A Job has the values of the flags that several examples have: where and how a job runs.
type Job struct {
	Page, Workers int
	Datastore     string // one of cloud.Datastores
	JSON          bool
}

// Define defines the flags. Their defaults are the fields of j. The help calls the job's entities
// by the name in the parameter entities, such as "accounts".
func (j *Job) Define(flags *flag.FlagSet, entities string) {
	flags.IntVar(&j.Page, "page", j.Page, "how many "+entities+" are committed together at most, `N` in [1, 1000]")
	flags.IntVar(&j.Workers, "workers", j.Workers, "how many tasks run at once, `N` in [1, 5000]")
	flags.StringVar(&j.Datastore, "datastore", cloud.Datastores[0], "where the "+entities+" are, "+cloud.DatastoreUsage)
	flags.BoolVar(&j.JSON, "json", false, "print the result as one JSON object, as the last line")
}

// Check returns an error if the value of a flag is not allowed.
func (j *Job) Check() error {
	return errors.Join(
		Between("-page", j.Page, 1, 1000),
		Between("-workers", j.Workers, 1, 5000),
		OneOf("-datastore", j.Datastore, cloud.Datastores),
	)
}

// Parse parses flags. For the flag -help it prints the help, and returns flag.ErrHelp.
func Parse(flags *flag.FlagSet, args []string, help io.Writer) error {
	flags.SetOutput(io.Discard) // the flag package prints nothing: the caller prints errors
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(help, "usage: %s [flags]\n", flags.Name())
		flags.SetOutput(help)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w (-help lists the flags)", err)
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// Between returns an error if the value of a flag is not in [least, most].
func Between[T int | int64 | time.Duration](name string, value, least, most T) error {
	if value < least || value > most {
		return fmt.Errorf("%s has to be in [%v, %v], it is %v", name, least, most, value)
	}
	return nil
}

// OneOf returns an error if the value of a flag is not one of the allowed ones.
func OneOf(name, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s is %q, it has to be one of %s", name, value, strings.Join(allowed, ", "))
}
