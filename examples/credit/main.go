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
	"syscall"
	"time"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/examples/internal/cloud"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := parse(os.Args[1:], os.Stdout)
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

// maxAmount keeps the sum of all balances well inside 64 bits.
const maxAmount = 1_000_000_000

// parse reads the flags, and prints their help if that is asked for.
func parse(args []string, help io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("credit", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned
	flags.IntVar(&c.entities, "entities", 20000, "how many accounts to write and credit, `N` >= 0")
	flags.IntVar(&c.page, "page", 500, "how many accounts are committed together at most, `N` in [1, 1000]")
	flags.IntVar(&c.workers, "workers", 32, "how many tasks run at once, `N` in [1, 5000]")
	flags.Int64Var(&c.amount, "amount", 10, "what to add to each balance, an `integer` of at most a billion")
	flags.StringVar(&c.keys, "keys", "names", "how the accounts are keyed, `one of`:\n"+
		"names, ids, uuid, ancestors (accounts of customers of regions),\n"+
		"mixed (a few small ids beside a great many names)")
	flags.StringVar(&c.datastore, "datastore", "embedded", "where the accounts are, "+cloud.DatastoreUsage)
	flags.BoolVar(&c.json, "json", false, "print the result as one JSON object, as the last line")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(help, "usage: credit [flags]")
			flags.SetOutput(help)
			flags.PrintDefaults()
			return c, err
		}
		return c, fmt.Errorf("%w (-help lists the flags)", err)
	}
	switch {
	case c.amount < -maxAmount || c.amount > maxAmount:
		return c, fmt.Errorf("-amount has to be in [-%d, %d], it is %d", maxAmount, maxAmount, c.amount)
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
	return c, oneOf("-datastore", c.datastore, cloud.Datastores)
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
	say := func(format string, args ...any) {
		if !c.json {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	if c.datastore != "embedded" {
		say("Starting Google's emulator, which takes some seconds.")
	}
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.datastore, Workers: c.workers, Mappers: mapper.Set(bank.AddCredit)})
	if err != nil {
		return err
	}
	defer on.Close()
	say("Writing %s accounts keyed by %s into the %s Datastore.", grouped(int64(c.entities)), c.keys, c.datastore)
	if err := writeAccounts(ctx, on.Client, c); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	before, err := readAccounts(ctx, on.Client, 0)
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}

	say("Adding %d to each balance.", c.amount)
	used, begun := on.Usage(), time.Now()
	job, err := bank.AddCredit.Start(ctx, on.Engine, mapper.Query{Kind: "Account"}, bank.Credit{Amount: c.amount}, &mapper.StartOptions{
		ID: "spring-credit", PageSize: c.page, Workers: c.workers,
	})
	if err != nil {
		return err
	}
	status, err := follow(ctx, job, int64(c.entities), stderr)
	if err != nil {
		return err
	}
	took, cost := time.Since(begun), on.Usage().Sub(used)

	after, err := readAccounts(ctx, on.Client, c.amount)
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
	} else if err := r.print(stdout, on.TaskOps()-used.TaskOps); err != nil {
		return err
	}
	if status.Error != "" {
		return errors.New(status.Error)
	}
	return r.check(c, before, after)
}
