// Command local runs the service of examples/cloudrun on this machine, with nothing installed: it starts an embedded
// Datastore and an embedded Cloud Tasks, builds the service, starts two processes of it behind a balancer, starts a job
// through their API with an operator's token, and follows it to its end. It can end a process in the middle, as Cloud Run
// does (-term), or kill one (-kill), and checks that each account was credited exactly once all the same.
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

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/examples/internal/command"
)

// config is what the flags say.
type config struct {
	entities, amount   int
	processes, workers int
	term, kill         int
	json, log          bool
	program            string // of the processes; empty: it is built
}

func main() {
	command.Main("local", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout, os.Stderr)
	})
}

// parse reads the flags, and prints their help if that is asked for.
func parse(args []string, help io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("local", flag.ContinueOnError)
	flags.IntVar(&c.entities, "entities", 20000, "how many accounts to write and credit, `N` in [1, 10000000]")
	flags.IntVar(&c.amount, "amount", 10, "what to add to each balance, an `integer` of at most a billion")
	flags.IntVar(&c.processes, "processes", 2, "how many processes of the service run, `N` in [1, 20]")
	flags.IntVar(&c.workers, "workers", 16, "how many tasks the queue delivers at once, `N` in [1, 1000]")
	flags.IntVar(&c.term, "term", 0, "how many processes to end by SIGTERM in the middle, `N` in [0, 20];\nanother takes the place of each")
	flags.IntVar(&c.kill, "kill", 0, "how many processes to end by SIGKILL in the middle, `N` in [0, 20]")
	flags.BoolVar(&c.log, "log", false, "show the log of the processes")
	flags.BoolVar(&c.json, "json", false, "print the result as one JSON object, as the last line")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		command.Between("-entities", c.entities, 1, 10_000_000),
		command.Between("-amount", c.amount, -1_000_000_000, 1_000_000_000),
		command.Between("-processes", c.processes, 1, 20),
		command.Between("-workers", c.workers, 1, 1000),
		command.Between("-term", c.term, 0, 20),
		command.Between("-kill", c.kill, 0, 20),
	)
}

// A result is what the job did, and how often its function was called in vain.
type result struct {
	bank.Result
	Redone int64 `json:"redone"` // accounts that the function was called for more than once
}

// run does it all: set up, write, run the job, check, report.
func run(ctx context.Context, c config, stdout, stderr io.Writer) error {
	say := func(format string, args ...any) {
		if !c.json {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	say("Starting an embedded Datastore and Cloud Tasks, and %d processes of the service.", c.processes)
	s, err := start(ctx, c, stderr)
	if err != nil {
		return err
	}
	defer s.close()
	say("  datastore   %s\n  cloud tasks %s\n  the service %s", s.emulator.DatastoreAddr(), s.emulator.TasksAddr(), s.url)
	if err := bank.WriteAccounts(ctx, s.client, c.entities, accountKey); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	before, err := bank.ReadAccounts(ctx, s.client, 0)
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}
	body := fmt.Sprintf(`{"mapper": "add-credit", "id": "spring-credit", "query": {"kind": "Account"}, "params": {"Amount": %d}}`, c.amount)
	say("Starting a job through the API, as %s:\n  POST %s/jobs %s", operator, s.url, body)
	used, begun := s.emulator.Usage(), time.Now()
	if err := s.call(ctx, "POST", "/jobs", body, nil); err != nil {
		return err
	}
	ended := make(chan error, 1)
	endCtx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { ended <- s.endSome(endCtx, c, say) }()
	status, err := s.follow(ctx, int64(c.entities), stderr)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	took, cost := time.Since(begun), s.emulator.Usage().Sub(used)
	after, err := bank.ReadAccounts(ctx, s.client, int64(c.amount))
	if err != nil {
		return fmt.Errorf("read the accounts back: %w", err)
	}
	calls, redone, err := s.calls()
	if err != nil {
		return err
	}
	r := result{Redone: redone, Result: bank.Result{
		State: status.State, Entities: after.Accounts, Processed: status.Processed, Failures: status.Failures,
		SumBefore: before.Sum, SumAfter: after.Sum,
		Tasks: status.Tasks, Pages: status.Pages, Depth: status.Depth, Seconds: took.Seconds(),
		Reads: cost.Reads, Writes: cost.Writes,
	}}
	if c.json {
		if err := json.NewEncoder(stdout).Encode(r); err != nil {
			return err
		}
	} else {
		if err := r.Print(stdout, cost.TaskOps); err != nil {
			return err
		}
		say("The function was called %s times, for %s accounts more than once.", bank.Grouped(calls), bank.Grouped(redone))
	}
	if status.Error != "" {
		return errors.New(status.Error)
	}
	return errors.Join(r.Check(c.entities, int64(c.amount), before, after), s.drained())
}
