package gql

import (
	"fmt"
	"unicode/utf8"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// A Statement is a parsed GQL query. The values of its bindings are shared with the request, and
// not copied.
type Statement struct {
	Query        *pb.Query
	Aggregations []*pb.AggregationQuery_Aggregation // the aggregations, or nil if the query has none
}

// Parse parses the query q with its bindings. KEY literals without a project, database or namespace
// get it from partition, which is the request's partition and may be nil. An error says at which
// place of the query the fault is, and what was expected there.
func Parse(q *pb.GqlQuery, partition *pb.PartitionId) (*Statement, error) {
	text := q.GetQueryString()
	if !utf8.ValidString(text) {
		return nil, positioned(text, invalidUTF8(text), "the query is not valid UTF-8")
	}
	bindings, err := newBindings(q)
	if err != nil {
		return nil, err
	}
	p := &parser{
		lexer:     lexer{text: text},
		bindings:  bindings,
		literals:  q.GetAllowLiterals(),
		partition: partition,
	}
	p.tok, p.ahead = p.next(), p.next()
	s, err := p.statement()
	if err != nil {
		return nil, err
	}
	if err := bindings.unused(); err != nil {
		return nil, err
	}
	return s, nil
}

func invalidUTF8(s string) int {
	for i, r := range s {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
			return i
		}
	}
	return len(s)
}

// positioned returns an error with the line and the column of a byte offset in a query. Both start
// at 1. The column counts characters.
func positioned(text string, at int, format string, args ...any) error {
	line, column := 1, 1
	for _, r := range text[:at] {
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return fmt.Errorf("GQL query, line %d, column %d: %s", line, column, fmt.Sprintf(format, args...))
}
