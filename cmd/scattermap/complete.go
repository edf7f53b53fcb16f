package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// completeTime is how long a shell waits for the IDs of jobs.
const completeTime = 3 * time.Second

// completeJob returns suggestions for the ID of a job that a user types in a shell. It offers the
// newest 50 jobs, each with its state and mapper. If the service does not answer, it offers
// nothing.
func completeJob(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	var page struct{ Jobs []mapper.JobInfo }
	if err := serviceOf(c).call(ctx, http.MethodGet, "", nil, nil, &page); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []cobra.Completion
	for _, j := range page.Jobs {
		if strings.HasPrefix(j.ID, typed) {
			all = append(all, cobra.CompletionWithDesc(operator.Line(j.ID, 100),
				operator.Line(fmt.Sprintf("%s, %s", j.State, j.Mapper), 100)))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// serviceOf returns the service that a command's flags name.
func serviceOf(c *cobra.Command) *service {
	s, flags := new(service), pflag.NewFlagSet("", pflag.ContinueOnError)
	s.define(flags)
	c.Flags().Visit(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil {
			_ = flags.Set(f.Name, f.Value.String()) // the error is ignored: the command has accepted the value
		}
	})
	return s
}
