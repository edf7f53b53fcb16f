// Command users visits all active users of an embedded Datastore, in the order of their ids,
// checks each, and turns the flag off that the query filters by. It does so three times, each
// time with the same users: as one chain of pages, as ten shards that are fixed at the start,
// and adaptively; and it says how long each took.
//
// Every call to the Datastore takes 50 ms. Half of the users have an id in the first 8% of the
// ids: so the ten shards, which are equal parts of the ids, are not equal in users.
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
	"time"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/mapper"
)

// config is what the flags say.
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

// parse reads the flags, and prints their help if that is asked for.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 100, Workers: 20}}
	flags := flag.NewFlagSet("users", flag.ContinueOnError)
	c.Define(flags, "users")
	flags.IntVar(&c.users, "users", 6000, "how many users to write, of whom two thirds are active, `N` in [0, 10000000]")
	flags.DurationVar(&c.latency, "latency", 50*time.Millisecond, "how long each call to the embedded Datastore takes, a `duration` up to 10s")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		c.Check(),
		command.Between("-users", c.users, 0, 10_000_000),
		command.Between("-latency", c.latency, 0, 10*time.Second),
	)
}

// A form is a way to cut the job.
type form struct {
	name      string
	splitting mapper.Splitting
}

var forms = []form{
	{"chain", mapper.Splitting{First: 1, FanOut: 1}},
	{"ten shards", mapper.Splitting{First: 10, FanOut: 1}},
	{"adaptive", mapper.Splitting{}},
}

// An outcome is what one form did.
type outcome struct {
	Form     string  `json:"form"`
	Seconds  float64 `json:"seconds"`
	Ratio    float64 `json:"ratio"`   // of the adaptive form's seconds
	Checked  int64   `json:"checked"` // users, as the job says
	Invalid  int64   `json:"invalid"` // of them, whose data is not in order
	Pages    int64   `json:"pages"`
	Tasks    int64   `json:"tasks"`
	Unsorted int64   `json:"unsorted"` // users without an id, which the job does not see
	Reads    int64   `json:"reads"`    // billed
	Writes   int64   `json:"writes"`   // billed
}

type result struct {
	Users    int       `json:"users"`
	Active   int64     `json:"active"`
	Outcomes []outcome `json:"forms"`
}

// run runs the job in all forms, checks what each did, and reports.
func run(ctx context.Context, c config, stdout io.Writer) error {
	say := func(format string, args ...any) {
		if !c.JSON {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	r := result{Users: c.users}
	say("%d users in the %s Datastore, whose calls take %v; %d workers, pages of %d.", c.users, c.Datastore, c.latency, c.Workers, c.Page)
	for _, f := range forms {
		o, want, err := runForm(ctx, c, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.Active = want.active
		r.Outcomes = append(r.Outcomes, o)
	}
	adaptive := r.Outcomes[len(r.Outcomes)-1].Seconds
	for i := range r.Outcomes {
		r.Outcomes[i].Ratio = r.Outcomes[i].Seconds / adaptive
	}
	if c.JSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	return r.print(stdout)
}

func (r result) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Each form has checked the %d active ones once, and no other. Read back to see that.\n\n", r.Active)
	fmt.Fprintf(&b, "form         seconds  times as long   pages   tasks  invalid   reads  writes\n")
	for _, o := range r.Outcomes {
		fmt.Fprintf(&b, "%-11s  %7.2f  %13.2f  %6d  %6d  %7d  %6d  %6d\n", o.Form, o.Seconds, o.Ratio, o.Pages, o.Tasks, o.Invalid, o.Reads, o.Writes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// runForm writes the users, runs the job, and reads the users back.
func runForm(ctx context.Context, c config, f form) (o outcome, want tally, err error) {
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Latency: c.latency, Mappers: mapper.Set(checkUser)})
	if err != nil {
		return o, want, err
	}
	defer on.Close()
	if want, err = writeUsers(ctx, on.Client, c.users); err != nil {
		return o, want, fmt.Errorf("write the users: %w", err)
	}
	on.Slow(true)
	used, begun := on.Usage(), time.Now()
	job, err := checkUser.Start(ctx, on.Engine, activeUsers, mapper.None{}, &mapper.StartOptions{
		AllowEmpty: true, // -users can be 0
		ID:         "check-users", PageSize: c.Page, Workers: c.Workers, Splitting: f.splitting,
	})
	if err != nil {
		return o, want, err
	}
	status, err := job.Wait(ctx)
	if err != nil {
		return o, want, err
	}
	cost := on.Usage().Sub(used)
	on.Slow(false)
	if status.State != mapper.Succeeded {
		return o, want, fmt.Errorf("the job ended as %q: %s", status.State, status.Error)
	}
	if err := checkUsers(ctx, on.Client, status, want); err != nil {
		return o, want, err
	}
	return outcome{
		Form: f.name, Seconds: status.Ended.Sub(begun).Seconds(), Checked: status.Processed, Invalid: status.Counters["invalid"],
		Pages: status.Pages, Tasks: status.Tasks, Unsorted: want.unsorted, Reads: cost.Reads, Writes: cost.Writes,
	}, want, nil
}
