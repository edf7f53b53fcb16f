package main

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// completeTime is how long a shell waits for suggestions from a service or a database.
const completeTime = 3 * time.Second

// A suggestion is a word that a shell offers, with a description that may be empty.
type suggestion struct{ word, about string }

// offer returns a completion function. It offers the words that find returns, if they start with
// what the user has typed. If find fails, or takes longer than completeTime, it offers nothing.
func offer(find func(ctx context.Context, c *cobra.Command) ([]suggestion, error)) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completeTime)
		defer cancel()
		all, err := find(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var fit []cobra.Completion
		for _, s := range all {
			// a name with control characters could not be passed on
			if strings.HasPrefix(s.word, typed) && operator.Line(s.word, 1000) == s.word {
				fit = append(fit, cobra.CompletionWithDesc(s.word, operator.Line(s.about, 100)))
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// onlyFirst returns a completion function for commands with one argument that can be completed.
func onlyFirst(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(c, args, typed)
	}
}

// last returns a completion function for names with commas between them. It completes the last one.
// It leaves out names that such a list must quote, such as "a,b".
func last(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		at := strings.LastIndex(typed, ",") + 1
		found, directive := complete(c, args, typed[at:])
		var all []cobra.Completion
		for _, one := range found {
			if name, _, _ := strings.Cut(one, "\t"); operator.NameText(name) == name {
				all = append(all, typed[:at]+one)
			}
		}
		return all, directive | cobra.ShellCompDirectiveNoSpace
	}
}

// Completions of arguments.
var (
	completeJob    = onlyFirst(offer(jobsOf))
	completeMapper = onlyFirst(offer(mappersOf))
)

// completeFlags has the completions of flags, by the flags' names.
var completeFlags = map[string]cobra.CompletionFunc{
	"kind": offer(kindsOf), "kinds": last(offer(kindsOf)), "mapper": offer(mappersOf),
	"queue": offer(queuesOf), "output": fixed(string(table), string(asJSON), string(asYAML)),
	"state": fixed(string(mapper.StateRunning), string(mapper.StatePaused), string(mapper.StateSucceeded),
		string(mapper.StateSucceededWithFailures), string(mapper.StateFailed), string(mapper.StateAborted)),
}

// fixed returns a completion function that offers always the same words.
func fixed(words ...string) cobra.CompletionFunc {
	return offer(func(context.Context, *cobra.Command) (all []suggestion, err error) {
		for _, word := range words {
			all = append(all, suggestion{word: word})
		}
		return all, nil
	})
}

// completeFlagsOf sets the completions of a command's flags.
func completeFlagsOf(c *cobra.Command) {
	for name, complete := range completeFlags {
		if c.Flags().Lookup(name) != nil {
			_ = c.RegisterFlagCompletionFunc(name, complete) // an error would say that there is no such flag
		}
	}
}

// jobsOf returns the IDs of the newest 50 jobs.
func jobsOf(ctx context.Context, c *cobra.Command) (all []suggestion, err error) {
	var page struct{ Jobs []mapper.JobInfo }
	err = serviceOf(c).call(ctx, http.MethodGet, "", nil, nil, &page)
	for _, j := range page.Jobs {
		all = append(all, suggestion{j.ID, fmt.Sprintf("%s, %s", j.State, j.Mapper)})
	}
	return all, err
}

// mappersOf returns the names of the service's mappers.
func mappersOf(ctx context.Context, c *cobra.Command) (all []suggestion, err error) {
	list, err := serviceOf(c).mappers(ctx, false)
	for _, m := range list.Mappers {
		all = append(all, suggestion{m.Name, m.Description})
	}
	return all, err
}

// kindsOf returns the kinds of the service's database. For a command without a service, it returns
// the kinds of the database that the command's flags name.
func kindsOf(ctx context.Context, c *cobra.Command) (all []suggestion, err error) {
	var kinds []string
	if c.Flags().Lookup("service") != nil {
		var list *operator.MapperList
		list, err = serviceOf(c).mappers(ctx, true)
		kinds = list.Kinds
	} else {
		var db database
		set(c, db.define)
		client, failed := db.open(ctx)
		if failed != nil {
			return nil, failed
		}
		defer client.Close()
		kinds, err = operator.Suggestions(ctx, client, "__kind__")
	}
	for _, kind := range kinds {
		all = append(all, suggestion{word: kind})
	}
	return all, err
}

// queuesOf returns the names of the service's queues.
func queuesOf(ctx context.Context, c *cobra.Command) (all []suggestion, err error) {
	list, err := serviceOf(c).mappers(ctx, false)
	for _, name := range list.Queues {
		all = append(all, suggestion{path.Base(name), name})
	}
	return all, err
}

// serviceOf returns the service that a command's flags name.
func serviceOf(c *cobra.Command) *service {
	s := new(service)
	set(c, s.define)
	return s
}

// set calls define with a new set of flags, and gives these flags the values that the flags of a
// command have.
func set(c *cobra.Command, define func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	define(flags)
	c.Flags().Visit(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil {
			_ = flags.Set(f.Name, f.Value.String()) // the error is ignored: the command has accepted the value
		}
	})
}
