package planner

import (
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestLoad checks what the planner knows about the rest of the range [1, 31) after 4 entities of a
// page. It also checks whether the task can give this rest to other workers.
func TestLoad(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		for _, c := range []struct {
			name string
			r    record.Range
			with func(p *Planner)
			left int64
			ok   bool
		}{
			{"nobody knew how many there are: they were counted", record.Range{}, func(*Planner) {}, 26, true},
			{"26 are left", record.Range{Estimate: 30}, func(*Planner) {}, 26, true},
			{"a suspected page is not given away", record.Range{Estimate: 30, Suspicion: record.Suspicion{Solo: true}},
				func(*Planner) {}, 26, false},
			{"a mapper that has fixed shards keeps them", record.Range{Estimate: 30},
				func(p *Planner) { p.Strategy = split.Strategy{First: 4, FanOut: 1} }, 26, false},
			{"the last page: what is in it is known", record.Range{Estimate: 30, End: at(9)}, func(*Planner) {}, 4,
				true},
		} {
			p, r := plannerOf(client, query.Query{Kind: "K"}, 3), c.r
			if r.ID, r.PageSize, r.Workers, r.Start = "r", 10, 1, at(1); r.End == nil {
				r.End = at(31)
			}
			c.with(p)
			plan, err := p.Plan(t.Context(), p.job, &r)
			if err != nil {
				t.Fatal(err)
			}
			l, ok := p.Load(plan, 4, time.Second)
			if l.Left != c.left || ok != c.ok || l.Here != time.Second || l.Workers != 3 {
				t.Errorf("%s: %d are left, which can be given away: %v; %+v", c.name, l.Left, ok, l)
			}
			p.Close()
		}
	})
}

// TestGive checks how the rest of the range [1, 31) is cut for other workers after 4 entities of a
// page.
func TestGive(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		for _, c := range []struct {
			keep, each int64
			want       string
		}{
			{6, 5, "[1,11) [11,16) [16,21) [21,26) [26,31)"},
			{0, 13, "[1,5) [5,18) [18,31)"},
			{26, 5, "[1,31)"},
		} {
			p := plannerOf(client, query.Query{Kind: "K"}, 3)
			r := &record.Range{ID: "r", PageSize: 10, Workers: 1, Start: at(1), End: at(31), Estimate: 30, Exact: true}
			plan, err := p.Plan(t.Context(), p.job, r)
			if err != nil {
				t.Fatal(err)
			}
			pieces, err := p.Give(t.Context(), plan, 4, c.keep, c.each)
			got := ""
			for i, s := range pieces {
				if i > 0 {
					got += " "
				}
				got += fmt.Sprintf("[%s,%s)", where(s.Start), where(s.End))
			}
			if err != nil || got != c.want {
				t.Errorf("keep %d and give %d each: %s, %v, want %s", c.keep, c.each, got, err, c.want)
			}
			p.Close()
		}
	})
}

// TestKeepWhole checks that KeepWhole prevents a range for two workers from being cut.
func TestKeepWhole(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		p := plannerOf(client, query.Query{Kind: "K"}, 2)
		defer p.Close()
		r := &record.Range{ID: "r", PageSize: 10, Workers: 2, Estimate: 100, Exact: true}
		for i, cut := range []bool{true, false} {
			plan, err := p.Plan(t.Context(), p.job, r)
			if err != nil || (plan.Pieces != nil) != cut {
				t.Errorf("plan %d is cut: %v, %v", i+1, plan.Pieces != nil, err)
			}
			if p.KeepWhole(); cut {
				continue
			}
			if plan.Range.Estimate != 100 || plan.Range.FairShare != 0 {
				t.Errorf("%d entities, and a fair share of %d", plan.Range.Estimate, plan.Range.FairShare)
			}
		}
	})
}

// TestCountPieces checks the counted numbers of entities in the pieces of a kind.
func TestCountPieces(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		p := plannerOf(client, query.Query{Kind: "K"}, 2)
		pieces := []split.Piece{{End: at(21)}, {Start: at(21), End: at(91)}, {Start: at(91)}}
		for _, uncounted := range []bool{false, true} {
			if uncounted {
				p.Source.CantCount()
			}
			got := ""
			for _, s := range p.countPieces(t.Context(), p.Query, 2, 10, pieces) {
				got += fmt.Sprintf("%d %v ", s.Estimate, s.Exact)
			}
			if want := map[bool]string{false: "20 true 70 true 10 true ", true: "0 false 0 false 0 false "}; got !=
				want[uncounted] {
				t.Errorf("a database that can't count: %v: %s", uncounted, got)
			}
		}
	})
}

// TestCounts checks two results of surveying a job's first range: the mean size of an entity, and
// the number of entities without the property in ShardBy.
func TestCounts(t *testing.T) {
	withKind(t, 100, func(t *testing.T, client *datastore.Client) {
		kindIn(t, client, keyspace.Space{Kind: "Other"}, 3)
		root := record.RangeID(record.Ref{ID: "j"}.String(), 0)
		for by, want := range map[string]int64{"": 0, "N": 0, "M": 100} {
			for _, before := range []bool{false, true} { // whether an earlier delivery has surveyed the range
				p := plannerOf(client, query.Query{Kind: "K", ShardBy: by}, 4)
				if p.EntitySize() != 0 || p.Unsharded() != 0 {
					t.Error("something is known before anybody has looked")
				}
				r := &record.Range{ID: root, PageSize: 10, Cut: before}
				if _, err := p.Plan(t.Context(), p.job, r); err != nil {
					t.Fatal(err)
				}
				p.AwaitCounts(t.Context())
				if got := p.Unsharded(); got != want {
					t.Errorf("sharded by %q: %d have none of it, want %d", by, got, want)
				}
				if got := p.EntitySize(); (got > 0) != (by != "M" && !before) { // no sampled entity has M
					t.Errorf("sharded by %q, surveyed before: %v: an entity has %d bytes", by, before, got)
				}
				p.Close()
			}
		}
	})
}
