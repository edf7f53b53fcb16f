// Command scattermap is the command line of scattermap.
//
//	scattermap emulator   serves Datastore and Cloud Tasks on this machine
//	scattermap splits     prints where a kind can be cut into parts of about the same size
//	scattermap verify     checks the records of a job
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// A command runs with the arguments behind its name, until ctx ends.
type command struct {
	name, does string
	run        func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

var commands = []command{
	{"emulator", "serves Datastore and Cloud Tasks on this machine", runEmulator},
	{"splits", "prints where a kind can be cut into parts", runSplits},
	{"verify", "checks the records of a job", runVerify},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scattermap:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-help" || args[0] == "--help" || args[0] == "-h" {
		usage(stdout)
		if len(args) == 0 {
			return errors.New("no command")
		}
		return flag.ErrHelp
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	usage(stdout)
	return fmt.Errorf("there is no command %q", args[0])
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: scattermap COMMAND [flags]; scattermap COMMAND -help lists the flags")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.does)
	}
}
