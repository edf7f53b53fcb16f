package main

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

func newFailures() *cobra.Command {
	var s service
	var some lengthFlags
	var byCause bool
	c := &cobra.Command{Use: "failures JOB", Short: "List the entities that a job could not process", Args: oneJob,
		Long: "Lists the entities that a job could not process."}
	s.define(c.Flags())
	some.define(c.Flags())
	c.Flags().BoolVar(&byCause, "by-cause", false, "group failures by cause, with a count and an example")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if byCause && (some.all || c.Flags().Changed("limit")) {
			return usageError(errors.New("--by-cause lists all causes: leave out --all and --limit"))
		}
		if byCause {
			return causes(c, &s, args[0], format)
		}
		failures, more, err := first[mapper.Failure](c.Context(), &s, args[0]+"/failures", "failures", some)
		if err != nil {
			return err
		}
		if *format != table {
			return hint(c, more, format.write(c.OutOrStdout(), failures))
		}
		if len(failures) == 0 {
			return noFailures(c, &s, args[0])
		}
		lines := [][]string{{"KEY", "ATTEMPTS", "LAST", "ERROR"}}
		for _, f := range failures {
			lines = append(lines, []string{operator.Line(names.Key(f.Key), 80), strconv.Itoa(f.Attempts),
				operator.Ago(f.Time, time.Now()), operator.Line(f.Error, 100)})
		}
		return hint(c, more, rows(c.OutOrStdout(), lines...))
	}
	return c
}

// hint says on the error output if a list has more items than the command has shown. The argument
// err is the error of showing them.
func hint(c *cobra.Command, more bool, err error) error {
	if err == nil && more {
		_, err = fmt.Fprintln(c.ErrOrStderr(), "There are more: --all lists them.")
	}
	return err
}

// noFailures prints why no failures of a job are listed.
func noFailures(c *cobra.Command, s *service, id string) error {
	var status struct {
		Failures  int64
		CleanedUp bool `json:"cleaned_up"`
	}
	if err := s.call(c.Context(), http.MethodGet, id, nil, nil, &status); err != nil {
		return err
	}
	says := "There are no failures."
	if status.CleanedUp && status.Failures > 0 {
		says = fmt.Sprintf("A clean-up has deleted the list of failures. Their number was %s.",
			operator.Grouped(status.Failures))
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), says)
	return err
}

// causes prints the failures of a job in groups with the same cause.
func causes(c *cobra.Command, s *service, id string, format *output) error {
	var answer struct{ Causes []mapper.FailureCause }
	if err := s.call(c.Context(), http.MethodGet, id+"/causes", nil, nil, &answer); err != nil {
		return err
	}
	if *format != table {
		return format.write(c.OutOrStdout(), append([]mapper.FailureCause{}, answer.Causes...))
	}
	if len(answer.Causes) == 0 {
		return noFailures(c, s, id)
	}
	lines := [][]string{{"FAILURES", "CAUSE ID", "CAUSE", "FOR INSTANCE"}}
	for _, cause := range answer.Causes {
		about := map[bool]string{true: "about "}[cause.Estimated]
		lines = append(lines, []string{about + operator.Grouped(cause.Count), operator.Line(cause.Digest, 10),
			operator.Line(cause.Text, 80),
			operator.Line(names.Key(cause.Example.Key), 60)})
	}
	return rows(c.OutOrStdout(), lines...)
}
