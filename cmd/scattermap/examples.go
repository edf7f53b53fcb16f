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

func newExamples() *cobra.Command {
	var s service
	c := &cobra.Command{
		Use: "examples JOB", Short: "Show what a rehearsal would change, before and after", Args: oneJob,
		Long: "Shows up to 40 entities that a rehearsal (start --dry-run) would change, with their values before " +
			"and after: two from each of up to 20 pages.",
	}
	s.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		var answer struct{ Examples []mapper.Example }
		if err := s.call(c.Context(), http.MethodGet, args[0]+"/examples", nil, nil, &answer); err != nil {
			return err
		}
		if *format != table {
			return format.write(c.OutOrStdout(), append([]mapper.Example{}, answer.Examples...))
		}
		if len(answer.Examples) == 0 {
			_, err := fmt.Fprintln(c.OutOrStdout(), "No examples: the job is not a rehearsal, or would write nothing.")
			return err
		}
		lines := [][]string{{"KEY", "WHAT", "PROPERTY", "BEFORE", "AFTER"}}
		for _, x := range answer.Examples {
			row := []string{operator.Line(names.Key(x.Key), 60), x.What}
			if len(x.Properties) == 0 {
				lines = append(lines, append(row, "", "", ""))
			}
			for _, p := range x.Properties {
				lines = append(lines, append(row, operator.Line(p.Name, 40), operator.Line(cmp.Or(p.Before, "-"), 60),
					operator.Line(cmp.Or(p.After, "-"), 60)))
				row = []string{"", ""}
			}
		}
		return rows(c.OutOrStdout(), lines...)
	}
	return c
}
