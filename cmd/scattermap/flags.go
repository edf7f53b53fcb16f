package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"cloud.google.com/go/datastore"
)

// A database is what flags say of where the entities are.
type database struct{ project, id string }

func (db *database) define(flags *flag.FlagSet) {
	flags.StringVar(&db.project, "project", "", "the `project` of the database; $DATASTORE_PROJECT_ID if empty")
	flags.StringVar(&db.id, "database", "", "the `ID` of the database; the default database if empty")
}

func (db *database) open(ctx context.Context) (*datastore.Client, error) {
	project := db.project
	if project == "" {
		project = datastore.DetectProjectID
	}
	client, err := datastore.NewClientWithDatabase(ctx, project, db.id)
	if err != nil {
		return nil, fmt.Errorf("datastore: %w", err)
	}
	return client, nil
}

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
