package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/scattermap/scattermap/mapper"
)

// errUnproven says that a job's records do not prove what they should.
var errUnproven = errors.New("the records do not prove that the job covers its query")

// runVerify checks the records of a job.
func runVerify(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var db database
	var asJSON bool
	flags := flag.NewFlagSet("verify", flag.ContinueOnError)
	db.define(flags)
	flags.BoolVar(&asJSON, "json", false, "print the proof as one JSON object")
	if err := parse(flags, args, "JOB", stdout, "Reads all records of a job, and checks that they cover its query without a gap and without an overlap."); err != nil {
		return err
	}
	client, err := db.open(ctx)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
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
