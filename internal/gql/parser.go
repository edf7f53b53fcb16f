package gql

import (
	"strconv"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// maxDepth limits nested parentheses in a filter. It is far more than people write. It keeps the
// stack of this parser small, and the stacks of functions that walk the filter later. All other
// rules nest a fixed number of times.
const maxDepth = 100

// A parser reads one statement. Each of its methods reads one rule of the grammar: it starts at
// tok, and leaves tok after the rule.
type parser struct {
	lexer
	tok   token // the next token
	ahead token // the token after tok

	bindings  *bindings
	literals  bool // whether literals are allowed
	partition *pb.PartitionId
	depth     int // number of open parentheses in a filter
}

// advance returns tok, and makes the next token tok.
func (p *parser) advance() token {
	t := p.tok
	p.tok, p.ahead = p.ahead, p.next()
	return t
}

// accept advances if tok is the given keyword or sign, and reports whether it did.
func (p *parser) accept(value string) bool {
	if !p.tok.is(value) {
		return false
	}
	p.advance()
	return true
}

// expect advances over the given keyword or sign, or returns an error.
func (p *parser) expect(value string) error {
	switch {
	case p.accept(value):
		return nil
	case keywords[value]:
		return p.expected(value)
	default:
		return p.expected(strconv.Quote(value))
	}
}

// errorAt returns an error about a token.
func (p *parser) errorAt(t token, format string, args ...any) error {
	return positioned(p.text, t.at, format, args...)
}

// expected returns the error that tok is not what the grammar requires.
func (p *parser) expected(what string) error {
	if p.tok.kind == invalid {
		return p.tok.err
	}
	return p.errorAt(p.tok, "expected %s, got %s", what, p.tok)
}

// literal returns an error if the query has to bind its values.
func (p *parser) literal(t token) error {
	if p.literals {
		return nil
	}
	return p.errorAt(t, "the literal %s is not allowed: bind the value, or set allow_literals", t)
}

// calls reports whether tok is a given word and a parenthesis follows. Such words have a meaning
// only before a parenthesis, and are not reserved.
func (p *parser) calls(name string) bool {
	return p.tok.kind == word && p.ahead.is("(") && strings.EqualFold(p.tok.text, name)
}

// name reads a name. An error calls it what.
func (p *parser) name(what string) (string, error) {
	if p.tok.kind == keyword {
		return "", p.errorAt(p.tok, "expected %s, got the reserved word %s: as a name it needs backquotes", what,
			p.tok.text)
	}
	if !p.tok.isName() {
		return "", p.expected(what)
	}
	return p.advance().value, nil
}

// property reads the name of a property. For a property of a nested entity it has several parts,
// which the protocol joins to one name.
func (p *parser) property() (*pb.PropertyReference, error) {
	first, err := p.name("a property")
	if err != nil {
		return nil, err
	}
	if !p.tok.is(".") {
		return &pb.PropertyReference{Name: first}, nil
	}
	parts := []string{first}
	for p.accept(".") {
		part, err := p.name("a property")
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return &pb.PropertyReference{Name: strings.Join(parts, ".")}, nil
}

func (p *parser) properties() ([]*pb.PropertyReference, error) {
	var all []*pb.PropertyReference
	for {
		property, err := p.property()
		if err != nil {
			return nil, err
		}
		all = append(all, property)
		if !p.accept(",") {
			return all, nil
		}
	}
}
