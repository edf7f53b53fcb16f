// Command cron runs nightly work on an embedded Datastore: a service whose endpoint a scheduler calls each night, several times at once. The
// second night's calls come before the first night's work is done. It renews the subscriptions that are due, exactly once each, and rebuilds the
// day's aggregates by country. Then it does other nightly work in the older way, as shard i of N by the hash of keys, and goes from 4 to 8
// shards without a stop. It checks all of it.
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

// config is what the flags say.
type config struct {
	command.Job
	subscriptions int
	nights        int
	overlap       string
}

var overlaps = []string{string(mapper.SkipTick), string(mapper.QueueTick), string(mapper.ReplaceRun)}

func main() {
	command.Main("cron", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout)
	})
}

// parse reads the flags, and prints their help if that is asked for.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 500, Workers: 16}}
	flags := flag.NewFlagSet("cron", flag.ContinueOnError)
	c.Define(flags, "subscriptions")
	flags.IntVar(&c.subscriptions, "subscriptions", 5000, "how many subscriptions there are, of which a third is due each night, `N` in [1, 10000000]")
	flags.IntVar(&c.nights, "nights", 3, "how many nights pass, `N` in [1, 100]")
	flags.StringVar(&c.overlap, "overlap", overlaps[0], "what becomes of a tick that comes before the last night's work is done, `one of`:\nskip, queue, replace")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		c.Check(),
		command.Between("-subscriptions", c.subscriptions, 1, 10_000_000),
		command.Between("-nights", c.nights, 1, 100),
		command.OneOf("-overlap", c.overlap, overlaps),
	)
}

// A result is what the nights have come to.
type result struct {
	Subscriptions int          `json:"subscriptions"`
	Nights        int          `json:"nights"`
	Overlap       string       `json:"overlap"`
	Calls         int          `json:"calls"`   // of the scheduler
	Became        []string     `json:"became"`  // what the calls of each night were answered
	Refused       int          `json:"refused"` // calls
	Runs          int          `json:"runs"`    // that calls have started
	Renewed       int64        `json:"renewed"`
	Countries     int          `json:"countries"` // of the last run's aggregates
	Shards        shardsResult `json:"shards"`
}

func (r result) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintf(w, `%d nights: the scheduler called %d times; runs that came of it: %d.
  calls that were answered:  %s; without a token of the scheduler's account: %d refused
  renewed:                   %d times a subscription was due, and paid for once each; read back to see that
  aggregates:                sum, count, least and most by country, as the subscriptions of %d countries add up by themselves
Fixed shards: %d of %d subscriptions visited by 4 shards, and then %d by 8, each once.
`, r.Nights, r.Calls, r.Runs, r.answers(), r.Refused, r.Renewed, r.Countries, r.Shards.By4, r.Subscriptions, r.Shards.By8)
	return err
}

// answers says what the calls of each night were answered.
func (r result) answers() string {
	var all []string
	for i, became := range r.Became {
		text := fmt.Sprintf("night %d %s", i+1, became)
		if i == 1 {
			text += " (the first one's run was unfinished)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
