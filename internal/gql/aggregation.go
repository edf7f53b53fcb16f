package gql

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// atAggregation reports whether the next token is the name of an aggregation, such as COUNT.
func (p *parser) atAggregation() bool {
	return p.tok.is("COUNT") || p.tok.is("COUNT_UP_TO") || p.tok.is("SUM") || p.tok.is("AVG")
}

// aggregateOver reads the rest of an aggregation query AGGREGATE … OVER (…), after the word
// AGGREGATE.
func (p *parser) aggregateOver() (*Statement, error) {
	aggregations, err := p.aggregations()
	if err != nil {
		return nil, err
	}
	for _, value := range []string{"OVER", "(", "SELECT"} {
		if err := p.expect(value); err != nil {
			return nil, err
		}
	}
	if p.atAggregation() {
		return nil, p.errorAt(p.tok, "expected * or a property, not another aggregation: %s", p.tok)
	}
	q, err := p.query()
	if err != nil {
		return nil, err
	}
	if !p.accept(")") {
		return nil, p.expected("a clause (" + clauses + ") or the ) of OVER")
	}
	return &Statement{Query: q, Aggregations: aggregations}, nil
}

// selectAggregations reads the rest of an aggregation query SELECT COUNT(*) …, after the word
// SELECT. Only FROM and WHERE may follow.
func (p *parser) selectAggregations() (*Statement, error) {
	aggregations, err := p.aggregations()
	if err != nil {
		return nil, err
	}
	q := new(pb.Query)
	if err := p.source(q); err != nil {
		return nil, err
	}
	if p.tok.is("ORDER") || p.tok.is("LIMIT") || p.tok.is("OFFSET") {
		return nil, p.errorAt(p.tok, "%s needs the long form: AGGREGATE ... OVER ( SELECT * ... )", p.tok.value)
	}
	return &Statement{Query: q, Aggregations: aggregations}, nil
}

func (p *parser) aggregations() ([]*pb.AggregationQuery_Aggregation, error) {
	var all []*pb.AggregationQuery_Aggregation
	for {
		a, err := p.aggregation()
		if err != nil {
			return nil, err
		}
		all = append(all, a)
		if !p.accept(",") {
			return all, nil
		}
	}
}

func (p *parser) aggregation() (*pb.AggregationQuery_Aggregation, error) {
	if !p.atAggregation() {
		return nil, p.expected("COUNT, COUNT_UP_TO, SUM or AVG")
	}
	function := p.advance().value
	if err := p.expect("("); err != nil {
		return nil, err
	}
	a := new(pb.AggregationQuery_Aggregation)
	if err := p.operand(a, function); err != nil {
		return nil, err
	}
	if err := p.expect(")"); err != nil {
		return nil, err
	}
	if !p.accept("AS") {
		return a, nil
	}
	alias, err := p.name("an alias")
	a.Alias = alias
	return a, err
}

// operand reads the operand of the aggregation function into a, such as the property of SUM. As in
// Google's emulators, the limit of COUNT_UP_TO can't be a binding such as @1.
func (p *parser) operand(a *pb.AggregationQuery_Aggregation, function string) error {
	switch function {
	case "COUNT":
		a.Operator = &pb.AggregationQuery_Aggregation_Count_{Count: &pb.AggregationQuery_Aggregation_Count{}}
		if !p.accept("*") {
			return p.expected("* (COUNT is of whole entities)")
		}
		return nil
	case "COUNT_UP_TO":
		if p.tok.kind != integer {
			return p.expected("an integer")
		}
		t := p.advance()
		if err := p.literal(t); err != nil {
			return err
		}
		n, err := p.integer(t)
		if err != nil {
			return err
		}
		if n < 0 {
			return p.errorAt(t, "expected an integer from 0 for COUNT_UP_TO, got %s", t)
		}
		a.Operator = &pb.AggregationQuery_Aggregation_Count_{
			Count: &pb.AggregationQuery_Aggregation_Count{UpTo: wrapperspb.Int64(n)},
		}
		return nil
	}
	property, err := p.property()
	if err != nil {
		return err
	}
	if function == "SUM" {
		a.Operator = &pb.AggregationQuery_Aggregation_Sum_{
			Sum: &pb.AggregationQuery_Aggregation_Sum{Property: property}}
	} else {
		a.Operator = &pb.AggregationQuery_Aggregation_Avg_{
			Avg: &pb.AggregationQuery_Aggregation_Avg{Property: property}}
	}
	return nil
}
