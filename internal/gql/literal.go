package gql

import (
	"encoding/base64"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func null() *pb.Value {
	return &pb.Value{ValueType: &pb.Value_NullValue{NullValue: structpb.NullValue_NULL_VALUE}}
}

// atValue reports whether the next token starts a value.
func (p *parser) atValue() bool {
	switch p.tok.kind {
	case str, integer, double, named, positional:
		return true
	case word:
		return p.ahead.is("(")
	default:
		return p.tok.is("TRUE") || p.tok.is("FALSE") || p.tok.is("NULL")
	}
}

// otherwise says how GQL writes what has the given sign in the place of a value in SQL or Go.
var otherwise = map[string]string{
	"(": "a list is written ARRAY(...)", "=": "equality is written with one =", ">": "other values are written !=",
}

// value reads a value: a binding site or a literal.
func (p *parser) value() (*pb.Value, error) {
	switch p.tok.kind {
	case named, positional:
		return p.boundValue(p.advance())
	case word:
		return p.call()
	}
	if hint := otherwise[p.tok.value]; hint != "" && p.tok.kind == sign {
		return nil, p.errorAt(p.tok, "expected a value, got %s: %s", p.tok, hint)
	}
	if !p.atValue() {
		return nil, p.expected("a value")
	}
	t := p.advance()
	if err := p.literal(t); err != nil {
		return nil, err
	}
	switch t.kind {
	case str:
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: t.value}}, nil
	case integer:
		n, err := p.integer(t)
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}, err
	case double:
		f, err := p.double(t)
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}}, err
	}
	if t.is("NULL") {
		return null(), nil
	}
	return &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: t.is("TRUE")}}, nil
}

func (p *parser) integer(t token) (int64, error) {
	n, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil {
		return 0, p.errorAt(t, "the integer %s does not fit into 64 bits", t)
	}
	return n, nil
}

// double returns a token's number. A number that is too large becomes infinity.
func (p *parser) double(t token) (float64, error) {
	f, err := strconv.ParseFloat(t.text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, p.errorAt(t, "%s is not a number", t)
	}
	return f, nil
}

// call reads a literal with a name and parentheses, such as KEY(Account, 5). The reference calls
// these synthetic literals.
func (p *parser) call() (*pb.Value, error) {
	var read func() (*pb.Value, error)
	switch {
	case p.calls("ARRAY"):
		read = p.array
	case p.calls("BLOB"):
		read = p.blob
	case p.calls("DATETIME"):
		read = p.datetime
	case p.calls("KEY"):
		read = p.key
	default:
		return nil, p.expected("a value (a literal, a binding, or ARRAY, BLOB, DATETIME or KEY with parentheses)")
	}
	if err := p.literal(p.advance()); err != nil {
		return nil, err
	}
	p.advance()
	v, err := read()
	if err != nil {
		return nil, err
	}
	return v, p.expect(")")
}

// array reads the values in the parentheses of an ARRAY literal. An array can't contain arrays.
func (p *parser) array() (*pb.Value, error) {
	array := new(pb.ArrayValue)
	v := &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: array}}
	if p.tok.is(")") {
		return v, nil
	}
	for {
		t := p.tok
		if p.calls("ARRAY") {
			return nil, p.errorAt(t, "an array can't hold an array")
		}
		element, err := p.value()
		if err != nil {
			return nil, err
		}
		if _, array := element.ValueType.(*pb.Value_ArrayValue); array {
			return nil, p.errorAt(t, "an array can't hold an array, and %s is bound to one", t)
		}
		array.Values = append(array.Values, element)
		if !p.accept(",") {
			return v, nil
		}
	}
}

// string reads the string in the parentheses of a literal, such as BLOB("…"). The parameter what
// describes the string, for errors.
func (p *parser) string(what string) (token, error) {
	if p.tok.kind != str {
		return token{}, p.expected("a string: " + what)
	}
	return p.advance(), nil
}

// blob reads the string of a BLOB literal: bytes in the URL-safe base64 of RFC 4648, without
// padding. It refuses line breaks, which Go's decoder would ignore.
func (p *parser) blob() (*pb.Value, error) {
	t, err := p.string("web-safe base64")
	if err != nil {
		return nil, err
	}
	b, err := base64.RawURLEncoding.DecodeString(t.value)
	if err != nil || strings.ContainsAny(t.value, "\r\n") {
		return nil, p.errorAt(t, "%s is not web-safe base64 without padding", t)
	}
	return &pb.Value{ValueType: &pb.Value_BlobValue{BlobValue: b}}, nil
}

// datetimeForm matches the times that a DATETIME literal accepts: RFC 3339 with at most six
// decimals, because Datastore stores microseconds.
var datetimeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$`)

func (p *parser) datetime() (*pb.Value, error) {
	t, err := p.string("a time as RFC 3339 has it")
	if err != nil {
		return nil, err
	}
	text := strings.ToUpper(t.value)
	if !datetimeForm.MatchString(text) {
		return nil, p.errorAt(t, "%s is not a time as in 2006-01-02T15:04:05.999999Z or ...-07:00", t)
	}
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, p.errorAt(t, "%s is not a time that exists", t)
	}
	stamp := timestamppb.New(parsed)
	if stamp.CheckValid() != nil {
		return nil, p.errorAt(t, "%s is not in the years 1 to 9999", t)
	}
	return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: stamp}}, nil
}
