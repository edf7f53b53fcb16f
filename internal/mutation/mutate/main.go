// Command mutate tries the mutants of package mutation, one at a time. For each mutant, it runs the
// tests in which the mutant makes a difference. It prints the mutants that no test finds.
//
//	go run ./internal/mutation/mutate            # all
//	go run ./internal/mutation/mutate undo store # of some packages
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scattermap/scattermap/internal/mutation"
)

var (
	root    = flag.String("root", ".", "the module's folder")
	workers = flag.Int("p", 2, "how many tests run at once")
	most    = flag.Duration("most", 2*time.Minute, "how long the tests may take, of one core, that look for one mutant")
	results = flag.String("results", "", "a file: mutants that it has as found are not tried again; results are added")
	reach   = flag.String("reach", "", "a file: tests of which it knows are not run for that; others are added")
	only    = flag.String("only", "", "try only mutants whose names contain this")
	file    = flag.String("names", "", "a file: try only mutants whose names begin its lines, up to a tab")
	suites  = flag.String("suites", "", "folders, separated by commas: only their tests look for mutants; empty: all")
	list    = flag.Bool("list", false, "print the names of the mutants, and try none")
	limit   = flag.Duration("for", 0, "stop after this time, and count what was not run; 0: never")
	shuffle = flag.Uint64("shuffle", 0,
		"try the mutants in a random order, by this seed, so that those of a run that is "+
			"stopped are a random sample; 0: package by package")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := mutate(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func mutate(ctx context.Context) (ok bool, err error) {
	began := time.Now()
	names := flag.Args()
	for _, t := range mutation.Targets {
		if flag.NArg() == 0 {
			names = append(names, t.Name)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(mutation.Targets, func(t mutation.Target) bool { return t.Name == name }) {
			return false, fmt.Errorf("%s is no package that is mutated", name)
		}
	}
	wanted := func(m mutation.Mutant) bool {
		return slices.Contains(names, m.Target) && strings.Contains(m.Name(), *only)
	}
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return false, err
		}
		in := make(map[string]bool)
		for line := range strings.Lines(string(text)) {
			name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			in[name] = true
		}
		wanted = func(m mutation.Mutant) bool { return in[m.Name()] }
	}
	if *list {
		mutants, _, err := mutation.Generate(*root, mutation.Targets)
		for _, m := range mutants {
			if wanted(m) {
				fmt.Printf("%s\t%s\n", m.Name(), m.Place)
			}
		}
		return err == nil, err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	looking := mutation.Suites
	if *suites != "" {
		looking = strings.Split(*suites, ",")
	}
	lab, err := mutation.Build(ctx, *root, dir, mutation.Targets, looking, *workers)
	if err != nil {
		return false, err
	}
	if err := lab.All(ctx); err != nil {
		return false, err
	}
	say := func(text string) { fmt.Println(text) }
	fmt.Printf("%d mutants; %d tests run once\n", len(lab.Mutants), len(lab.Tests))
	if err := lab.Reach(ctx, *reach, say); err != nil {
		return false, err
	}
	fmt.Printf("%v: the tests have run\n", time.Since(began).Round(time.Second))
	return report(ctx, lab, names, wanted, began)
}

// A count is a line of the printed table, with numbers of mutants.
type count struct{ all, run, found, survived, explained int }

// report tries the mutants of the targets with these names for which the function wanted returns
// true. It prints a table and the mutants that no test found. It returns true if each of these has
// a reason, and at least 90% of the mutants that matter were found. The last parameter is when the
// command started; its time limit counts from then.
func report(
	ctx context.Context, lab *mutation.Lab, names []string, wanted func(mutation.Mutant) bool, began time.Time,
) (ok bool, err error) {
	reasons, err := mutation.Survivors()
	if err != nil {
		return false, err
	}
	known, add, done, err := open()
	if err != nil {
		return false, err
	}
	defer done()
	todo, t := plan(lab, names, wanted, reasons)
	var mu sync.Mutex
	err = lab.Each(len(todo), func(i int) error {
		m := todo[i]
		if *limit > 0 && time.Since(began) > *limit {
			return nil
		}
		mu.Lock()
		r, found := known[m.Name()]
		mu.Unlock()
		if !found {
			var err error
			if r, err = lab.Try(ctx, m, *most); err != nil {
				return fmt.Errorf("%s: %w", m.Name(), err)
			}
			if err := add(r); err != nil {
				return err
			}
			mu.Lock()
			fmt.Printf("%6d/%d %s: %s\n", i+1, len(todo), m.Name(), says(r))
			mu.Unlock()
		}
		mu.Lock()
		defer mu.Unlock()
		t.note(m, r)
		return nil
	})
	ok = t.print()
	fmt.Printf("%v\n", time.Since(began).Round(time.Second))
	return err == nil && ok && len(lab.Broken) == 0, err
}

// A tally counts the results of mutants, for the table.
type tally struct {
	reasons     map[string]string // why it does not matter that no test finds a mutant, by the mutants' names
	counts      map[string]*count
	existing    map[string]bool
	open, stale []string // mutants without a reason that no test found, and reasons for mutants that a test found
}

// plan returns the mutants to try, in order, and an empty tally with the given reasons. These are
// the mutants of the targets with these names for which the function wanted returns true.
func plan(
	lab *mutation.Lab, names []string, wanted func(mutation.Mutant) bool, reasons map[string]string,
) (todo []mutation.Mutant, t *tally) {
	t = &tally{reasons: reasons, counts: make(map[string]*count), existing: make(map[string]bool)}
	for _, m := range lab.Mutants {
		t.existing[m.Name()] = true
		if !slices.Contains(names, m.Target) {
			continue
		}
		if t.counts[m.Target] == nil {
			t.counts[m.Target] = new(count)
		}
		t.counts[m.Target].all++
		if wanted(m) {
			todo = append(todo, m)
		}
	}
	slices.SortStableFunc(todo, func(a, b mutation.Mutant) int {
		return slices.Index(names, a.Target) - slices.Index(names, b.Target)
	})
	if *shuffle != 0 {
		rand.New(rand.NewPCG(*shuffle, 0)).Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
	}
	return todo, t
}

// note counts the result of one mutant.
func (t *tally) note(m mutation.Mutant, r mutation.Result) {
	c := t.counts[m.Target]
	c.run++
	switch {
	case r.Found != "":
		c.found++
		if t.reasons[r.Mutant] != "" {
			t.stale = append(t.stale, r.Mutant+": found by "+r.Found)
		}
	case t.reasons[r.Mutant] != "":
		c.survived++
		c.explained++
	default:
		c.survived++
		why := fmt.Sprintf("%d tests reach it", r.Reached)
		if r.Left > 0 {
			why += fmt.Sprintf(", %d of them were not run", r.Left)
		}
		t.open = append(t.open, fmt.Sprintf("%s\t(%s; %s)", r.Mutant, r.Place, why))
	}
}

// print prints the table. Then it prints mutants without a reason that no test found, and reasons
// that no longer apply. It returns true if there are neither, and enough mutants were found.
func (t *tally) print() (ok bool) {
	table(t.counts)
	for _, s := range t.open {
		fmt.Println("SURVIVED:", s)
	}
	for _, s := range t.stale {
		fmt.Println("NOT A SURVIVOR:", s)
	}
	ok = len(t.open) == 0 && len(t.stale) == 0
	for name := range t.reasons {
		target, _, _ := strings.Cut(name, ".")
		if t.counts[target] != nil && !t.existing[name] {
			ok = false
			fmt.Println("NO SUCH MUTANT:", name)
		}
	}
	for _, c := range t.counts {
		ok = ok && c.found*10 >= 9*(c.run-c.explained)
	}
	return ok
}

func says(r mutation.Result) string {
	switch {
	case r.Late:
		return "found by " + r.Found + ", which does not end"
	case r.Found != "":
		return "found by " + r.Found
	case r.Reached == 0:
		return "SURVIVED: no test comes there"
	}
	return fmt.Sprintf("SURVIVED %d tests, %d not run", r.Reached-r.Left, r.Left)
}

func table(counts map[string]*count) {
	fmt.Println("\n| package | mutants | run | found | survived | of these explained |\n|---|---|---|---|---|---|")
	var sum count
	row := func(name string, c count) {
		fmt.Printf("| %s | %d | %d | %d | %d | %d |\n", name, c.all, c.run, c.found, c.survived, c.explained)
	}
	for _, t := range mutation.Targets {
		if c := counts[t.Name]; c != nil {
			row("`"+t.Name+"`", *c)
			sum.all, sum.run, sum.found = sum.all+c.all, sum.run+c.run, sum.found+c.found
			sum.survived, sum.explained = sum.survived+c.survived, sum.explained+c.explained
		}
	}
	row("all", sum)
	if sum.run > sum.explained {
		fmt.Printf("\n%.1f%% of those that matter are found\n", 100*float64(sum.found)/float64(sum.run-sum.explained))
	}
}

// open opens the file with the results of earlier runs. It returns the mutants that were found in
// these runs, by name. It also returns a function that adds a result, and one that closes the file.
func open() (known map[string]mutation.Result, add func(mutation.Result) error, done func(), err error) {
	known = make(map[string]mutation.Result)
	if *results == "" {
		return known, func(mutation.Result) error { return nil }, func() {}, nil
	}
	text, err := os.ReadFile(*results)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		var r mutation.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", *results, err)
		}
		delete(known, r.Mutant)
		if r.Found != "" {
			known[r.Mutant] = r
		}
	}
	f, err := os.OpenFile(*results, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, nil, err
	}
	var mu sync.Mutex
	add = func(r mutation.Result) error {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = f.Write(append(line, '\n'))
		return err
	}
	return known, add, func() { _ = f.Close() }, nil
}
