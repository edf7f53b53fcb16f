package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// errUnproven says that a job's records do not prove what they should.
var errUnproven = errors.New("the records do not prove that the job covers its key space")

// runVerify checks the records of a job.
func runVerify(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var project, database string
	var asJSON bool
	flags := flag.NewFlagSet("scattermap verify", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned
	flags.StringVar(&project, "project", "", "the `project` of the database; $DATASTORE_PROJECT_ID if empty")
	flags.StringVar(&database, "database", "", "the `ID` of the database; the default database if empty")
	flags.BoolVar(&asJSON, "json", false, "print the proof as one JSON object")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stdout, "usage: scattermap verify [flags] JOB\nReads all records of a job, and checks that they cover its key space without a gap and without an overlap.")
			flags.SetOutput(stdout)
			flags.PrintDefaults()
			return err
		}
		return fmt.Errorf("verify: %w (-help lists the flags)", err)
	}
	if flags.NArg() != 1 {
		return errors.New("verify: name one job")
	}
	if project == "" {
		project = datastore.DetectProjectID
	}
	client, err := datastore.NewClientWithDatabase(ctx, project, database)
	if err != nil {
		return fmt.Errorf("verify: datastore: %w", err)
	}
	defer client.Close()
	proof, err := mapper.Verify(ctx, client, flags.Arg(0))
	if err != nil {
		return err
	}
	if asJSON {
		if err := json.NewEncoder(stdout).Encode(proof); err != nil {
			return err
		}
	} else {
		printProof(stdout, proof)
	}
	if len(proof.Problems) > 0 {
		return errUnproven
	}
	return nil
}

func printProof(w io.Writer, p *mapper.Proof) {
	fmt.Fprintf(w, "%d ranges, %d of them pending; %d single entities; %d failures\n", p.Ranges, p.Pending, p.Alone, p.Failures)
	for _, problem := range p.Problems {
		fmt.Fprintln(w, "problem:", problem)
	}
	if len(p.Problems) == 0 {
		fmt.Fprintln(w, "proven: the ranges cover all of the query, without a gap and without an overlap")
	}
}
