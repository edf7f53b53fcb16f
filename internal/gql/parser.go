package gql

import (
	"strconv"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// maxDepth is the largest depth of nested parentheses in a filter. It limits the recursion of this
// parser, and of functions that later walk the filter. People need far less. Other rules of the
// grammar are not recursive.
const maxDepth = 100

// A parser reads one statement. Each of its methods reads one rule of the grammar. When the method
// starts, tok is the first token of the rule. When it returns, tok is the first token after the
// rule.
type parser struct {
	lexer
	tok   token // the next token
	ahead token // the token after tok

	bindings  *bindings
	literals  bool // whether literals are allowed
	partition *pb.PartitionId
	depth     int // the number of open parentheses in a filter
}

// advance moves to the next token, and returns the token before it.
func (p *parser) advance() token {
	t := p.tok
	p.tok, p.ahead = p.ahead, p.next()
	return t
}

// accept moves to the next token if the present one is the given keyword or sign. It reports
// whether it has moved.
func (p *parser) accept(value string) bool {
	if !p.tok.is(value) {
		return false
	}
	p.advance()
	return true
}

// expect moves to the next token if the present one is the given keyword or sign, and otherwise
// returns an error.
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

// errorAt returns an error with the place of a token in the query.
func (p *parser) errorAt(t token, format string, args ...any) error {
	return positioned(p.text, t.at, format, args...)
}

// expected returns an error about the present token. The parameter what says what the query should
// have in its place.
func (p *parser) expected(what string) error {
	if p.tok.kind == invalid {
		return p.tok.err
	}
	return p.errorAt(p.tok, "expected %s, got %s", what, p.tok)
}

// literal returns an error for the token t, a literal, if literals are not allowed. Then the query
// must use bindings such as @name.
func (p *parser) literal(t token) error {
	if p.literals {
		return nil
	}
	return p.errorAt(t, "the literal %s is not allowed: bind the value, or set allow_literals", t)
}

// calls reports whether the present token is the given word, and the next token an opening
// parenthesis. Such words are ordinary names if no parenthesis follows.
func (p *parser) calls(name string) bool {
	return p.tok.kind == word && p.ahead.is("(") && strings.EqualFold(p.tok.text, name)
}

// name reads the name of a kind, a property or a result. The parameter what says which of these it
// is, for errors.
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

// property reads the name of a property. The name of a nested property has several parts, which the
// protocol joins with dots.
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
