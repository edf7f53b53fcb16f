package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// parse parses a command's flags and its argument, which it has if that has a name, and prints
// help if that is asked for: then it returns flag.ErrHelp.
func parse(flags *flag.FlagSet, args []string, argument string, help io.Writer, does string) error {
	flags.SetOutput(io.Discard) // errors are returned
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(help, strings.TrimSpace("usage: scattermap "+flags.Name()+" [flags] "+argument))
		fmt.Fprintln(help, does)
		flags.SetOutput(help)
		flags.PrintDefaults()
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w (-help lists the flags)", flags.Name(), err)
	}
	switch {
	case argument == "" && flags.NArg() > 0:
		return fmt.Errorf("%s: unexpected argument %q", flags.Name(), flags.Arg(0))
	case argument != "" && flags.NArg() != 1:
		return fmt.Errorf("%s: name one %s", flags.Name(), strings.ToLower(argument))
	}
	return nil
}
