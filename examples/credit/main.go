// Command credit runs scattermap's main job with nothing installed: it starts
// an embedded Datastore and an embedded Cloud Tasks in its own process, writes
// accounts, adds an amount to the balance of each, exactly once, and checks that
// by reading the accounts back.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
)

// config is what the flags say.
type config struct {
	entities, page, workers int
	amount                  int64
	keys, datastore         string
	json                    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, c, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "credit:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("credit", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.entities, "entities", 20000, "how many accounts to write and credit")
	flags.IntVar(&c.page, "page", 500, "how many accounts are committed together, at most")
	flags.IntVar(&c.workers, "workers", 32, "how many tasks run at once")
	flags.Int64Var(&c.amount, "amount", 10, "what to add to each balance")
	flags.StringVar(&c.keys, "keys", "names", "how the accounts are keyed: "+strings.Join(keyings, ", "))
	flags.StringVar(&c.datastore, "datastore", "embedded", "where the accounts are: "+strings.Join(datastores, ", "))
	flags.BoolVar(&c.json, "json", false, "print the result as one JSON object, as the last line")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case c.entities < 0:
		return c, fmt.Errorf("-entities has to be at least 0, it is %d", c.entities)
	case c.page < 1 || c.page > 1000:
		return c, fmt.Errorf("-page has to be in [1, 1000], it is %d", c.page)
	case c.workers < 1 || c.workers > 5000:
		return c, fmt.Errorf("-workers has to be in [1, 5000], Cloud Tasks' limit, it is %d", c.workers)
	}
	if err := oneOf("-keys", c.keys, keyings); err != nil {
		return c, err
	}
	return c, oneOf("-datastore", c.datastore, datastores)
}

func oneOf(name, value string, allowed []string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return fmt.Errorf("%s is %q, it has to be one of %s", name, value, strings.Join(allowed, ", "))
}

// run does it all: set up, write, run the job, check, report.
func run(ctx context.Context, c config, stdout, stderr io.Writer) error {
	cloud, err := startCloud(ctx, c)
	if err != nil {
		return err
	}
	defer cloud.close()
	say := func(format string, args ...any) {
		if !c.json {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	say("Writing %s accounts keyed by %s into the %s Datastore.", grouped(int64(c.entities)), c.keys, c.datastore)
	if err := writeAccounts(ctx, cloud.client, c); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	before, err := readAccounts(ctx, cloud.client, 0)
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}

	say("Adding %d to each balance.", c.amount)
	used, begun := cloud.usage(), time.Now()
	job, err := bank.AddCredit.Start(ctx, cloud.engine, mapper.Query{Kind: "Account"}, bank.Credit{Amount: c.amount}, &mapper.StartOptions{
		ID: "spring-credit", PageSize: c.page, Workers: c.workers,
	})
	if err != nil {
		return err
	}
	status, err := follow(ctx, job, int64(c.entities), stderr)
	if err != nil {
		return err
	}
	took, cost := time.Since(begun), cloud.usage().Sub(used)

	after, err := readAccounts(ctx, cloud.client, c.amount)
	if err != nil {
		return fmt.Errorf("read the accounts back: %w", err)
	}
	r := result{
		State: status.State, Entities: after.accounts, Processed: status.Processed, Failures: status.Failures,
		SumBefore: before.sum, SumAfter: after.sum,
		Tasks: status.Tasks, Pages: status.Pages, Depth: status.Depth, Seconds: took.Seconds(),
		Reads: cost.Reads, Writes: cost.Writes,
	}
	if c.json {
		if err := json.NewEncoder(stdout).Encode(r); err != nil {
			return err
		}
	} else {
		r.print(stdout, cloud.taskOps()-used.TaskOps)
	}
	if status.Error != "" {
		return errors.New(status.Error)
	}
	return r.check(c, before, after)
}
