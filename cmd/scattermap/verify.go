package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// errUnproven says that a job's records do not prove what they should.
var errUnproven = errors.New("the records do not prove that the job covers its query")

// runVerify checks the records of a job.
func runVerify(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var db database
	var asJSON, entities bool
	var at time.Time
	flags := flag.NewFlagSet("verify", flag.ContinueOnError)
	db.define(flags)
	flags.BoolVar(&asJSON, "json", false, "print the proof as one JSON object")
	flags.BoolVar(&entities, "entities", false, "compare the ranges with the keys of the entities that are there now")
	flags.Func("at", "compare them with those that were there at a `time` as 2006-01-02T15:04:05Z, which the database still has to keep", func(s string) (err error) {
		entities = true
		at, err = time.Parse(time.RFC3339, s)
		return err
	})
	if err := parse(flags, args, "JOB", stdout, "Reads all records of a job, and checks that they cover its query without a gap and without an overlap."); err != nil {
		return err
	}
	client, err := db.open(ctx)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	defer client.Close()
	var proof *mapper.Proof
	if entities {
		proof, err = mapper.VerifyEntities(ctx, client, flags.Arg(0), at)
	} else {
		proof, err = mapper.Verify(ctx, client, flags.Arg(0))
	}
	if err != nil {
		return db.explain(err)
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
	for _, difference := range p.Differences {
		fmt.Fprintln(w, "different:", difference)
	}
	if p.Compared > 0 {
		fmt.Fprintf(w, "%d ranges compared with their entities: %d have the same, and %d others\n", p.Compared, p.Compared-p.Different, p.Different)
	}
	if len(p.Problems) == 0 {
		fmt.Fprintln(w, "proven: the ranges cover all of the query, without a gap and without an overlap")
	}
}
