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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// jobFlags are the flags with the query and the settings of a job. Commands that start or plan jobs
// have them.
type jobFlags struct {
	query         mapper.Query
	options       mapper.StartOptions
	filters       []string
	share, except string
}

const callsHelp = "the most `calls` a second; the function announces calls by AwaitCall"

func (f *jobFlags) define(flags *pflag.FlagSet) {
	flags.StringVar(&f.query.Kind, "kind", "", "the `kind` of the entities")
	flags.StringVar(&f.query.Namespace, "namespace", "", "the entities' `namespace`; by default the default namespace")
	flags.Var((*nameList)(&f.query.Kinds), "kinds", "in place of --kind: several `kinds`, such as Account,Invoice")
	flags.Var((*nameList)(&f.query.Namespaces), "namespaces", "several `namespaces`, such as acme,globex; "+
		"an empty name is the default namespace")
	flags.BoolVar(&f.query.AllNamespaces, "all-namespaces", false, "all namespaces")
	flags.StringVar(&f.query.ShardBy, "shard-by", "", "process in the order of this indexed `property`, not of keys")
	flags.BoolVar(&f.query.KeysOnly, "keys-only", false, "read only keys")
	flags.Var((*moment)(&f.query.ReadTime), "read-time",
		"read the entities of this `time`, such as 2006-01-02T15:04:05Z")
	flags.StringArrayVar(&f.filters, "filter", nil,
		"a `condition` in GQL, such as \"Seats > 10 AND plan = 'free'\"; repeatable: all conditions must hold")
	flags.StringVar(&f.share, "share", "", "process only this `share` of the entities, such as 1%")
	flags.StringVar(&f.except, "except", "", "process all entities but this `share`")
	flags.StringVar(&f.options.Queue, "queue", "", "the `name` of the queue; by default the mapper's queue")
	flags.IntVar(&f.options.PageSize, "page-size", 0,
		"the most entities of a page, a `number` from 1 to 1000; by default 500")
	flags.IntVar(&f.options.ExpectedWorkers, "expected-workers", 0,
		"divide the job for this `number` of parallel tasks, 1 to 5000; by default the queue's limit")
	flags.IntVar(&f.options.Concurrency, "concurrency", 0, "the `number` of parallel calls in a page, "+
		"1 to 1000; by default the mapper's number, or 1")
	flags.Float64Var(&f.options.Rate.EntitiesPerSecond, "rate", 0, "the most `entities` a second")
	flags.Float64Var(&f.options.Rate.CallsPerSecond, "calls", 0, callsHelp)
	flags.BoolVar(&f.options.Rate.Ramp, "ramp", false,
		"start with 500 entities a second, and allow 50% more every five minutes")
	flags.BoolVar(&f.options.Background, "background", false, "give way to other clients of the database")
	flags.Float64Var(&f.options.Budget.Dollars, "budget", 0, "pause before the job costs more than these `dollars`. "+
		"The service sets the prices, by default Google's for the multi-region nam5")
	flags.Int64Var(&f.options.Budget.Operations, "budget-operations", 0, "pause before the job makes more reads, "+
		"writes and other `operations` than this")
	flags.BoolVar(&f.options.AllowOverlap, "allow-overlap", false,
		"start even if another job of the mapper runs over the same kind")
	flags.BoolVar(&f.options.AllowEmpty, "allow-empty", false,
		"start even if the kind has no entity, or no entity has a property that a filter names")
}

// check sets the query from the flags. If kind is true, a query without a kind is an error.
func (f *jobFlags) check(kind bool) error {
	if kind && f.query.Kind == "" && len(f.query.Kinds) == 0 {
		return usageError(errors.New("--kind is empty: name the kind of the entities"))
	}
	q := f.query
	if q.Kind != "" && len(q.Kinds) > 0 {
		return usageError(errors.New("set only one of --kind and --kinds"))
	}
	if len(q.Namespaces) > 0 && (q.Namespace != "" || q.AllNamespaces) || q.AllNamespaces && q.Namespace != "" {
		return usageError(errors.New("set only one of --namespace, --namespaces and --all-namespaces"))
	}
	if b := f.options.Budget; !(b.Dollars >= 0) || math.IsInf(b.Dollars, 1) || b.Operations < 0 {
		return usageError(errors.New("--budget and --budget-operations have to be at least 0, and finite; 0 is no " +
			"limit"))
	}
	for _, text := range f.filters {
		if err := operator.AddCondition(&f.query, text); err != nil {
			return usageError(fmt.Errorf("--filter %q: %w", text, err))
		}
	}
	if err := operator.AddShare(&f.query, f.share, f.except); err != nil {
		return usageError(fmt.Errorf("--share, --except: %w", err))
	}
	return nil
}

// A nameList is the value of a flag: names with commas between them.
type nameList []string

func (l *nameList) Type() string { return "names" }

func (l *nameList) String() string { return strings.Join(*l, ",") }

func (l *nameList) Set(text string) error {
	all, err := operator.NameList(text)
	*l = all
	return err
}

// A moment is the value of a flag: a time with its zone.
type moment time.Time

func (m *moment) Type() string { return "time" }

func (m *moment) String() string {
	if time.Time(*m).IsZero() {
		return ""
	}
	return time.Time(*m).Format(time.RFC3339Nano)
}

func (m *moment) Set(text string) error {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.IsZero() { // the zero time has the effect of no flag
		return errors.New("it has to be like 2006-01-02T15:04:05Z")
	}
	*m = moment(t)
	return nil
}

// A retention is the value of the flag that says how long a job's records are kept. It is a time of
// at least mapper.MinRetain, in the form that operator.ParsePeriod reads, or "always".
type retention time.Duration

func (r *retention) Type() string { return "time" }

func (r *retention) String() string {
	switch d := time.Duration(*r); {
	case d < 0:
		return "always"
	case d == 0:
		return ""
	default:
		return d.String()
	}
}

func (r *retention) Set(text string) error {
	if text == "always" {
		*r = retention(mapper.RetainAlways)
		return nil
	}
	d, err := operator.ParsePeriod(text)
	if err != nil || d < mapper.MinRetain {
		return fmt.Errorf("it has to be at least %d days, such as 30d, or always", mapper.MinRetain/(24*time.Hour))
	}
	*r = retention(d)
	return nil
}

// A period is the value of a flag: a time of at least 0, in the form that operator.ParsePeriod reads.
type period time.Duration

func (p *period) Type() string { return "time" }

func (p *period) String() string {
	if *p == 0 {
		return ""
	}
	return time.Duration(*p).String()
}

func (p *period) Set(text string) error {
	d, err := operator.ParsePeriod(text)
	if err != nil || d < 0 {
		return errors.New("it has to be a time such as 2h or 30d")
	}
	*p = period(d)
	return nil
}

// oneMapper is a cobra.PositionalArgs that requires exactly one argument, the name of a mapper.
func oneMapper(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError(fmt.Errorf("%s: name one mapper, as in \"scattermap %s\"", c.Name(), c.Use))
	}
	return nil
}

func newStart() *cobra.Command {
	var s service
	var f jobFlags
	var params string
	var watch, execute, yes bool
	c := &cobra.Command{
		Use: "start MAPPER --kind KIND", Short: "Start a job", Args: oneMapper,
		Long: `Starts a job that runs a mapper of the service over the entities of a kind. Starts are idempotent:
the same --id with the same arguments finds the existing job.

Without --execute, jobs of the prebuilt mappers set, rename, drop, delete and erase are rehearsals,
which write nothing. Only erase needs no --kind.`,
		Example: `  scattermap start add-credit --kind Account --params '{"Amount": 10}' --id spring-credit --watch
  scattermap start add-credit --kind Account --params '{"Amount": 10}' --share 1% --watch    # and then --except 1%
  scattermap start erase --namespace acme --execute
  scattermap start expire --kind Session --filter "seen < DATETIME('2026-10-24T00:00:00Z')" --rate 500`,
	}
	flags := c.Flags()
	s.define(flags)
	s.defineReason(flags)
	f.define(flags)
	flags.StringVar(&f.options.ID, "id", "", "the `ID` of the job; by default a new one")
	flags.StringVar(&params, "params", "{}", "the mapper's parameters as `JSON`")
	flags.IntVar(&f.options.FailureLimit, "failure-limit", 0,
		"pause after more failures than this `number`; by default 1,000; -1 is no limit")
	flags.IntVar(&f.options.Retries.MaxAttempts, "attempts", 0,
		"the `number` of attempts for an entity; by default the mapper's number")
	flags.DurationVar(&f.options.PageTime, "page-time", 0, "the most time for a page; by default 3s")
	flags.DurationVar(&f.options.EntityTimeout, "entity-timeout", 0, "the most time for an entity; by default 30s")
	flags.Var((*retention)(&f.options.Retain), "retain", "keep the job's records for this `duration` "+
		"after its end: at least 8d, such as 30d, or always; by default the service's setting, or else always")
	flags.BoolVar(&execute, "execute", false, "let set, rename, drop, delete and erase write")
	flags.BoolVarP(&yes, "yes", "y", false, "with --execute, start without a question")
	flags.BoolVar(&f.options.DryRun, "dry-run", false,
		"rehearse: run the function, write nothing, and count what it would write")
	flags.BoolVarP(&watch, "watch", "w", false, "follow the job to its end, like the command watch")
	format := outputFlag(flags)
	c.RunE = func(c *cobra.Command, args []string) error {
		erases := args[0] == prebuilt.EraseName && f.query.Kind == "" && len(f.query.Kinds) == 0
		if err := f.check(!erases); err != nil {
			return err
		}
		if err := checkParams(params); err != nil {
			return err
		}
		if o := f.options.ID; o != "" && !names.JobID(o) {
			return usageError(fmt.Errorf("--id is %.110q, it has to be 1 to 100 letters, digits, '-' and '_', and "+
				"not __x__", o))
		}
		o := f.options
		if execute && o.DryRun {
			return usageError(errors.New("--execute and --dry-run contradict each other"))
		}
		if prebuilt.Destroys(args[0]) && !execute && !o.DryRun {
			o.DryRun = true
			fmt.Fprintf(c.ErrOrStderr(), "This is a rehearsal and writes nothing. To write, add --execute.\n")
		}
		if err := s.requireParams(c.Context(), args[0], json.RawMessage(params)); err != nil {
			return err
		}
		switch destroys := prebuilt.Destroys(args[0]) && !o.DryRun && !yes; {
		case destroys && erases:
			if err := confirm(c, erasing(f.query, params)); err != nil {
				return err
			}
		case destroys:
			if err := confirmNumber(c, &s, args[0], params, f); err != nil {
				return err
			}
		}
		err := startBody{args[0], f.query, json.RawMessage(params), o}.start(c, &s, watch, format)
		return withoutParams(err, flags, args[0])
	}
	return c
}

// requireParams returns an error if parameters lack a number or a time that the mapper needs: the
// function would take it for zero. If the service does not tell its mappers, it checks nothing.
func (s *service) requireParams(ctx context.Context, mapper string, params json.RawMessage) error {
	if s.straight.queue != "" {
		return nil
	}
	list, err := s.mappers(ctx, false)
	if err != nil {
		return nil // the start will say what is wrong
	}
	for _, m := range list.Mappers {
		if missing := m.Missing(params); m.Name == mapper && len(missing) > 0 {
			return usageError(fmt.Errorf("missing parameters in --params: %s; \"scattermap mappers %s\" lists the "+
				"parameters", operator.Line(strings.Join(missing, ", "), 300), mapper))
		}
	}
	return nil
}

// withoutParams returns the error of a start. If it is about parameters, and the command line has
// none, the error says which command lists them.
func withoutParams(err error, flags *pflag.FlagSet, mapper string) error {
	if err == nil || flags.Changed("params") || !strings.Contains(err.Error(), "params: ") {
		return err
	}
	return fmt.Errorf("%w; \"scattermap mappers %s\" lists the parameters for --params", err, mapper)
}

// erasing returns the question that the command asks before a job erases a namespace, or the tenant
// that params name.
func erasing(q mapper.Query, params string) string {
	where := "kinds and namespaces"
	switch {
	case q.Namespace != "":
		return fmt.Sprintf("Erase the namespace %s, with %s, also in the records of all jobs?",
			operator.Line(q.Namespace, 100), operator.Line(params, 200))
	case len(q.Namespaces) > 0:
		where = "kinds of the namespaces " + operator.Line(fmt.Sprintf("%q", q.Namespaces), 200)
	}
	return fmt.Sprintf("Erase everything with %s, in all %s and in the records of all jobs?",
		operator.Line(params, 200), where)
}

// confirmNumber asks the service how many entities a job would destroy, and then asks the user to
// type this number. It returns an error unless they do.
func confirmNumber(c *cobra.Command, s *service, mapper, params string, f jobFlags) error {
	est, err := f.plan(c, s, mapper, params, 0)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s will run over %s entities. Type that number to start it: ",
		operator.Line(mapper, 100), operator.Sized(est))
	typed, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(c.ErrOrStderr())
	}
	if strings.TrimSpace(typed) == "" {
		return errors.New("nothing was done, because no number was typed; --yes starts it without asking")
	}
	if n, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(typed), ",", ""), 10, 64); err != nil ||
		n != est.Entities {
		return errors.New("nothing was done, because that is another number; --yes starts it without asking")
	}
	return nil
}

// checkParams returns an error if parameters are not valid JSON.
func checkParams(params string) error {
	if err := strictjson.Check([]byte(params)); err != nil {
		return usageError(fmt.Errorf("--params is %.200q: %w (parameters are JSON, such as '{\"Amount\": 10}')", params,
			err))
	}
	return nil
}

// plan asks the service how many entities a job would process, how long it would take, and what it
// would cost. The parameter each is how long the function takes for an entity; 0 means the default.
func (f jobFlags) plan(c *cobra.Command, s *service, name, params string, each time.Duration) (*mapper.Estimate,
	error) {
	est := new(mapper.Estimate)
	return est, s.call(c.Context(), http.MethodPost, planPath, nil, struct {
		Mapper    string          `json:"mapper"`
		Query     mapper.Query    `json:"query"`
		Params    json.RawMessage `json:"params,omitempty"`
		PerEntity time.Duration   `json:"per_entity_ns"`
		mapper.StartOptions
	}{name, f.query, json.RawMessage(params), each, f.options}, est)
}

func newPlan() *cobra.Command {
	var s service
	var f jobFlags
	var params string
	var each time.Duration
	c := &cobra.Command{
		Use: "plan MAPPER --kind KIND", Short: "Estimate a job's time and cost, without starting it", Args: oneMapper,
		Long: `Counts or estimates the entities of a query, and prints a job's time and cost. With --calls,
it assumes that the function makes one such call for each entity. A plan costs at most a few
thousand reads, or 11,000 if it must count matches of a filter.`,
	}
	s.define(c.Flags())
	f.define(c.Flags())
	c.Flags().StringVar(&params, "params", "", "the mapper's parameters as `JSON`, only to check them")
	c.Flags().DurationVar(&each, "per-entity", 2*time.Millisecond, "the function's time for an entity")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(true); err != nil {
			return err
		}
		if params != "" {
			if err := checkParams(params); err != nil {
				return err
			}
		}
		est, err := f.plan(c, &s, args[0], params, each)
		if err != nil {
			return err
		}
		if *format != table {
			return format.write(c.OutOrStdout(), est)
		}
		return facts(c.OutOrStdout(),
			[]string{"Entities:", operator.Sized(est)},
			[]string{"Pages:", fmt.Sprintf("%s, by %s tasks, %s at once", operator.Grouped(est.Pages),
				operator.Grouped(est.Tasks), operator.Grouped(int64(est.Workers)))},
			[]string{"Takes:", "about " + operator.Roughly(est.Duration)},
			[]string{"Cost:",
				fmt.Sprintf("about $%.4f: %s reads, %s writes, %s operations of tasks",
					est.Dollars, operator.Grouped(est.Usage.Reads), operator.Grouped(est.Usage.Writes),
					operator.Grouped(est.Usage.TaskOps))},
			[]string{"The plan:", fmt.Sprintf("has used %s reads", operator.Grouped(est.Spent.Reads))})
	}
	return c
}
