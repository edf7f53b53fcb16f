// Command scattermap is the command line of scattermap: it starts and controls the jobs of a
// service, and looks at databases. scattermap help lists its commands.
//
// Its exit codes are 0 for success, 1 for an error, and 2 for a wrong flag or argument. Code 3 says
// that the job that a command watched did not succeed, or has failures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/names"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scattermap:", err)
	}
	os.Exit(codeOf(err))
}

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
	exitJob   = 3 // the job that a command followed did not succeed, or has failures
)

// Errors that determine the exit code: errUsage is about a wrong flag or argument. The others are
// about the outcome of the job that a command followed.
var (
	errUsage    = errors.New("wrong usage")
	errJob      = errors.New("the job did not succeed")
	errFailures = errors.New("the job left failures")
)

// A usage is an error about a wrong flag or argument.
type usage struct{ error }

func (usage) Is(target error) bool { return target == errUsage }

// usageError marks an error as one about a wrong flag or argument.
func usageError(err error) error { return usage{err} }

// codeOf returns the exit code of an error.
func codeOf(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errJob), errors.Is(err, errFailures):
		return exitJob
	}
	return exitError
}

// IDs of the groups into which the help sorts commands.
const (
	jobsGroup     = "jobs"
	databaseGroup = "database"
)

// newRoot returns the command scattermap with its subcommands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "scattermap",
		Short: "Run Go functions over every entity of a Cloud Datastore query",
		Long: `scattermap starts and controls the jobs of a service, and looks at databases.

First run "scattermap login URL": it finds how to authenticate to a service, and the other
commands then use that service. --service or $SCATTERMAP_SERVICE chooses another one. You
authenticate with an identity token: the one in $SCATTERMAP_TOKEN, or one that gcloud makes.

With --straight QUEUE no service is needed: the command works on the database and the queue,
with your own permissions.

Exit codes: 0 success; 1 an error; 2 a wrong flag or argument; 3 the watched job failed, was
aborted or paused, or left failures.`,
		Version: "unknown", SilenceUsage: true, SilenceErrors: true,
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		root.Version = info.Main.Version
	}
	root.AddGroup(&cobra.Group{ID: jobsGroup, Title: "Jobs of a service:"},
		&cobra.Group{ID: databaseGroup, Title: "Databases:"})
	root.AddCommand(newEmulator(), newSplits(), newVersion())
	root.AddCommand(jobCommands()...)
	guardFlags(root)
	return root
}

// run parses a command line, and runs its command.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if number := negative.FindStringSubmatch(err.Error()); number != nil {
			return usageError(fmt.Errorf("%s: %q is negative, and a number has to be at least 0", c.Name(), number[1]))
		}
		err = fmt.Errorf("%w (%s --help lists the flags)", err, c.CommandPath())
		if c.HasParent() {
			err = fmt.Errorf("%s: %w", c.Name(), err)
		}
		return usageError(err)
	})
	ran, err := root.ExecuteContextC(ctx)
	err = inFlags(ran, err)
	// cobra also returns this error for one argument too many
	if err != nil && strings.HasPrefix(err.Error(), "unknown command") {
		if !strings.Contains(err.Error(), "\n") { // cobra has no suggestion
			err = fmt.Errorf("%w (%s --help lists the commands)", err, root.Name())
		}
		return usageError(err)
	}
	return err
}

// negative matches pflag's error about a negative number in the place of an argument.
var negative = regexp.MustCompile(`^unknown shorthand flag: .* in (-[0-9.]+)$`)

// nothing is a cobra.PositionalArgs that refuses all arguments. If the argument may be meant as the
// value of the flag before it, the error says how to write that.
func nothing(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		var alone string
		c.Flags().Visit(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" && f.Value.Type() != "bool" && f.Value.String() == f.NoOptDefVal {
				alone = f.Name
			}
		})
		if alone != "" {
			return usageError(fmt.Errorf("%s: it takes no argument, and was given %.110q: if that is the value of "+
				"--%s, write --%s=%.110s", c.Name(), args[0], alone, alone, args[0]))
		}
		return usageError(fmt.Errorf("%s: it takes no argument, and was given %.110q (%s --help says what it takes)",
			c.Name(), args[0], c.CommandPath()))
	}
	return nil
}

// oneJob is a cobra.PositionalArgs that requires exactly one argument, the ID of a job.
func oneJob(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError(fmt.Errorf("%s: name one job; \"scattermap jobs\" lists them", c.Name()))
	}
	if !names.JobID(args[0]) {
		return usageError(fmt.Errorf("%s: %.110q is not the ID of a job (1 to 100 letters, digits, '-' and '_', "+
			"and not __x__); \"scattermap jobs\" lists the jobs", c.Name(), args[0]))
	}
	return nil
}
