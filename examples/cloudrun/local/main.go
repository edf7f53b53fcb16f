// Command local runs the service of examples/cloudrun on this machine, as Cloud Run would. It needs
// no other program: it embeds Datastore and Cloud Tasks, and a router simulates Cloud Run:
//
//   - Instances are processes of the service. Requests start and end them, from none to a maximum.
//   - An instance gets requests after it answered /ready with 200, at most its concurrency at once.
//   - An idle instance has no CPU: it is stopped, unless -cpu=always.
//   - A request waits for an instance, and gets 429 after a time.
//   - A request that takes too long gets 504, and its instance loses the connection.
//   - To end an instance, the router sends SIGTERM and no more requests, and kills it 10 s later.
//   - Two revisions may share the requests.
//
// It starts a job through the service's API with an operator's token, and follows it to its end.
// Then it checks that each account was credited exactly once, that the job's records prove it, and
// that every status the operator saw was true.
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

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/mapper"
)

// Values of the flag -cpu.
const (
	cpuRequest = "request"
	cpuAlways  = "always"
)

// config has the values of the command's flags.
type config struct {
	limits
	entities, amount int
	workers          int
	cpu              string
	wait, timeout    time.Duration
	cold, latency    time.Duration
	term, kill       int
	rollout, pause   bool
	json, log        bool
	// the programs of the service's revisions; the last one is also used for all later revisions;
	// if it is empty, the service is built from this checkout
	programs []string
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

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("local", flag.ContinueOnError)
	flags.IntVar(&c.entities, "entities", 50000, "how many accounts to write and credit, `N` in [1, 10000000]")
	flags.IntVar(&c.amount, "amount", 10, "what to add to each balance, an `integer` of at most a billion")
	flags.IntVar(&c.min, "min-instances", 0, "how many instances stay, `N` in [0, 20]; 0 scales to zero")
	flags.IntVar(&c.max, "max-instances", 4, "how many instances a revision has at most, `N` in [1, 20]")
	flags.IntVar(&c.concurrency, "concurrency", 8, "how many requests an instance takes at once, `N` in [1, 1000]")
	flags.IntVar(&c.workers, "workers", 0, "how many tasks the queue delivers at once, `N` in [0, 1000];\n"+
		"0: the service creates a queue with its own limit. Requests above the limit get 429")
	flags.StringVar(&c.cpu, "cpu", cpuRequest,
		"`when` an instance has a CPU: request, only while it serves one; or always,\n"+
			"as with a collector beside it")
	flags.DurationVar(&c.keep, "idle", 2*time.Second,
		"how long an idle instance stays; on Cloud Run up to 15m")
	flags.DurationVar(&c.wait, "wait", 10*time.Second,
		"how long a request waits for an instance, before it is answered 429;\n"+
			"longer if 3.5 average starts take longer")
	flags.DurationVar(&c.timeout, "timeout", 15*time.Minute, "how long a request may take, before it is answered 504")
	flags.DurationVar(&c.cold, "cold", 300*time.Millisecond,
		"how long it takes until the process of a new instance starts")
	flags.DurationVar(&c.latency, "latency", 10*time.Millisecond,
		"the median `duration` of calls of the Datastore and Cloud Tasks,\n"+
			"in addition to their work")
	flags.BoolVar(&c.rollout, "rollout", false,
		"deploy a second revision in the middle: it gets 10%, 50% and then all requests")
	flags.BoolVar(&c.pause, "pause", false, "pause the job in the middle, until the service has no instances")
	flags.IntVar(&c.term, "term", 0, "how many instances get SIGTERM in the middle, `N` in [0, 20]")
	flags.IntVar(&c.kill, "kill", 0, "how many instances are killed in the middle, `N` in [0, 20]")
	flags.BoolVar(&c.log, "log", false, "show the log of the instances")
	flags.BoolVar(&c.json, "json", false, "print the result as one JSON object, as the last line")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	const longest = time.Hour // Cloud Run's longest timeout
	err := errors.Join(
		command.Between("-entities", c.entities, 1, 10_000_000),
		command.Between("-amount", c.amount, -1_000_000_000, 1_000_000_000),
		command.Between("-min-instances", c.min, 0, 20),
		command.Between("-max-instances", c.max, 1, 20),
		command.Between("-concurrency", c.concurrency, 1, 1000),
		command.Between("-workers", c.workers, 0, 1000),
		command.OneOf("-cpu", c.cpu, []string{cpuRequest, cpuAlways}),
		command.Between("-idle", c.keep, 10*time.Millisecond, longest),
		command.Between("-wait", c.wait, 0, longest),
		command.Between("-timeout", c.timeout, time.Second, longest),
		command.Between("-cold", c.cold, 0, time.Minute),
		command.Between("-latency", c.latency, 0, time.Minute),
		command.Between("-term", c.term, 0, 20),
		command.Between("-kill", c.kill, 0, 20),
	)
	switch {
	case err == nil && c.min > c.max:
		err = fmt.Errorf("-min-instances is %d, it has to be at most -max-instances, which is %d", c.min, c.max)
	case err == nil && c.pause && c.min > 0:
		err = errors.New("-pause waits until the last instance has ended: set -min-instances=0")
	case err == nil && c.cpu == cpuRequest && !pauses:
		err = errors.New("-cpu=request stops processes, which this system does not know: use -cpu=always")
	}
	return c, err
}

// A result has the numbers that the command prints: of the job, and of the router.
type result struct {
	bank.Result
	Redone int64 `json:"redone"` // number of accounts for which the function was called more than once
	counts
}

// run is the whole command: it starts the service, writes accounts, runs the job, checks the
// result, and prints it.
func run(ctx context.Context, c config, stdout, stderr io.Writer) error {
	lines := stdout
	if c.json {
		lines = io.Discard
	}
	screen := newScreen(lines, stderr, int64(c.entities))
	s, err := start(ctx, c, screen.say, stderr)
	if err != nil {
		return err
	}
	defer s.close()
	screen.print("The service       %s, %d to %d instances of %d requests at once", s.url, c.min, c.max, c.concurrency)
	screen.print("Its Datastore     %s, and its Cloud Tasks %s, both in this process", s.emulator.DatastoreAddr(),
		s.emulator.TasksAddr())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.failed:
			_, err := s.seen()
			cancel(err)
		case <-ctx.Done():
		}
	}()
	if err := bank.WriteAccounts(ctx, s.client, c.entities, accountKey); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	before, err := bank.ReadAccounts(ctx, s.client, 0)
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}
	s.latency.Resume()
	o := &operation{service: s, config: c, screen: screen, events: script(c)}
	used, begun := s.emulator.Usage(), time.Now()
	screen.begun = begun
	if err := o.start(ctx); err != nil {
		return err
	}
	status, err := o.follow(ctx)
	if err != nil {
		return err
	}
	took, cost := time.Since(begun), s.emulator.Usage().Sub(used)
	screen.say("the job %s", status.State)
	s.latency.Pause()
	return o.report(ctx, stdout, status, before, took, cost)
}

// report checks and prints the result of the job.
func (o *operation) report(
	ctx context.Context, stdout io.Writer, status *mapper.Status, before bank.Tally, took time.Duration,
	cost billing.Usage,
) error {
	after, err := bank.ReadAccounts(ctx, o.client, int64(o.amount))
	if err != nil {
		return fmt.Errorf("read the accounts back: %w", err)
	}
	err = o.listed(ctx)
	if o.min == 0 && err == nil {
		err = o.quiet(ctx)
	}
	if err == nil {
		err = o.proven(ctx)
	}
	if err != nil {
		return err
	}
	calls, redone, err := o.calls()
	if err != nil {
		return err
	}
	seen, problems := o.seen()
	r := result{Redone: redone, counts: seen, Result: bank.Result{
		State: status.State, Entities: after.Accounts, Processed: status.Processed, Failures: status.Failures,
		SumBefore: before.Sum, SumAfter: after.Sum,
		Tasks: status.Tasks, Pages: status.Pages, Depth: status.MaxDepth, Seconds: took.Seconds(),
		Reads: cost.Reads, Writes: cost.Writes,
	}}
	if o.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else if err = r.Print(stdout, cost.TaskOps); err == nil {
		o.screen.print("The function was called %s times, for %s accounts more than once.", bank.Grouped(calls),
			bank.Grouped(redone))
		seen.print(o.screen)
	}
	if status.Error != "" {
		return errors.Join(err, errors.New(status.Error))
	}
	return errors.Join(err, r.Check(o.entities, int64(o.amount), before, after), problems)
}

// print prints the router's counts.
func (c counts) print(s *screen) {
	without := 0.0
	if c.life > 0 {
		without = 100 * c.paused.Seconds() / c.life.Seconds()
	}
	s.print("\n%d instances were started, and up to %d were there at once. They had no CPU for %.0f%% of the time.",
		c.Started, c.AtOnce, without)
	s.print("Of %s requests %s waited for an instance, for up to %v.", bank.Grouped(int64(c.Requests)),
		bank.Grouped(int64(c.Waited)), c.longestWait.Round(10*time.Millisecond))
	s.print("The router itself answered %d requests with 429, %d with 503 and %d with 504.", c.Refused, c.Cut,
		c.TimedOut)
}
