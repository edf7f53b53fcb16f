// Command comments keeps comments of orders in 20 logical shards, which are kinds, in two
// databases. Its callers know only one kind. They use the Datastore client, and its calls are
// routed to the shards.
//
// The program prints why there are 20 shards of 300,000 orders, and lets the same caller use the
// plain kind and the store. Then it moves the comments into 32 shards while others insert, edit,
// delete and read them. It checks that no comment was lost, doubled or seen twice.
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
)

// config has the values of the command's flags.
type config struct {
	command.Job
	comments  int
	databases int
	writers   int
	things    int
	indexes   bool
	from, to  int
}

func main() {
	command.Main("comments", func(ctx context.Context, args []string) error {
		c, err := parse(args, os.Stdout)
		if err != nil {
			return err
		}
		if c.indexes {
			_, err := os.Stdout.Write(indexYAML(c.from, c.to))
			return err
		}
		return runProgram(ctx, c, os.Stdout)
	})
}

// parse parses the flags. For the flag -help it prints the help.
func parse(args []string, help io.Writer) (config, error) {
	c := config{Job: command.Job{Page: 100, Workers: 8}}
	flags := flag.NewFlagSet("comments", flag.ContinueOnError)
	c.Define(flags, "comments")
	flags.IntVar(&c.comments, "comments", 4000,
		"how many comments are there before they are moved, `N` in [0, 1000000]")
	flags.IntVar(&c.databases, "databases", 2, "in how many databases they are, `N` in [1, 8]")
	flags.IntVar(&c.writers, "writers", 8, "how many insert, edit, delete and read comments meanwhile, `N` in [1, 100]")
	flags.IntVar(&c.from, "from", 20, "in how many logical shards they are, a multiple of -databases, `N` in [1, 128]")
	flags.IntVar(&c.to, "to", 32, "and into how many they are moved, likewise, `N` in [1, 128]")
	flags.IntVar(&c.things, "things", 300, "how many things the caller does that uses the plain kind, and then the "+
		"store, `N` in [0, 100000]")
	flags.BoolVar(&c.indexes, "indexes", false,
		"print the index.yaml of -from and -to shards, which may be the same, and end")
	if err := command.Parse(flags, args, help); err != nil {
		return c, err
	}
	err := errors.Join(
		c.Check(),
		command.Between("-comments", c.comments, 0, 1_000_000),
		command.Between("-databases", c.databases, 1, MaxPhysical),
		command.Between("-things", c.things, 0, 100_000),
		command.Between("-writers", c.writers, 1, 100),
		command.Between("-from", c.from, 1, MaxLogical),
		command.Between("-to", c.to, 1, MaxLogical),
	)
	if err == nil && (c.from%c.databases != 0 || c.to%c.databases != 0) {
		err = fmt.Errorf("-from %d and -to %d have to be multiples of -databases %d", c.from, c.to, c.databases)
	}
	if err == nil && c.from == c.to && !c.indexes {
		err = fmt.Errorf("-from and -to are both %d: there is nothing to move", c.from)
	}
	return c, err
}

// A result has the numbers that the program prints.
type result struct {
	Derivation derivation `json:"derivation"`
	// Notes is the number of results that the caller has noted. They are the same with a plain kind
	// in Datastore and with the store.
	Notes     int   `json:"notes"`
	Comments  int64 `json:"comments"`  // number of comments at the end
	Inserted  int64 `json:"inserted"`  // number of comments inserted during the move
	Edited    int64 `json:"edited"`    // number of comments edited during the move
	Deleted   int64 `json:"deleted"`   // number of comments deleted during the move
	Read      int64 `json:"read"`      // number of times that an order was read during the move
	Databases int   `json:"databases"` // number of databases
	From      int   `json:"from"`
	To        int   `json:"to"`
	Largest   int64 `json:"largest"` // number of comments in the largest shard at the end
	MostEdits int64 `json:"most_edits"`
}

func (r result) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	r.Derivation.print(w)
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	databases := fmt.Sprint(r.Databases, " databases")
	if r.Databases == 1 {
		databases = "1 database"
	}
	if r.Notes > 0 {
		say("The same caller, on the plain kind and on the store")
		say("  It put, edited, deleted and listed comments, and noted %d answers:", r.Notes)
		say("  the same of both.\n")
	}
	say("%d comments went from %d to %d logical shards of %s", r.Comments, r.From, r.To, databases)
	say("  Meanwhile %d were inserted and %d deleted, %d edits were made,", r.Inserted, r.Deleted, r.Edited)
	say("  and orders were read %d times.", r.Read)
	if r.Edited > 0 {
		say("  Each comment is there once, with all of its edits.")
	} else {
		say("  Each comment is there once.")
	}
	if r.Read > 0 {
		say("  No reader missed one, saw one twice, or saw a deleted one.")
	}
	say("  The largest shard has %d comments.", r.Largest)
	if r.Edited > 0 {
		say("  A job over all shards found that the comment edited most has %d edits.", r.MostEdits)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
