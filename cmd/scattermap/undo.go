package main

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

func newUndo() *cobra.Command {
	var s service
	var o mapper.UndoOptions
	var watch, yes bool
	c := &cobra.Command{
		Use: "undo JOB", Short: "Restore what a job has changed", Args: oneJob,
		Long: `Starts a job, the undo, that restores the entities which an ended job changed or deleted, and deletes
the entities that it created. If somebody has changed an entity since, the undo leaves it alone, and
"scattermap left" lists it.

You can undo a job within an hour of its start. If the database has point-in-time recovery, you can
undo it within seven days. But after the first hour, the undo leaves alone entities that somebody
changed in the two minutes before the job wrote them.`,
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().StringVar(&o.ID, "id", "", "the `ID` of the undo; by default \"undo-\" and the job's ID")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "write nothing, and count what the undo would do")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "follow the undo to its end, like the command watch")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		job := new(mapper.Status)
		if err := s.call(c.Context(), http.MethodGet, args[0], nil, nil, job); err != nil {
			return err
		}
		if !yes && !o.DryRun {
			if job.UndoneBy != "" {
				fmt.Fprintf(c.ErrOrStderr(), "Job %s undoes it already.\n", operator.Line(job.UndoneBy, 100))
			}
			what := fmt.Sprintf("Undo job %s of %s? Its state is %q, and it has written %s.", job.ID,
				operator.Line(job.Mapper, 100), job.State,
				operator.Counted(job.Written, "entity", "entities"))
			if operator.Undoes(job) {
				what = fmt.Sprintf("Undo the undo %s? Its state is %q: %s.", job.ID, job.State, operator.Undone(job))
			}
			if err := confirm(c, what); err != nil {
				return err
			}
		}
		if o.DryRun && o.ID == "" {
			o.ID = operator.NewID("undo-"+args[0], true)
		}
		return beginJob(c, &s, args[0]+"/undo", "", o, watch, format)
	}
	return c
}

func newLeft() *cobra.Command {
	var s service
	var some lengthFlags
	c := &cobra.Command{
		Use: "left JOB", Short: "List the entities that an undo did not restore, and why", Args: oneJob,
		Long: "Lists the entities that JOB, an undo, did not restore, for example because somebody has changed them.",
	}
	s.define(c.Flags())
	some.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		left, more, err := first[mapper.NotUndone](c.Context(), &s, args[0]+"/left", "left", some)
		if err != nil {
			return err
		}
		if *format != table {
			return hint(c, more, format.write(c.OutOrStdout(), left))
		}
		if len(left) == 0 {
			_, err := fmt.Fprintln(c.OutOrStdout(), "The undo left no entity unchanged.")
			return err
		}
		lines := [][]string{{"KEY", "WHY"}}
		for _, l := range left {
			key := ""
			if l.Key != nil {
				key = operator.Line(names.Key(l.Key), 80)
			}
			lines = append(lines, []string{cmp.Or(key, "…"), operator.Line(l.Reason, 100)})
		}
		return hint(c, more, rows(c.OutOrStdout(), lines...))
	}
	return c
}
