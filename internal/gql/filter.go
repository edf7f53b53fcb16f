package gql

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// filter reads conditions joined by AND and OR. A chain of conditions with the same operator
// becomes one composite filter. A chain in parentheses becomes a separate filter.
func (p *parser) filter() (*pb.Filter, error) {
	return p.chain("OR", pb.CompositeFilter_OR, func() (*pb.Filter, error) {
		return p.chain("AND", pb.CompositeFilter_AND, p.condition)
	})
}

func (p *parser) chain(
	joint string, op pb.CompositeFilter_Operator, link func() (*pb.Filter, error),
) (*pb.Filter, error) {
	var links []*pb.Filter
	for {
		f, err := link()
		if err != nil {
			return nil, err
		}
		links = append(links, f)
		if !p.accept(joint) {
			break
		}
	}
	if len(links) == 1 {
		return links[0], nil
	}
	return &pb.Filter{FilterType: &pb.Filter_CompositeFilter{
		CompositeFilter: &pb.CompositeFilter{Op: op, Filters: links},
	}}, nil
}

func (p *parser) condition() (*pb.Filter, error) {
	switch {
	case p.tok.is("("):
		return p.parenthesised()
	case p.atValue():
		return p.valueFirst()
	case p.tok.isName():
		return p.propertyFirst()
	default:
		return nil, p.expected("a property, a value or ( in a filter")
	}
}

func (p *parser) parenthesised() (*pb.Filter, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, p.errorAt(p.tok, "parentheses nest deeper than %d", maxDepth)
	}
	p.advance()
	f, err := p.filter()
	if err != nil {
		return nil, err
	}
	p.depth--
	if !p.accept(")") {
		return nil, p.expected("AND, OR or )")
	}
	return f, nil
}

// comparators are the operators between a property and a value, in either order. If the value comes
// first, the operator is mirrored: "1 < p" means p > 1.
var comparators = map[string]struct{ plain, mirrored pb.PropertyFilter_Operator }{
	"=":  {pb.PropertyFilter_EQUAL, pb.PropertyFilter_EQUAL},
	"!=": {pb.PropertyFilter_NOT_EQUAL, pb.PropertyFilter_NOT_EQUAL},
	"<":  {pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_GREATER_THAN},
	"<=": {pb.PropertyFilter_LESS_THAN_OR_EQUAL, pb.PropertyFilter_GREATER_THAN_OR_EQUAL},
	">":  {pb.PropertyFilter_GREATER_THAN, pb.PropertyFilter_LESS_THAN},
	">=": {pb.PropertyFilter_GREATER_THAN_OR_EQUAL, pb.PropertyFilter_LESS_THAN_OR_EQUAL},
}

// propertyFirst reads a condition that starts with a property, such as p = 1.
func (p *parser) propertyFirst() (*pb.Filter, error) {
	property, err := p.property()
	if err != nil {
		return nil, err
	}
	var op pb.PropertyFilter_Operator
	comparator, compares := comparators[p.tok.value]
	switch {
	case p.accept("IS"):
		return p.isNull(property)
	case p.tok.kind == sign && compares:
		p.advance()
		op = comparator.plain
	case p.accept("CONTAINS"), p.accept("IN"):
		op = pb.PropertyFilter_IN
	case p.accept("NOT"):
		if err := p.expect("IN"); err != nil {
			return nil, err
		}
		op = pb.PropertyFilter_NOT_IN
	case p.accept("HAS"):
		if err := p.expect("ANCESTOR"); err != nil {
			return nil, err
		}
		op = pb.PropertyFilter_HAS_ANCESTOR
	default:
		return nil, p.expected("a comparator (=, !=, <, <=, >, >=, IS NULL, IN, NOT IN, CONTAINS or HAS ANCESTOR)")
	}
	value, err := p.value()
	if err != nil {
		return nil, err
	}
	return propertyFilter(property, op, value), nil
}

func (p *parser) isNull(property *pb.PropertyReference) (*pb.Filter, error) {
	t := p.tok
	if t.is("NOT") {
		return nil, p.errorAt(t, "expected NULL, got %s: values other than null are written > NULL", t)
	}
	if err := p.expect("NULL"); err != nil {
		return nil, err
	}
	return propertyFilter(property, pb.PropertyFilter_EQUAL, null()), p.literal(t)
}

// valueFirst reads a condition that starts with a value, such as 1 = p.
func (p *parser) valueFirst() (*pb.Filter, error) {
	value, err := p.value()
	if err != nil {
		return nil, err
	}
	var op pb.PropertyFilter_Operator
	comparator, compares := comparators[p.tok.value]
	switch {
	case p.tok.kind == sign && compares:
		p.advance()
		op = comparator.mirrored
	case p.accept("IN"):
		op = pb.PropertyFilter_IN
	case p.accept("HAS"):
		if err := p.expect("DESCENDANT"); err != nil {
			return nil, err
		}
		op = pb.PropertyFilter_HAS_ANCESTOR
	default:
		return nil, p.expected("a comparator that can follow a value (=, !=, <, <=, >, >=, IN or HAS DESCENDANT)")
	}
	property, err := p.property()
	if err != nil {
		return nil, err
	}
	return propertyFilter(property, op, value), nil
}

// propertyFilter returns the filter for a property, an operator and a value. If the value is not an
// array, the operator IN becomes "=". In early GQL, IN had only this meaning: it asked whether an
// array property contains the value.
func propertyFilter(property *pb.PropertyReference, op pb.PropertyFilter_Operator, value *pb.Value) *pb.Filter {
	if _, array := value.GetValueType().(*pb.Value_ArrayValue); op == pb.PropertyFilter_IN && !array {
		op = pb.PropertyFilter_EQUAL
	}
	return &pb.Filter{FilterType: &pb.Filter_PropertyFilter{
		PropertyFilter: &pb.PropertyFilter{Property: property, Op: op, Value: value},
	}}
}
