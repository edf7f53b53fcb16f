// Command users visits all active users of an embedded Datastore. It checks each user, and turns
// off the flag that the query filters by. It repeats that with the same users, cut in different
// ways:
//
//   - chain: one task, page after page
//   - ten shards: fixed at the start, page after page in each
//   - page, then ten: a task does a page, and cuts the rest into ten equal parts, whose tasks do
//     the same
//   - adaptive: scattermap's own cuts
//
// It also cuts by three orders: a number that each user got at random, the time at which they
// joined, and their keys. Half of the users have joined in the first 8% of the time, so equal parts
// of it have different numbers of users.
//
// Every call to the embedded Datastore takes 30 ms. The command prints how long each run took, and
// the tree of "page, then ten": how many tasks each depth had, and when. It also prints the cost of
// reading the users by offsets.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/scattermap/scattermap/examples/internal/command"
)

// config has the values of the command's flags.
type config struct {
	command.Job
	users   int
	latency time.Duration
}

func main() {
	command.Main("users", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 100, Workers: 20}}
	flags := flag.NewFlagSet("users", flag.ContinueOnError)
	c.Define(flags, "users")
	flags.IntVar(&c.users, "users", 6000,
		"how many users to write, of whom two thirds are active,\n`N` in [0, 10000000]")
	flags.DurationVar(&c.latency, "latency", 30*time.Millisecond,
		"how long each call to the embedded Datastore takes,\na `duration` up to 10s")
	for _, name := range []string{"page", "datastore"} {
		flags.Lookup(name).Usage += "\n" // put the default on a line of its own, so that the help fits into 80 columns
	}
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	var ignored error
	flags.Visit(func(f *flag.Flag) {
		if f.Name == "latency" && c.Datastore != embedded {
			ignored = fmt.Errorf("-latency is of the embedded Datastore: leave it out with -datastore %s", c.Datastore)
		}
	})
	return c, errors.Join(
		c.Check(),
		command.Between("-users", c.users, 0, 10_000_000),
		command.Between("-latency", c.latency, 0, 10*time.Second),
		ignored,
	)
}

// embedded is the name of the embedded Datastore, whose calls take the time of the flag -latency.
const embedded = "embedded"

// where returns a text about the Datastore that stores the users.
func (c config) where() string {
	switch c.Datastore {
	case embedded:
		return fmt.Sprintf("the embedded Datastore, %v a call", c.latency)
	case "google":
		return "Google's classic emulator"
	}
	return "Google's Firestore emulator"
}

// run runs the job in all forms, checks the results, reads the users by offsets, and prints the
// comparison.
func run(ctx context.Context, c config, stdout io.Writer) error {
	show := stdout
	if c.JSON {
		show = io.Discard
	}
	fmt.Fprintf(show, "%d users in %s; %d workers, pages of %d.\n", c.users, c.where(), c.Workers, c.Page)
	r := result{Users: c.users}
	_, _ = fmt.Fprint(show, heading)
	for _, f := range forms {
		o, err := runForm(ctx, c, f)
		if err != nil {
			return fmt.Errorf("%s over %s: %w", f.name, f.over.name, err)
		}
		r.add(o)
		_, _ = fmt.Fprint(show, r.row(len(r.Outcomes)-1))
	}
	_, _ = fmt.Fprint(show, r.tree())
	var err error
	if r.Offsets, err = readByOffsets(ctx, c); err != nil {
		return fmt.Errorf("read by offsets: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	_, _ = fmt.Fprint(show, r.Offsets.report(c))
	return nil
}
