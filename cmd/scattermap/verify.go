package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/mapper"
)

// errUnproven says that a job's records do not prove that the job processed all entities of its
// query.
var errUnproven = errors.New("the records do not prove that the job covers its query")

// newVerify returns the command that checks the records of a job.
func newVerify() *cobra.Command {
	var db database
	var entities bool
	var when time.Time
	c := &cobra.Command{
		Use: "verify JOB", Short: "Check that a job's records cover its query", GroupID: databaseGroup, Args: oneJob,
		Long: "Reads all records of a job, and checks that they cover its query without a gap or an overlap.",
	}
	flags := c.Flags()
	db.define(flags)
	flags.BoolVar(&entities, "entities", false, "also compare the ranges with the keys of the entities that exist now")
	flags.Var((*moment)(&when), "at",
		"like --entities, but with the entities that existed at this `time`, such as 2006-01-02T15:04:05Z. The "+
			"database must still have its state of this time")
	format := outputFlag(flags)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := db.open(c.Context())
		if err != nil {
			return err
		}
		defer client.Close()
		proof, err := mapper.VerifyJob(c.Context(), client, args[0],
			&mapper.VerifyOptions{Entities: entities || !when.IsZero(), ReadTime: when})
		if err != nil {
			return db.explain(err)
		}
		if *format != table {
			err = format.write(c.OutOrStdout(), proof)
		} else {
			printProof(c.OutOrStdout(), proof)
		}
		if err == nil && proof.Err() != nil {
			err = errUnproven
		}
		return err
	}
	return c
}

func printProof(w io.Writer, p *mapper.Proof) {
	fmt.Fprintf(w, "%d ranges, %d of them pending; %d single entities; %d failures\n", p.Ranges, p.Pending,
		p.SingleEntities,
		p.Failures)
	for _, problem := range p.Problems {
		fmt.Fprintln(w, "problem:", problem)
	}
	for _, difference := range p.Differences {
		fmt.Fprintln(w, "different:", difference)
	}
	if p.Compared > 0 {
		fmt.Fprintf(w, "%d ranges compared with their entities: %d have the same, and %d others\n", p.Compared,
			p.Compared-p.Different, p.Different)
	}
	if len(p.Problems) == 0 {
		fmt.Fprintln(w, "proven: the ranges cover all of the query, without a gap and without an overlap")
	}
}
