package gql

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

const clauses = "FROM, WHERE, ORDER BY, LIMIT, OFFSET: in this order"

func (p *parser) statement() (*Statement, error) {
	var s *Statement
	var err error
	rest := "the end of the query"
	switch {
	case p.accept("AGGREGATE"):
		s, err = p.aggregateOver()
	case !p.accept("SELECT"):
		return nil, p.expected("SELECT or AGGREGATE")
	case p.atAggregation():
		rest = "FROM, WHERE (in this order) or " + rest
		s, err = p.selectAggregations()
	default:
		rest = "a clause (" + clauses + ") or " + rest
		s = new(Statement)
		s.Query, err = p.query()
	}
	if err != nil {
		return nil, err
	}
	if p.tok.kind != end {
		return nil, p.expected(rest)
	}
	return s, nil
}

// query reads the rest of a query, after the word SELECT.
func (p *parser) query() (*pb.Query, error) {
	q := new(pb.Query)
	if err := p.selection(q); err != nil {
		return nil, err
	}
	if err := p.source(q); err != nil {
		return nil, err
	}
	if p.tok.is("GROUP") {
		return nil, p.errorAt(p.tok, "GROUP BY is not supported; DISTINCT ON is")
	}
	if p.accept("ORDER") {
		if err := p.orders(q); err != nil {
			return nil, err
		}
	}
	if p.accept("LIMIT") {
		if err := p.limit(q); err != nil {
			return nil, err
		}
	}
	if p.accept("OFFSET") {
		if err := p.offset(q); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// selection parses the list of properties that a query returns, and stores it in q. DISTINCT
// without ON applies to all of these properties.
func (p *parser) selection(q *pb.Query) (err error) {
	distinct := p.accept("DISTINCT")
	on := distinct && p.accept("ON")
	if on {
		if err := p.expect("("); err != nil {
			return err
		}
		if q.DistinctOn, err = p.properties(); err != nil {
			return err
		}
		if err := p.expect(")"); err != nil {
			return err
		}
	}
	if p.tok.is("*") {
		if distinct && !on {
			return p.expected("ON or a property after DISTINCT")
		}
		p.advance()
		return nil
	}
	if !p.tok.isName() && p.tok.kind != keyword {
		return p.expected("* or a property")
	}
	selected, err := p.properties()
	if err != nil {
		return err
	}
	for _, property := range selected {
		q.Projection = append(q.Projection, &pb.Projection{Property: property})
	}
	if distinct && !on {
		q.DistinctOn = selected
	}
	return nil
}

// source parses FROM and WHERE, and stores them in q. A query without FROM is over all kinds.
func (p *parser) source(q *pb.Query) (err error) {
	if p.accept("FROM") {
		kind, err := p.name("a kind")
		if err != nil {
			return err
		}
		q.Kind = []*pb.KindExpression{{Name: kind}}
	}
	if p.accept("WHERE") {
		q.Filter, err = p.filter()
	}
	return err
}

func (p *parser) orders(q *pb.Query) error {
	if err := p.expect("BY"); err != nil {
		return err
	}
	for {
		property, err := p.property()
		if err != nil {
			return err
		}
		direction := pb.PropertyOrder_ASCENDING
		if p.accept("DESC") {
			direction = pb.PropertyOrder_DESCENDING
		} else {
			p.accept("ASC")
		}
		q.Order = append(q.Order, &pb.PropertyOrder{Property: property, Direction: direction})
		if !p.accept(",") {
			return nil
		}
	}
}
