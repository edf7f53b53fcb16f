package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// jobCommands returns the commands that list, show and control the jobs of a service.
func jobCommands() []*cobra.Command {
	all := []*cobra.Command{newJobs(), newMappers(), newDescribe(), newPlan(), newStart(), newClone(), newWatch(),
		newRate(), newBudget(), newFailures(), newHistory(), newUndo(), newLeft(), newExamples(), newTop(),
		newVerify(), newCleanUp(), newStopAll(), newLogin(), newLogout()}
	for _, verb := range []struct{ name, short, long string }{
		{"pause", "Start no more pages of a job",
			"Starts no more pages of a job. Running pages finish. A job can stay paused for any time."},
		{"resume", "Continue a paused or failed job",
			"Continues a paused or failed job where it stopped. The command creates the job's tasks again, so " +
				"it also revives a job whose queue was purged."},
		{"abort", "End a job permanently",
			"Ends a job permanently. Running pages finish, and the remaining entities stay unchanged."},
		{"retry", "Process a job's failures again",
			"Processes only a job's failures again. Each gets as many attempts as at first."},
		{"move", "Move a job to this service's queue",
			"Moves a job to the service that answers this command, for example after the job's queue or service was " +
				"deleted or renamed. The service must have the job's mapper."},
	} {
		all = append(all, newVerb(verb.name, verb.short, verb.long))
	}
	for _, c := range all {
		c.GroupID, c.SuggestFor = jobsGroup, alsoCalled[c.Name()]
		switch _, argument, _ := strings.Cut(c.Use, " "); {
		case strings.HasPrefix(argument, "JOB"):
			c.ValidArgsFunction = completeJob
		case strings.HasPrefix(strings.Trim(argument, "["), "MAPPER"):
			c.ValidArgsFunction = completeMapper
		}
		completeFlagsOf(c)
	}
	return all
}

// alsoCalled has names that users of other tools may type for a command.
var alsoCalled = map[string][]string{
	"abort": {"cancel", "kill", "stop"}, "clean-up": {"delete", "remove", "rm"}, "describe": {"get", "show", "status"},
	"failures": {"errors"}, "history": {"log", "logs"}, "jobs": {"list", "ls", "ps"}, "resume": {"continue"},
	"start": {"run"}, "watch": {"follow", "wait"},
}

// newVerb returns a command that posts the action name to a job, such as pause, and then prints the
// job's status.
func newVerb(name, short, long string) *cobra.Command {
	var s service
	var yes, watch bool
	var cause string
	c := &cobra.Command{Use: name + " JOB", Short: short, Long: long, Args: oneJob}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	format := outputFlag(c.Flags())
	if name == "abort" {
		c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	}
	if name == "resume" || name == "retry" {
		c.Flags().BoolVarP(&watch, "watch", "w", false, "follow the job to its end, like the command watch")
	}
	if name == "retry" {
		c.Flags().StringVar(&cause, "cause", "",
			"retry only failures of this `cause`, as \"failures --by-cause\" lists it")
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if name == "abort" && !yes {
			if err := ask(c, &s, args[0], "Abort the job %s (%s)? An aborted job can't be resumed."); err != nil {
				return err
			}
		}
		job, parameters := new(mapper.Status), make(url.Values)
		if cause != "" {
			parameters.Set("cause", cause)
		}
		if err := s.call(c.Context(), http.MethodPost, args[0]+"/"+name, parameters, nil, job); err != nil {
			return err
		}
		if watch {
			return follow(c, &s, args[0], format)
		}
		return show(c, format, job)
	}
	return c
}

// confirm asks the user a question. It returns an error if the answer is not yes.
func confirm(c *cobra.Command, question string) error {
	fmt.Fprintf(c.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return nil
	}
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(c.ErrOrStderr())
	}
	return errors.New("nothing was done: --yes does it without asking")
}

// ask asks the user whether to change a job. It returns an error if the answer is not yes. The
// question is a format string for fmt.Sprintf: its arguments are the job's ID and state.
func ask(c *cobra.Command, s *service, id, question string) error {
	job := new(mapper.Status)
	if err := s.call(c.Context(), http.MethodGet, id, nil, nil, job); err != nil {
		return err
	}
	return confirm(c, fmt.Sprintf(question, job.ID, operator.Standing(job.State, job.Phase)))
}

// show prints the status of a job, in the chosen format.
func show(c *cobra.Command, format *output, job *mapper.Status) error {
	if *format != table {
		return format.write(c.OutOrStdout(), job)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), summary(job))
	return err
}

// summary returns one line with a job's state and numbers.
func summary(job *mapper.Status) string {
	about := ""
	if job.Estimated {
		about = "about "
	}
	done := operator.Counted(job.Processed, "entity", "entities") + " processed"
	if operator.Undoes(job) { // an undo processes pages of the job that it undoes, not entities
		done = operator.Counted(job.Processed, "page", "pages") + " looked at"
	}
	text := fmt.Sprintf("%s: %s, %s%s", job.ID, operator.Standing(job.State, job.Phase), about, done)
	if left := job.Remaining; left > 0 && !job.State.Ended() {
		text += fmt.Sprintf(" and about %s left", operator.Grouped(left))
		if p := job.Progress; p.TimeLeft > 0 {
			text += fmt.Sprintf(" (%s, %s)", operator.Percent(p), operator.Takes(p, job.Phase))
		}
	}
	if operator.Undoes(job) {
		text += ": " + operator.Undone(job)
	}
	text += ", " + operator.Counted(job.Failures, "failure", "failures")
	if why := job.Bottleneck; why != "" {
		text += "; " + operator.Line(why, 300)
	} else if job.Error != "" {
		text += "; " + operator.Line(job.Error, 300)
	}
	return text
}

// list reads a list of the jobs API, page by page, and passes the items of each page to add. It
// stops when add returns false. The field called name in an answer has the items.
func list[T any](ctx context.Context, s *service, path, name string, parameters url.Values, add func([]T) bool) error {
	if parameters == nil {
		parameters = make(url.Values)
	}
	for {
		var page map[string]json.RawMessage
		if err := s.call(ctx, http.MethodGet, path, parameters, nil, &page); err != nil {
			return err
		}
		var some []T
		var next string
		if err := json.Unmarshal(page[name], &some); err != nil {
			return fmt.Errorf("the answer has no list of %s: %w", name, err)
		}
		if raw := page["next"]; raw != nil {
			if err := json.Unmarshal(raw, &next); err != nil {
				return err
			}
		}
		if !add(some) || next == "" {
			return nil
		}
		parameters.Set("cursor", next)
	}
}

// lengthFlags are the flags that say how many entities a command lists.
type lengthFlags struct {
	all   bool
	limit int
	flags *pflag.FlagSet
}

func (l *lengthFlags) define(flags *pflag.FlagSet) {
	l.flags = flags
	flags.BoolVar(&l.all, "all", false, "list all entities")
	flags.IntVar(&l.limit, "limit", 100, "list up to this `number`")
}

// first reads the start of a list of the jobs API, as list does. It also reports whether the whole
// list has more items.
func first[T any](ctx context.Context, s *service, path, name string, l lengthFlags) (items []T, more bool, err error) {
	switch {
	case l.limit < 1:
		return nil, false, usageError(fmt.Errorf("--limit is %d, it has to be at least 1", l.limit))
	case l.all && l.flags.Changed("limit"):
		return nil, false, usageError(errors.New("set only one of --all and --limit"))
	}
	items = []T{} // an empty list is no null
	err = list(ctx, s, path, name, nil, func(some []T) bool {
		items = append(items, some...)
		return l.all || len(items) <= l.limit
	})
	if more = err == nil && !l.all && len(items) > l.limit; more {
		items = items[:l.limit]
	}
	return items, more, err
}

func newJobs() *cobra.Command {
	var s service
	var state, name string
	var all, allQueues bool
	c := &cobra.Command{
		Use: "jobs", Short: "List jobs, the newest first", Args: nothing,
		Long: `Lists the newest 50 jobs. States are running, paused, succeeded, "succeeded with failures", failed
and aborted. In the first 20 unfinished jobs, a phase follows the state, as in "running,
slowed", or replaces it: "queued".`,
	}
	s.define(c.Flags())
	c.Flags().StringVar(&state, "state", "", "only jobs in this `state`")
	c.Flags().StringVar(&name, "mapper", "", "only jobs of this `mapper`")
	c.Flags().BoolVar(&all, "all", false, "list all jobs")
	c.Flags().BoolVar(&allQueues, "all-queues", false,
		"also list jobs of other services on the same database")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		parameters := make(url.Values)
		for key, value := range map[string]string{"state": state, "mapper": name,
			"all": map[bool]string{true: "true"}[allQueues]} {
			if value != "" {
				parameters.Set(key, value)
			}
		}
		jobs, more := []mapper.JobInfo{}, false
		err := list(c.Context(), &s, "", "jobs", parameters, func(some []mapper.JobInfo) bool {
			jobs = append(jobs, some...)
			more = !all && len(some) > 0
			return all
		})
		if err != nil {
			return err
		}
		if *format != table {
			return format.write(c.OutOrStdout(), jobs)
		}
		lines := [][]string{{"JOB", "MAPPER", "STATE", "STARTED", "PROCESSED", "FAILURES", "ERROR"}}
		for _, j := range standings(c.Context(), &s, jobs) {
			processed, failures := "–", "–"
			switch {
			case j.status != nil:
				processed, failures = operator.Grouped(j.status.Processed), operator.Grouped(j.status.Failures)
				if p := j.status.Progress; p.Fraction > 0 && !j.State.Ended() {
					processed += fmt.Sprintf(" (%.0f%%)", 100*p.Fraction)
				}
			case j.Counted:
				processed, failures = operator.Grouped(j.Processed), operator.Grouped(j.Failures)
			}
			lines = append(lines, []string{operator.Line(j.ID, 100), operator.Line(j.Mapper, 120), j.standing(),
				operator.Ago(j.Created, time.Now()), processed, failures, operator.Line(j.Error, 60)})
		}
		if len(jobs) == 0 {
			none := "No jobs yet."
			if state != "" || name != "" {
				none = "No job matches."
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), none)
			return err
		}
		if err := rows(c.OutOrStdout(), lines...); err != nil {
			return err
		}
		if more && len(jobs) >= 50 {
			_, err = fmt.Fprintln(c.ErrOrStderr(), "These are the newest 50; --all lists all.")
		}
		return err
	}
	return c
}

func newDescribe() *cobra.Command {
	var s service
	c := &cobra.Command{Use: "describe JOB", Short: "Show everything about a job", Args: oneJob,
		Long: "Shows everything about a job."}
	s.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		job := new(mapper.Status)
		if err := s.call(c.Context(), http.MethodGet, args[0], nil, nil, job); err != nil {
			return err
		}
		if *format != table {
			return format.write(c.OutOrStdout(), job)
		}
		return describe(c.OutOrStdout(), job, time.Now())
	}
	return c
}

// describe prints a job's status for people, with one fact on each line.
func describe(w io.Writer, job *mapper.Status, now time.Time) error {
	about := map[bool]string{true: "about "}[job.Estimated]
	lines := [][]string{{"Job:", operator.Line(job.ID, 100)}, {"Mapper:", operator.Line(job.Mapper, 120)}}
	// the query and the parameters of an undo only name records of the job that it undoes
	if id := operator.UndoneJob(job); id != "" {
		lines = append(lines, []string{"Query:", "the pages of job " + operator.Line(id, 100)})
	} else {
		query, err := json.Marshal(job.Query)
		if err != nil {
			return err
		}
		lines = append(lines, []string{"Query:", operator.Line(string(query), 500)},
			[]string{"Parameters:", operator.Line(string(job.Params), 500)})
	}
	lines = append(lines, []string{"State:", operator.Standing(job.State, job.Phase)})
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, []string{name, operator.Line(value, 1000)})
		}
	}
	add("Why:", job.Bottleneck)
	if job.Bottleneck == "" {
		add("Error:", job.Error)
	}
	add("Started:", job.Created.Local().Format(time.DateTime)+", "+operator.Ago(job.Created, now))
	switch {
	case !job.RetiredAt.IsZero():
		add("Records:", "cleaned up on "+job.RetiredAt.Local().Format(time.DateTime)+", as its retention says")
	case !job.CleanUpAt.IsZero():
		add("Records:", "kept until "+job.CleanUpAt.Local().Format(time.DateTime))
	}
	if !job.Ended.IsZero() {
		add("Ended:", fmt.Sprintf("%s, after %s", job.Ended.Local().Format(time.DateTime),
			job.Ended.Sub(job.Created).Round(time.Millisecond)))
	}
	written := "%s%s, %s of them written"
	if strings.HasPrefix(job.Mapper, "rehearsal:") {
		written = "%s%s, %s of them would be written"
	}
	// an undo processes pages of the job that it undoes, and the cost depends on their entities
	if operator.Undoes(job) {
		add("Processed:", fmt.Sprintf("%s%s: %s", about, operator.Counted(job.Processed, "page", "pages"),
			operator.Undone(job)))
	} else {
		add("Processed:", fmt.Sprintf(written, about, operator.Counted(job.Processed, "entity", "entities"),
			operator.Grouped(job.Written)))
	}
	if job.Calls > 0 {
		add("Calls:", about+operator.Grouped(job.Calls)+" announced by the function")
	}
	if job.Conflicts > 0 {
		add("Conflicts:", about+operator.Counted(job.Conflicts, "run", "runs")+
			" repeated, on entities that others had changed")
	}
	add("Undone by:", job.UndoneBy)
	if !job.State.Ended() {
		add("Remaining:", operator.Within(job.Remaining, job.Bounds.Remaining))
		add("Total:", operator.Within(job.Total, job.Bounds.Total))
		add("Progress:", operator.Percent(job.Progress))
		add("Time left:", operator.Takes(job.Progress, job.Phase))
		what := map[bool]string{false: "entities", true: "pages"}[operator.Undoes(job)]
		add("Rate:", fmt.Sprintf("%s %s a second at present, %s over all",
			operator.Grouped(int64(job.Progress.EntitiesPerSecond)), what,
			operator.Grouped(int64(job.Progress.EntitiesPerSecondOverall))))
	}
	if !operator.Undoes(job) {
		add("Cost:", operator.Costs(job))
	}
	if budget := operator.BudgetOf(job.Settings.Budget); job.Phase == mapper.PhaseOverBudget {
		add("Budget:", fmt.Sprintf("%s; %s. Resuming the job allows the same amount again, and \"scattermap budget %s "+
			"DOLLARS\" sets another", budget, operator.Needs(job), job.ID))
	} else {
		add("Budget:", budget)
	}
	add("Failures:", operator.Grouped(job.Failures))
	add("Pages:", fmt.Sprintf("%s%s, %s of them full, by %s", about, operator.Grouped(job.Pages),
		operator.Grouped(job.FullPages), operator.Counted(job.Tasks, "task", "tasks")))
	add("Open ranges:", operator.Grouped(job.OpenRanges))
	add("Queue:", job.Queue)
	for name, n := range sorted(job.Counters) {
		add("Counter:", fmt.Sprintf("%s = %s", name, operator.Grouped(n)))
	}
	return facts(w, lines...)
}

func newRate() *cobra.Command {
	var s service
	var rate struct {
		mapper.Rate
		For time.Duration `json:"for_ns,omitempty"`
	}
	c := &cobra.Command{
		Use:   "rate JOB ENTITIES",
		Short: "Set a job's rate limit, in entities a second; 0 is no limit",
		Long: `Sets a job's rate limit, in entities a second; 0 is no limit. It replaces all limits, so repeat the
flags that you want to keep.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError(errors.New("rate: name a job and a number of entities a second"))
			}
			n, err := strconv.ParseFloat(args[1], 64)
			if err != nil || !(n >= 0) || math.IsInf(n, 1) {
				return usageError(fmt.Errorf("rate: %q is not a number of entities a second", args[1]))
			}
			rate.EntitiesPerSecond = n
			return nil
		},
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().Float64Var(&rate.WritesPerSecond, "writes", 0, "also limit the `writes` a second")
	c.Flags().Float64Var(&rate.CallsPerSecond, "calls", 0, callsHelp)
	c.Flags().Var((*period)(&rate.For), "for",
		"the `duration` for which the limit holds, such as 2h; by default permanently")
	c.Flags().BoolVar(&rate.Ramp, "ramp", false,
		"start with 500 entities a second, and allow 50% more every five minutes")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if rate.Rate == (mapper.Rate{}) {
			rate.EntitiesPerSecond = mapper.Unlimited
		}
		job := new(mapper.Status)
		if err := s.call(c.Context(), http.MethodPost, args[0]+"/rate", nil, rate, job); err != nil {
			return err
		}
		return show(c, format, job)
	}
	return c
}

func newBudget() *cobra.Command {
	var s service
	var budget mapper.Budget
	c := &cobra.Command{
		Use: "budget JOB DOLLARS", Short: "Set what a job may cost from now on, in dollars; 0 is no limit",
		Long: `Sets what a job may cost from now on, in dollars; 0 is no limit. The job pauses before a page that
might exceed its budget. The command does not resume a paused job.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError(errors.New("budget: name a job and a number of dollars"))
			}
			n, err := strconv.ParseFloat(args[1], 64)
			if err != nil || !(n >= 0) || math.IsInf(n, 1) {
				return usageError(fmt.Errorf("budget: %q is not a number of dollars", args[1]))
			}
			budget.Dollars = n
			return nil
		},
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().Int64Var(&budget.Operations, "operations", 0, "also limit the number of reads, writes and other "+
		"`operations`")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if budget.Operations < 0 {
			return usageError(errors.New("--operations has to be at least 0; 0 is no limit"))
		}
		if budget == (mapper.Budget{}) {
			budget.Dollars = mapper.Unlimited
		}
		job := new(mapper.Status)
		if err := s.call(c.Context(), http.MethodPost, args[0]+"/budget", nil, budget, job); err != nil {
			return err
		}
		return show(c, format, job)
	}
	return c
}

func newHistory() *cobra.Command {
	var s service
	c := &cobra.Command{Use: "history JOB", Short: "List who did what to a job, and why", Args: oneJob,
		Long: "Lists who did what to a job, and why."}
	s.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		var answer struct{ History []mapper.HistoryEntry }
		if err := s.call(c.Context(), http.MethodGet, args[0]+"/history", nil, nil, &answer); err != nil {
			return err
		}
		if *format != table {
			return format.write(c.OutOrStdout(), append([]mapper.HistoryEntry{}, answer.History...))
		}
		lines := [][]string{{"TIME", "WHAT", "BY", "WHY"}}
		for _, a := range answer.History {
			lines = append(lines, []string{a.Time.Local().Format(time.DateTime), operator.Line(a.Action, 60),
				operator.Line(a.By, 60), operator.Line(a.Reason, 100)})
		}
		return rows(c.OutOrStdout(), lines...)
	}
	return c
}

func newCleanUp() *cobra.Command {
	var s service
	var o mapper.CleanUpOptions
	var yes bool
	c := &cobra.Command{
		Use: "clean-up JOB", Short: "Delete the records of a job that has ended", Args: oneJob,
		Long: `Deletes the records of a job that has ended, except the job's own record and its failures. The
job can no longer be resumed, retried, undone or verified.`,
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().BoolVar(&o.IncludeFailures, "failures", false,
		"also delete the failures")
	c.Flags().BoolVar(&o.IncludeJob, "job", false, "also delete the failures and the job's own record: then "+
		"another job can get this job's ID")
	c.Flags().Var((*period)(&o.ExpireAfter), "expire",
		"do not delete the records, but mark them: your time-to-live policy deletes them after this `duration`, "+
			"such as 30d")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if !yes {
			if err := ask(c, &s, args[0], "Delete the records of the job %s (%s)?"); err != nil {
				return err
			}
		}
		job := new(mapper.Status)
		if err := s.call(c.Context(), http.MethodPost, args[0]+"/clean-up", nil, o, job); err != nil {
			return err
		}
		return show(c, format, job)
	}
	return c
}

func newStopAll() *cobra.Command {
	var s service
	var name string
	var yes bool
	c := &cobra.Command{Use: "stop-all", Short: "Pause all running jobs", Args: nothing,
		Long: "Pauses all running jobs of the service."}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().StringVar(&name, "mapper", "", "only jobs of this `mapper`")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.RunE = func(c *cobra.Command, _ []string) error {
		parameters := url.Values{"state": {string(mapper.StateRunning)}}
		if name != "" {
			parameters.Set("mapper", name)
		}
		var jobs []mapper.JobInfo
		err := list(c.Context(), &s, "", "jobs", parameters, func(some []mapper.JobInfo) bool {
			jobs = append(jobs, some...)
			return true
		})
		if err != nil {
			return err
		}
		if len(jobs) == 0 {
			_, err := fmt.Fprintln(c.OutOrStdout(), "No jobs are running.")
			return err
		}
		if !yes {
			if err := confirm(c, fmt.Sprintf("Pause %d jobs?", len(jobs))); err != nil {
				return err
			}
		}
		var failed []error
		for _, j := range jobs {
			job := new(mapper.Status)
			if err := s.call(c.Context(), http.MethodPost, j.ID+"/pause", nil, nil, job); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", j.ID, err))
				continue
			}
			fmt.Fprintln(c.OutOrStdout(), summary(job))
		}
		return errors.Join(failed...)
	}
	return c
}
