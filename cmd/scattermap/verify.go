package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// errUnproven says that a job's records do not prove that the job processed all entities of its
// query.
var errUnproven = errors.New("the records do not prove that the job covers its query")

// newVerify returns the command that checks the records of a job.
func newVerify() *cobra.Command {
	var s service
	var entities bool
	var when time.Time
	c := &cobra.Command{
		Use: "verify JOB", Short: "Check that a job's records cover its query", Args: oneJob,
		Long: "Reads all records of a job, and checks that they cover its query without a gap or an overlap. " +
			"With --project or --database, or if no service is set, the command reads the database itself.",
	}
	flags := c.Flags()
	s.define(flags)
	flags.BoolVar(&entities, "entities", false, "also compare the ranges with the keys of the entities that exist now")
	flags.Var((*moment)(&when), "at",
		"like --entities, but with the entities of this `time`, such as 2006-01-02T15:04:05Z, which the database "+
			"must still keep")
	format := outputFlag(flags)
	c.RunE = func(c *cobra.Command, args []string) error {
		proof, err := s.verify(c.Context(), args[0], &mapper.VerifyOptions{
			Entities: entities || !when.IsZero(), ReadTime: when})
		if err != nil {
			return err
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

// verifyPath is the end of the path of verifications in the jobs API.
const verifyPath = "/verify"

// verify checks the records of a job. If the flags name a database and no queue, or if no service is
// set, it reads the records from the database.
func (s *service) verify(ctx context.Context, id string, o *mapper.VerifyOptions) (*mapper.Proof, error) {
	db := &s.straight.db
	direct := db.project != "" || db.id != ""
	if s.address == "" && !direct {
		all, err := readLogins()
		if err != nil {
			return nil, err
		}
		direct = all.Current == ""
	}
	if s.straight.queue != "" || !direct {
		parameters := url.Values{}
		if o.Entities {
			parameters.Set("entities", "true")
		}
		if !o.ReadTime.IsZero() {
			parameters.Set("read_time", o.ReadTime.Format(time.RFC3339Nano))
		}
		proof := new(mapper.Proof)
		return proof, s.call(ctx, http.MethodPost, id+verifyPath, parameters, nil, proof)
	}
	client, err := db.open(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	proof, err := mapper.VerifyJob(ctx, client, id, o)
	return proof, db.explain(err)
}

func printProof(w io.Writer, p *mapper.Proof) {
	fmt.Fprintf(w, "%s, %d of them pending; %s; %s\n",
		operator.Counted(int64(p.Ranges), "range", "ranges"), p.Pending,
		operator.Counted(int64(p.SingleEntities), "single entity", "single entities"),
		operator.Counted(int64(p.Failures), "failure", "failures"))
	for _, problem := range p.Problems {
		fmt.Fprintln(w, "problem:", problem)
	}
	for _, difference := range p.Differences {
		fmt.Fprintln(w, "different:", difference)
	}
	if p.Compared > 0 {
		fmt.Fprintf(w, "%s compared with their entities: %d have the same, and %d others\n",
			operator.Counted(int64(p.Compared), "range", "ranges"),
			p.Compared-p.Different, p.Different)
	}
	if p.Different > 0 {
		fmt.Fprintln(w, "A range also differs if entities were put or deleted since, or no longer match the query.")
	}
	if len(p.Problems) == 0 {
		fmt.Fprintln(w, "proven: the ranges cover all of the query, without a gap and without an overlap")
	}
}
