// Command cron runs nightly work on an embedded Datastore. A scheduler calls a service each night,
// several times at once, and the second night starts before the first night's work is done. A job
// renews the subscriptions that are due, exactly once each, and rebuilds the night's aggregates by
// country.
//
// Then the command sends pending orders, each once, to a warehouse that drops answers. It does so
// in four ways, one after the other, and checks all results:
//
//   - by the old cron, which is one process
//   - by 4 processes, and then 8, that filter by a stored remainder, which a job rewrites
//   - by 4 processes, and then 8, that filter keys and go from 4 to 8 without a stop
//   - by a job, which needs no number of shards
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/mapper"
)

// config has the values of the command's flags.
type config struct {
	command.Job
	subscriptions int
	orders        int
	nights        int
	overlap       string
}

var overlaps = []string{string(mapper.OverlapSkip), string(mapper.OverlapQueue), string(mapper.OverlapReplace)}

func main() {
	command.Main("cron", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 500, Workers: 16}}
	flags := flag.NewFlagSet("cron", flag.ContinueOnError)
	c.Define(flags, "subscriptions")
	flags.IntVar(&c.subscriptions, "subscriptions", 5000,
		"how many subscriptions there are, a third of which is due each night,\n`N` in [1, 10000000]")
	flags.IntVar(&c.orders, "orders", 1000, "how many orders are sent, `N` in [0, 100000]")
	flags.IntVar(&c.nights, "nights", 3, "how many nights pass, `N` in [1, 100]")
	flags.StringVar(&c.overlap, "overlap", overlaps[0],
		"what becomes of a tick that comes before the last night's\nwork is done, `one of`:\nskip, queue, replace")
	for _, name := range []string{"page", "datastore"} {
		flags.Lookup(name).Usage += "\n" // put the default on a line of its own, so that the help fits into 80 columns
	}
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		c.Check(),
		command.Between("-subscriptions", c.subscriptions, 1, 10_000_000),
		command.Between("-orders", c.orders, 0, 100_000),
		command.Between("-nights", c.nights, 1, 100),
		command.OneOf("-overlap", c.overlap, overlaps),
	)
}

// A result has the numbers that the command prints.
type result struct {
	Subscriptions int          `json:"subscriptions"`
	Nights        int          `json:"nights"`
	Overlap       string       `json:"overlap"`
	Calls         int          `json:"calls"`   // number of calls by the scheduler
	Became        []string     `json:"became"`  // the outcome of each night's calls
	Refused       int          `json:"refused"` // number of refused calls
	Runs          int          `json:"runs"`    // number of runs that were started
	Renewed       int64        `json:"renewed"`
	Countries     int          `json:"countries"` // number of countries in the last run's aggregates
	Orders        ordersResult `json:"orders"`
}

func (r result) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintf(w, `%d nights: the scheduler called %d times; runs that came of it: %d.
  calls that were answered:  %s
  calls that were refused:   %d, without a token of the scheduler's account
  renewed:                   %d times, each paid for once
  aggregates:                sum, count, least, most of %d countries are right
%s`, r.Nights, r.Calls, r.Runs, r.answers(), r.Refused, r.Renewed, r.Countries, r.Orders)
	return err
}

// indent is the indentation of continued lines in the output.
const indent = "                             "

// answers returns a text about the outcomes of each night's calls.
func (r result) answers() string {
	var all []string
	for i, became := range r.Became {
		text := fmt.Sprintf("night %d %s", i+1, became)
		if i == 1 {
			text += " (the first run was unfinished)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ",\n"+indent)
}

// String returns a text that says which sender has sent how many orders.
func (o ordersResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d orders, each sent once; requests: %d, answers dropped: %d.\n", o.Orders, o.Requests, o.Dropped)
	for _, by := range []string{byOld, byStored4, byStored8, byKeys4, byKeys8, byJob} {
		fmt.Fprintf(&b, "  %-26s %d\n", by+":", o.SentBy[by])
	}
	fmt.Fprintf(&b, "  from 4 to 8 by remainder:  all stop; a job rewrites %d of %d orders:\n", o.Rewrite.Changed,
		o.Rewrite.Orders)
	fmt.Fprintf(&b, "%s%d reads, %d writes, $%.4f\n", indent, o.Rewrite.Reads, o.Rewrite.Writes, o.Rewrite.Dollars)
	fmt.Fprintf(&b, "  from 4 to 8 by keys:       no stop; each process reads all pending keys\n")
	fmt.Fprintf(&b, "  refused meanwhile:         %s\n", strings.Join(o.Refused, "\n"+indent))
	return b.String()
}
