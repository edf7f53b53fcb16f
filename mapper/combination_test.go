package mapper_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

var writeQueries = flag.Bool("queries", false, "write the table of TestCombinations to docs/queries.md")

// features are what a query can have.
var features = []struct {
	name string
	add  func(q *mapper.Query)
}{
	{"`Kinds`", func(q *mapper.Query) { q.Kind, q.Kinds = "", []string{"User", "Guest"} }},
	{"`Namespaces`", func(q *mapper.Query) { q.Namespaces = []string{"", "n"} }},
	{"`AllNamespaces`", func(q *mapper.Query) { q.AllNamespaces = true }},
	{"equality", func(q *mapper.Query) { q.Filters = append(q.Filters, mapper.Where("active", "=", true)) }},
	{"`in`", func(q *mapper.Query) {
		q.Filters = append(q.Filters, mapper.Where("plan", "in", []string{"free", "pro"}))
	}},
	{"inequality", func(q *mapper.Query) { q.Filters = append(q.Filters, mapper.Where("score", ">", 0.0)) }},
	{"`Ancestor`", func(q *mapper.Query) { q.Ancestor = datastore.NameKey("Group", "g1", nil) }},
	{"`Start`, `End`", func(q *mapper.Query) {
		q.Start = datastore.IDKey("User", 1, datastore.NameKey("Group", "g0", nil))
		q.End = datastore.IDKey("User", 1, datastore.NameKey("Group", "g2", nil))
	}},
	{"`ShardBy`", func(q *mapper.Query) { q.ShardBy = "userid" }},
	{"`ShardBy`, and an inequality on it", func(q *mapper.Query) {
		q.ShardBy = "userid"
		q.Filters = append(q.Filters, mapper.Where("userid", ">=", 5000))
	}},
	{"`ReadTime`", func(q *mapper.Query) { q.ReadTime = time.Unix(1, 0) }},
	{"`KeysOnly`", func(q *mapper.Query) { q.KeysOnly = true }},
}

// A verdict is what Start says to a query where the database has only the composite indexes
// that it is given.
type verdict struct {
	cell   string // of the table
	reason string
}

// ask starts a job in a world with users.
func ask(t *testing.T, q mapper.Query, indexes []byte) (a verdict, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: indexes}}, checkUser, lookAtUser)
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 60)
		m := checkUser
		if q.KeysOnly || !q.ReadTime.IsZero() { // not for what checkUser does
			m = lookAtUser
		}
		if !q.ReadTime.IsZero() {
			time.Sleep(time.Second)
			q.ReadTime = time.Now()
			time.Sleep(time.Second)
		}
		job, started := m.Start(t.Context(), w.engine, q, mapper.NoParams{},
			&mapper.StartOptions{ID: "j", PageSize: 10, AllowEmpty: true})
		if err = started; err == nil {
			w.wait(job)
		} else if _, missing := w.engine.Job("j").Status(t.Context()); !errors.Is(missing, mapper.ErrNoSuchJob) {
			t.Errorf("%+v: refused, and there is a job: %v", q, missing)
		}
	})
	switch {
	case err == nil:
		a.cell = "yes"
	case !errors.Is(err, mapper.ErrInvalidArgument):
		t.Errorf("%+v: %v", q, err)
	case strings.Contains(err.Error(), "needs an index"):
		a.cell = "index"
	default:
		a.cell, a.reason = "no", err.Error()[strings.Index(err.Error(), "arguments: ")+len("arguments: "):]
	}
	return a, err
}

// TestCombinations starts jobs over queries with each pair of features, and compares what is
// served with docs/queries.md. Where an index is needed, the lines that the error has serve.
func TestCombinations(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	var table, reasons strings.Builder
	table.WriteString("| |")
	for _, f := range features {
		fmt.Fprintf(&table, " %s |", f.name)
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(features)) + "\n")
	notes := make(map[string]int)
	for i, f := range features {
		fmt.Fprintf(&table, "| %s |", f.name)
		for j, g := range features {
			if j > i {
				table.WriteString(" |")
				continue
			}
			q := mapper.Query{Kind: "User"}
			f.add(&q)
			if i != j {
				g.add(&q)
			}
			a, err := ask(t, q, []byte("indexes: []"))
			if a.cell == "index" {
				_, lines, _ := strings.Cut(err.Error(), "built:\n")
				lines, _, _ = strings.Cut(lines, "\nThe database says")
				if _, err := ask(t, q, []byte(lines)); err != nil {
					t.Errorf("%s and %s, with the index that the error names: %v", f.name, g.name, err)
				}
			}
			if a.reason != "" {
				if notes[a.reason] == 0 {
					notes[a.reason] = len(notes) + 1
					fmt.Fprintf(&reasons, "%d. %s\n", notes[a.reason], a.reason)
				}
				a.cell = fmt.Sprintf("no (%d)", notes[a.reason])
			}
			fmt.Fprintf(&table, " %s |", a.cell)
		}
		table.WriteString("\n")
	}
	const path, begin, end = "../docs/queries.md", "<!-- TestCombinations -->\n", "<!-- end -->\n"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(have), begin)
	_, after, found := strings.Cut(rest, end)
	want := before + begin + "\n" + table.String() + "\n" + reasons.String() + "\n" + end + after
	if *writeQueries {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !found || want != string(have) {
		t.Errorf("docs/queries.md is not what queries can have; write it again: go test ./mapper -run "+
			"TestCombinations -args -queries\n%s%s", table.String(), reasons.String())
	}
}

// TestQueryRefused starts jobs over queries that can't be served.
func TestQueryRefused(t *testing.T) {
	t.Parallel()
	key := datastore.IDKey("User", 5, nil)
	in := func(n int) mapper.Filter {
		values := make([]int, n)
		for i := range values {
			values[i] = i
		}
		return mapper.Where(fmt.Sprint("p", n), "in", values)
	}
	where := func(f ...mapper.Filter) mapper.Query { return mapper.Query{Kind: "User", Filters: f} }
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser, lookAtUser)
		now := time.Now()
		for want, q := range map[string]mapper.Query{
			"Query.Kind is empty": {},
			"filter in the function": {Kind: "User",
				Filters: []mapper.Filter{mapper.Where("plan", "!=", "x")}},
			"not one of =, <, <=, >, >=, in":    where(mapper.Where("plan", "==", "x")),
			"is a struct {}":                    where(mapper.Where("plan", "=", struct{}{})),
			"and not a slice of values":         where(mapper.Where("plan", "in", "x")),
			"0 values, and not 1 to 30":         where(mapper.Where("plan", "in", []string{})),
			"31 values, and not 1 to 30":        where(in(31)),
			"come to 36 combinations":           where(in(4), in(9)),
			"Query.Start and Query.End":         where(mapper.Where("__key__", ">", key)),
			"the name is reserved":              where(mapper.Where("__scatter__", "=", 1)),
			"the name of the property is empty": where(mapper.Where("", "=", 1)),
			"longer than 1500 bytes":            where(mapper.Where("plan", "=", strings.Repeat("x", 1501))),
			"not UTF-8":                         where(mapper.Where("plan", "=", "\xff")),
			"the key is incomplete": where(mapper.Where("plan", "=",
				datastore.IncompleteKey("User", nil))),
			"Query.Start /Other,1 is of the kind": {Kind: "User", Start: datastore.IDKey("Other", 1, nil)},
			"Query.End: the key is incomplete":    {Kind: "User", End: datastore.IncompleteKey("User", nil)},
			"is not before Query.End":             {Kind: "User", Start: key, End: key},
			"bounds keys":                         {Kind: "User", Start: key, ShardBy: "userid"},
			"Query.Ancestor is in the namespace": {Kind: "User", Namespace: "a",
				Ancestor: &datastore.Key{Kind: "Group", ID: 1, Namespace: "b"}},
			"Query.ShardBy \"__key__\" is reserved": {Kind: "User", ShardBy: "__key__"},
			"whose values it leaves none to cut": {Kind: "User", ShardBy: "plan",
				Filters: []mapper.Filter{mapper.Where("plan", "=", "x")}},
			"Query.Filters leave no values": {Kind: "User", ShardBy: "userid",
				Filters: []mapper.Filter{mapper.Where("userid", ">", 5), mapper.Where("userid", "<=", 5)}},
			"hold scattermap's own records": {Kind: record.JobKind},
			"Query.ReadTime is for a Visit": {Kind: "User", ReadTime: now},
		} {
			_, err := checkUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%+v: %v, want an error with %q", q, err, want)
			}
		}
		_, err := lookAtUser.Start(t.Context(), w.engine, mapper.Query{Kind: "User", KeysOnly: true, ShardBy: "userid"},
			mapper.NoParams{}, nil)
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), "it may be a list") {
			t.Errorf("a Visit: %v", err)
		}
	})
}
