package gql

import (
	"math"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A position is an operand of LIMIT or OFFSET: a number of results, or a cursor.
type position struct {
	token
	count    int32
	cursor   []byte
	isCursor bool
}

// position reads an operand of LIMIT or OFFSET. The parameter clause is one of these two words, for
// errors.
func (p *parser) position(clause string) (position, error) {
	var n int64
	pos := position{token: p.tok}
	switch t := p.tok; t.kind {
	case integer:
		p.advance()
		if err := p.literal(t); err != nil {
			return pos, err
		}
		var err error
		if n, err = p.integer(t); err != nil {
			return pos, err
		}
	case named, positional:
		p.advance()
		parameter, err := p.parameter(t)
		if err != nil {
			return pos, err
		}
		if bound, ok := parameter.GetParameterType().(*pb.GqlQueryParameter_Cursor); ok {
			pos.cursor, pos.isCursor = bound.Cursor, true
			return pos, nil
		}
		bound, ok := parameter.GetValue().GetValueType().(*pb.Value_IntegerValue)
		if !ok {
			return pos, p.errorAt(t, "expected an integer or a cursor for %s, but %s is bound to another value", clause,
				t)
		}
		n = bound.IntegerValue
	default:
		return pos, p.expected("an integer or a binding for " + clause)
	}
	if n < 0 || n > math.MaxInt32 {
		return pos, p.errorAt(pos.token, "the %s is from 0 to %d, not %d", clause, math.MaxInt32, n)
	}
	pos.count = int32(n)
	return pos, nil
}

// limit parses the text after LIMIT, and stores it in q. The text is the largest number of results,
// or a cursor at which the query ends. LIMIT FIRST has both, and the query ends at the one that it
// reaches first.
func (p *parser) limit(q *pb.Query) error {
	if !p.calls("FIRST") {
		at, err := p.position("LIMIT")
		if err != nil {
			return err
		}
		limitAt(q, at)
		return nil
	}
	p.advance()
	p.advance()
	first, err := p.position("LIMIT")
	if err != nil {
		return err
	}
	if err := p.expect(","); err != nil {
		return err
	}
	second, err := p.position("LIMIT")
	if err != nil {
		return err
	}
	if first.isCursor == second.isCursor {
		return p.errorAt(second.token,
			"expected a number of results and a cursor for LIMIT FIRST, got %s after %s of the same sort",
			second.token, first.token)
	}
	limitAt(q, first)
	limitAt(q, second)
	return p.expect(")")
}

func limitAt(q *pb.Query, at position) {
	if at.isCursor {
		q.EndCursor = at.cursor
	} else {
		q.Limit = wrapperspb.Int32(at.count)
	}
}

// offset parses the text after OFFSET, and stores the number of results to skip in q. They are
// counted from the first result, or from a cursor.
func (p *parser) offset(q *pb.Query) error {
	from, err := p.position("OFFSET")
	if err != nil {
		return err
	}
	if !from.isCursor {
		q.Offset = from.count
		if p.tok.is("+") {
			return p.errorAt(p.tok, "+ can only follow a cursor, and %s is a number", from.token)
		}
		return nil
	}
	q.StartCursor = from.cursor
	if !p.accept("+") {
		return nil
	}
	skip, err := p.position("OFFSET")
	if err != nil {
		return err
	}
	if skip.isCursor {
		return p.errorAt(skip.token, "expected a number of results after +, but %s is bound to a cursor", skip.token)
	}
	q.Offset = skip.count
	return nil
}
