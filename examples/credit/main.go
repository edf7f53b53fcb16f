// Command credit runs a whole job with nothing installed. It starts an embedded Datastore and an
// embedded Cloud Tasks in its own process, and writes accounts. Then it adds an amount to each
// balance, exactly once, and checks that by reading the accounts back.
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

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/examples/internal/command"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// config has the values of the command's flags.
type config struct {
	command.Job
	entities int
	amount   int64
	keys     string
	pages    bool
}

func main() {
	command.Main("credit", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		return run(ctx, c, os.Stdout, os.Stderr)
	})
}

// maxAmount is the largest amount, so that the sum of all balances is far below the limit of 64
// bits.
const maxAmount = 1_000_000_000

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 500, Workers: 32}}
	flags := flag.NewFlagSet("credit", flag.ContinueOnError)
	c.Define(flags, "accounts")
	flags.IntVar(&c.entities, "entities", 20000, "how many accounts to write and credit, `N` in [0, 100000000]")
	flags.Int64Var(&c.amount, "amount", 10, "what to add to each balance, an `integer` of at most a billion")
	flags.StringVar(&c.keys, "keys", "names", "how the accounts are keyed, `one of`:\n"+
		"names, ids, uuid, ancestors (accounts of customers of regions),\n"+
		"mixed (a few small ids beside a great many names)")
	flags.BoolVar(&c.pages, "dashboard", false,
		"show the job on pages for a browser, at an address on this machine, until it is interrupted")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	return c, errors.Join(
		c.Check(),
		command.Between("-entities", c.entities, 0, 100_000_000),
		command.Between("-amount", c.amount, -maxAmount, maxAmount),
		command.OneOf("-keys", c.keys, keyings),
	)
}

// run is the whole example: it starts the services, writes accounts, runs the job, checks the
// result, and prints it.
func run(ctx context.Context, c config, stdout, stderr io.Writer) error {
	say := func(format string, args ...any) {
		if !c.JSON {
			fmt.Fprintf(stdout, format+"\n", args...)
		}
	}
	if c.Datastore != "embedded" {
		say("Starting Google's emulator, which takes some seconds.")
	}
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers,
		Mappers: append(prebuilt.Mappers(), bank.AddCredit)})
	if err != nil {
		return err
	}
	defer on.Close()
	say("Writing %s accounts keyed by %s into the %s Datastore.", bank.Grouped(int64(c.entities)), c.keys, c.Datastore)
	if err := bank.WriteAccounts(ctx, on.Client, c.entities, func(i int) *datastore.Key {
		return accountKey(c.keys, i)
	}); err != nil {
		return fmt.Errorf("write the accounts: %w", err)
	}
	before, err := bank.ReadAccounts(ctx, on.Client, 0)
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}

	if c.pages {
		fmt.Fprintf(stderr, "Dashboard: %s\n", on.Dashboard)
		defer func() {
			fmt.Fprintln(stderr, "The dashboard stays until ^C.")
			<-ctx.Done()
		}()
	}
	say("Adding %d to each balance.", c.amount)
	used, begun := on.Usage(), time.Now()
	job, err := bank.AddCredit.Start(ctx, on.Engine, mapper.Query{Kind: "Account"}, bank.Credit{Amount: c.amount},
		&mapper.StartOptions{
			AllowEmpty: true, // -accounts may be 0
			ID:         "spring-credit", PageSize: c.Page, ExpectedWorkers: c.Workers,
		})
	if err != nil {
		return err
	}
	status, err := follow(ctx, job, int64(c.entities), stderr)
	if err != nil {
		return err
	}
	took, cost := time.Since(begun), on.Usage().Sub(used)

	after, err := bank.ReadAccounts(ctx, on.Client, c.amount)
	if err != nil {
		return fmt.Errorf("read the accounts back: %w", err)
	}
	r := bank.Result{
		State: status.State, Entities: after.Accounts, Processed: status.Processed, Failures: status.Failures,
		SumBefore: before.Sum, SumAfter: after.Sum,
		Tasks: status.Tasks, Pages: status.Pages, Depth: status.MaxDepth, Seconds: took.Seconds(),
		Reads: cost.Reads, Writes: cost.Writes,
	}
	if c.JSON {
		if err := json.NewEncoder(stdout).Encode(r); err != nil {
			return err
		}
	} else if err := r.Print(stdout, on.TaskOps()-used.TaskOps); err != nil {
		return err
	}
	if status.Error != "" {
		return errors.New(status.Error)
	}
	return r.Check(c.entities, c.amount, before, after)
}
