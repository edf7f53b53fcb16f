package gql_test

import (
	"maps"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
)

// An invalidCase is an invalid query, and the text of the error.
type invalidCase struct {
	text       string
	want       string
	positional []string
	crashes    bool // whether Google's emulator crashes, and so answers Unknown
}

func wrong(condition, want string) invalidCase {
	return invalidCase{text: "SELECT * FROM k WHERE " + condition, want: want}
}

var invalidQueries = []invalidCase{
	{text: "", want: "line 1, column 1: expected SELECT or AGGREGATE, got the end of the query"},
	{text: " \n ", want: "line 2, column 2: expected SELECT"},
	{text: "INSERT INTO k", want: `line 1, column 1: expected SELECT or AGGREGATE, got "INSERT"`},
	{text: "SELECT", want: "column 7: expected * or a property, got the end"},
	{text: "SELECT FROM k", want: `expected a property, got the reserved word FROM: as a name it needs backquotes`},
	{text: "SELECT 'a' FROM k", want: `expected * or a property, got "'a'"`},
	{text: "SELECT a, * FROM k", want: `expected a property, got "*"`},
	{text: "SELECT *, a FROM k",
		want: `expected a clause (FROM, WHERE, ORDER BY, LIMIT, OFFSET: in this order) or the end of the query, ` +
			`got ","`},
	{text: "SELECT a AS b FROM k", want: `expected a clause`},
	{text: "SELECT DISTINCT * FROM k", want: "column 17: expected ON or a property after DISTINCT"},
	{text: "SELECT DISTINCT ON a * FROM k", want: `expected "(", got "a"`},
	{text: "SELECT DISTINCT ON () * FROM k", want: `expected a property, got ")"`},
	{text: "SELECT DISTINCT ON (a b) * FROM k", want: `expected ")", got "b"`},
	{text: "SELECT FIRST(a) FROM k", want: `expected a clause`, crashes: true},
	{text: "SELECT * FROM", want: "expected a kind, got the end of the query"},
	{text: "SELECT * FROM 'k'", want: "expected a kind"},
	{text: "SELECT * FROM k.l", want: `got "."`},
	{text: "SELECT * FROM select", want: "reserved word select"},
	{text: "SELECT * FROM @s", want: "expected a kind"},
	{text: "SELECT * FROM k WHERE", want: "expected a property, a value or ( in a filter, got the end"},
	{text: "SELECT * FROM k ORDER a", want: `expected BY, got "a"`},
	{text: "SELECT * FROM k ORDER BY", want: "expected a property, got the end"},
	{text: "SELECT * FROM k ORDER BY a,", want: "expected a property, got the end"},
	{text: "SELECT * FROM k GROUP BY a", want: "GROUP BY is not supported"},
	{text: "SELECT * FROM k LIMIT 5 WHERE a = 1",
		want: `expected a clause (FROM, WHERE, ORDER BY, LIMIT, OFFSET: in this order) or the end of the query, got ` +
			`"WHERE"`},
	{text: "SELECT * FROM k OFFSET 5 LIMIT 5", want: `got "LIMIT"`},
	{text: "SELECT * FROM k;", want: `column 16: the character ";" has no meaning here`},
}

var invalidPositions = []invalidCase{
	{text: "SELECT * FROM k LIMIT", want: "expected an integer or a binding for LIMIT, got the end"},
	{text: "SELECT * FROM k LIMIT 5.0", want: `expected an integer or a binding for LIMIT, got "5.0"`},
	{text: "SELECT * FROM k LIMIT -1", want: "the LIMIT is from 0 to 2147483647, not -1"},
	{text: "SELECT * FROM k LIMIT 2147483648", want: "not 2147483648"},
	{text: "SELECT * FROM k LIMIT 99999999999999999999", want: "does not fit into 64 bits"},
	{text: "SELECT * FROM k LIMIT @s",
		want: `expected an integer or a cursor for LIMIT, but "@s" is bound to another value`},
	{text: "SELECT * FROM k LIMIT 5, 3", want: `got ","`},
	{text: "SELECT * FROM k LIMIT FIRST(1, 2)",
		want: `expected a number of results and a cursor for LIMIT FIRST, got "2" after "1"`},
	{text: "SELECT * FROM k LIMIT FIRST(@c, @c)", want: "expected a number of results and a cursor"},
	{text: "SELECT * FROM k LIMIT FIRST(1 @c)", want: `expected ",", got "@c"`},
	{text: "SELECT * FROM k LIMIT FIRST(1, @c", want: `expected ")", got the end`},
	{text: "SELECT * FROM k OFFSET 1 + 2", want: `+ can only follow a cursor, and "1" is a number`},
	{text: "SELECT * FROM k OFFSET @i + 2", want: `+ can only follow a cursor, and "@i" is a number`},
	{text: "SELECT * FROM k OFFSET @c +2", want: `got "+2"`},
	{text: "SELECT * FROM k OFFSET @c + @c",
		want: `expected a number of results after +, but "@c" is bound to a cursor`},
	{text: "SELECT * FROM k OFFSET @c + -1", want: "the OFFSET is from 0"},
}

var invalidFilters = []invalidCase{
	wrong("()", `expected a property, a value or ( in a filter, got ")"`),
	wrong("(a = 1", "expected AND, OR or ), got the end"),
	wrong("a = 1)", `got ")"`),
	wrong("a = 1 AND", "got the end"),
	wrong("a = 1 b = 2", `got "b"`),
	wrong("NOT a = 1", `got "NOT"`),
	wrong("a", "expected a comparator (=, !=, <, <=, >, >=, IS NULL, IN, NOT IN, CONTAINS or HAS ANCESTOR), got "+
		"the end"),
	wrong("a <> 3", `expected a value, got ">": other values are written !=`),
	wrong("a == 3", `expected a value, got "=": equality is written with one =`),
	wrong("a LIKE 'x'", `expected a comparator`),
	wrong("a IS 1", `expected NULL, got "1"`),
	wrong("a IS NOT NULL", `expected NULL, got "NOT": values other than null are written > NULL`),
	wrong("a NOT 1", `expected IN, got "1"`),
	wrong("a IN (1, 2)", `expected a value, got "(": a list is written ARRAY(...)`),
	wrong("a HAS DESCENDANT KEY(A, 1)", `expected ANCESTOR, got "DESCENDANT"`),
	wrong("KEY(A, 1) HAS ANCESTOR __key__", `expected DESCENDANT, got "ANCESTOR"`),
	wrong("ARRAY(1) NOT IN a", `expected a comparator that can follow a value`),
	wrong("'x' CONTAINS a", `expected a comparator that can follow a value`),
	wrong("1 = 1", `expected a property, got "1"`),
	wrong("a = b",
		`expected a value (a literal, a binding, or ARRAY, BLOB, DATETIME or KEY with parentheses), got "b"`),
	wrong("a = `b`", "expected a value, got \"`b`\""),
	wrong("a.select = 1", "got the reserved word select"),
	wrong("a. = 1", `expected a property, got "="`),
	wrong("a.1 = 1", `expected a comparator`),
}

var invalidLiterals = []invalidCase{
	wrong("a = FOO('x')", `got "FOO"`),
	wrong("a = KEY", `got "KEY"`),
	wrong("a = 9223372036854775808", `the integer "9223372036854775808" does not fit into 64 bits`),
	wrong("a = 1e", `"1e" is not a number`),
	wrong("a = 0x10", `got "x10"`),
	wrong("a = 'x", `column 27: a string has no end: expected a closing '`),
	wrong("a = 'x\ny'", `column 29: a string ends on the line it starts on`),
	wrong(`a = '\q'`, `column 28: "\\q" is not an escape sequence`),
	wrong(`a = '\`, `a string has no end`),
	wrong("`a = 1", "a name has no end: expected a closing `"),
	wrong("`` = 1", "a name is empty"),
	wrong("a-b = 1", "a minus sign is only part of a number"),
	wrong("a = 1 #", `the character "#" has no meaning here`),
	wrong("a\f= 1", `the character "\f" has no meaning here`),
	wrong("a = ARRAY(1", `expected ")", got the end`),
	wrong("a = ARRAY(1,)", `expected a value, got ")"`),
	wrong("a IN ARRAY(ARRAY(1))", "an array can't hold an array"),
	wrong("a IN ARRAY(@list)", `an array can't hold an array, and "@list" is bound to one`),
	wrong("a = BLOB(1)", `expected a string: web-safe base64, got "1"`),
	wrong("a = BLOB('aGk=')", "is not web-safe base64 without padding"),
	wrong("a = BLOB('+/+/')", "is not web-safe base64 without padding"),
	wrong(`a = BLOB('aG\nk')`, "is not web-safe base64 without padding"),
	wrong("a = BLOB(@s)", "expected a string"),
	wrong("a = DATETIME(1)", `expected a string: a time as RFC 3339 has it, got "1"`),
	wrong("a = DATETIME('2013-09-29')", "is not a time as in 2006-01-02T15:04:05.999999Z"),
	wrong("a = DATETIME('2013-09-29T09:30:20')", "is not a time as in"),
	wrong("a = DATETIME('2013-09-29T09:30:20.1234567Z')", "is not a time as in"),
	wrong("a = DATETIME('2013-13-29T09:30:20Z')", "is not a time that exists"),
	wrong("a = DATETIME('2016-12-31T23:59:60Z')", "is not a time that exists"),
	wrong("a = DATETIME('0000-01-01T00:00:00Z')", "is not in the years 1 to 9999"),
	wrong("a = KEY()", `expected a kind, got ")"`),
	wrong("a = KEY('A', 1)", `expected a kind, got the string "'A'": a kind has no quotes, or backquotes`),
	wrong("a = KEY(A)", `expected ",", got ")"`),
	wrong("a = KEY(A, 'x', B)", `expected ",", got ")"`),
	wrong("a = KEY(A, 1.5)", `expected an id (an integer) or a name (a string), got "1.5"`),
	wrong("a = KEY(A, @i)", `expected an id (an integer) or a name (a string), got "@i"`),
	wrong("a = KEY(A, 0)", "the id of a key is not 0"),
	wrong("a = KEY(A, '')", "the name of a key is not empty"),
	wrong("a = KEY(PROJECT('q'))", `expected ",", got ")"`),
	wrong("a = KEY(PROJECT(q), A, 1)", `expected a string: the name of a project, got "q"`),
	wrong("a = KEY(NAMESPACE('n'), PROJECT('q'), A, 1)",
		`in this order, PROJECT, DATABASE and NAMESPACE, got "PROJECT"`),
	wrong("a = KEY(PROJECT('p'), PROJECT('p'), A, 1)", `once each`),
	wrong("a = KEY(DATASET('q'), A, 1)", `got "DATASET"`),
	wrong("a = KEY(A, 1", `expected ")", got the end`),
}

var invalidBindings = []invalidCase{
	wrong("a = @", "@ is followed by a name or a number"),
	wrong("a = @ i", "@ is followed by a name or a number"),
	wrong("a = @absent", `column 27: nothing is bound to "@absent"`),
	wrong("a = @c", `expected a value, but "@c" is bound to a cursor`),
	wrong("a = @1", `nothing is bound to "@1": positional bindings: 0`),
	{text: "SELECT * FROM k WHERE a = @2", positional: []string{"i"},
		want: `nothing is bound to "@2": positional bindings: 1`},
	{text: "SELECT * FROM k WHERE a = @0", positional: []string{"i"}, want: "positional bindings count from @1"},
	{text: "SELECT * FROM k WHERE a = @99999999999999999999", positional: []string{"i"}, want: "nothing is bound"},
	{text: "SELECT * FROM k WHERE a = @1", positional: []string{"i", "i"},
		want: "binding 2 is not used: the query has no @2"},
	{text: "SELECT * FROM k WHERE a = @2", positional: []string{"i", "i"},
		want: "binding 1 is not used: the query has no @1"},
	{text: "SELECT * FROM k", positional: []string{"i"}, want: "binding 1 is not used"},
}

var invalidAggregations = []invalidCase{
	{text: "AGGREGATE", want: "expected COUNT, COUNT_UP_TO, SUM or AVG, got the end"},
	{text: "AGGREGATE COUNT(*)", want: "expected OVER, got the end"},
	{text: "AGGREGATE COUNT(*) OVER SELECT * FROM k", want: `expected "(", got "SELECT"`},
	{text: "AGGREGATE COUNT(*) OVER (SELECT * FROM k", want: "or the ) of OVER, got the end"},
	{text: "AGGREGATE COUNT(*) OVER (SELECT * FROM k) x", want: `expected the end of the query, got "x"`},
	{text: "AGGREGATE COUNT(*) OVER (SELECT COUNT(*) FROM k)", want: `not another aggregation: "COUNT"`, crashes: true},
	{text: "AGGREGATE COUNT(*) x OVER (SELECT * FROM k)", want: `expected OVER, got "x"`},
	{text: "AGGREGATE COUNT(*) AS 'x' OVER (SELECT * FROM k)", want: `expected an alias, got "'x'"`},
	{text: "AGGREGATE SUM(*) OVER (SELECT * FROM k)", want: `expected a property, got "*"`},
	{text: "AGGREGATE COUNT_UP_TO(-1) OVER (SELECT * FROM k)", want: "expected an integer from 0 for COUNT_UP_TO"},
	{text: "AGGREGATE COUNT_UP_TO(@i) OVER (SELECT * FROM k)", want: `expected an integer, got "@i"`},
	{text: "SELECT COUNT(a) FROM k", want: `expected * (COUNT is of whole entities), got "a"`},
	{text: "SELECT COUNT FROM k", want: `expected "(", got "FROM"`},
	{text: "SELECT COUNT(*), a FROM k", want: `expected COUNT, COUNT_UP_TO, SUM or AVG, got "a"`},
	{text: "SELECT a, COUNT(*) FROM k", want: "got the reserved word COUNT", crashes: true},
	{text: "SELECT MIN(a) FROM k", want: "expected a clause"},
	{text: "SELECT COUNT(*) AS a.b FROM k", want: `got "."`},
	{text: "SELECT COUNT(*) AS sum FROM k", want: "got the reserved word sum"},
	{text: "SELECT COUNT(*) FROM k LIMIT 3", want: "LIMIT needs the long form: AGGREGATE ... OVER"},
	{text: "SELECT COUNT(*) FROM k GROUP BY a", want: `or the end of the query, got "GROUP"`},
}

func TestParseErrors(t *testing.T) {
	for _, cases := range [][]invalidCase{
		invalidQueries, invalidPositions, invalidFilters, invalidLiterals, invalidBindings, invalidAggregations,
	} {
		for _, c := range cases {
			t.Run(c.text, func(t *testing.T) {
				s, err := gql.Parse(request(c.text, c.positional), partition)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, %v, want an error with: %s", s, err, c.want)
				}
			})
		}
	}
}

func TestLiteralsNotAllowed(t *testing.T) {
	for text, literal := range map[string]string{
		"SELECT * FROM k WHERE a = 1":                             "1",
		"SELECT * FROM k WHERE a = 'x'":                           "'x'",
		"SELECT * FROM k WHERE a = 1.5":                           "1.5",
		"SELECT * FROM k WHERE a = true":                          "true",
		"SELECT * FROM k WHERE NULL = a":                          "NULL",
		"SELECT * FROM k WHERE a IS NULL":                         "NULL",
		"SELECT * FROM k WHERE a IN ARRAY(@i)":                    "ARRAY",
		"SELECT * FROM k WHERE a = KEY(A, 1)":                     "KEY",
		"SELECT * FROM k WHERE a = BLOB('aGk')":                   "BLOB",
		"SELECT * FROM k WHERE a = DATETIME('x')":                 "DATETIME",
		"SELECT * FROM k LIMIT 1":                                 "1",
		"SELECT * FROM k LIMIT FIRST(1, @c)":                      "1",
		"SELECT * FROM k OFFSET 1":                                "1",
		"SELECT * FROM k OFFSET @c + 1":                           "1",
		"SELECT COUNT_UP_TO(5) FROM k":                            "5",
		"AGGREGATE COUNT(*) OVER (SELECT * FROM k WHERE a = 'x')": "'x'",
	} {
		q := request(text, nil)
		q.AllowLiterals = false
		_, err := gql.Parse(q, partition)
		if err == nil || !strings.Contains(err.Error(), `the literal "`+literal+`" is not allowed`) {
			t.Errorf("%s: got %v, want an error about the literal %s", text, err, literal)
		}
	}
	q := request("SELECT DISTINCT a FROM k WHERE a IN @list AND @s = b ORDER BY a LIMIT FIRST(@i, @c) OFFSET @c + @i",
		nil)
	q.AllowLiterals = false
	if _, err := gql.Parse(q, partition); err != nil {
		t.Error(err)
	}
}

func TestBindingsThemselves(t *testing.T) {
	cases := map[string]struct {
		parameter *pb.GqlQueryParameter
		want      string
	}{
		"":      {bound["i"], "its name does not match"},
		"1y":    {bound["i"], "its name does not match"},
		"ü":     {bound["i"], "its name does not match"},
		"__y__": {bound["i"], "are reserved"},
		"empty": {&pb.GqlQueryParameter{}, "holds neither a value nor a cursor"},
		"none":  {nil, "holds neither a value nor a cursor"},
		"typed": {&pb.GqlQueryParameter{ParameterType: &pb.GqlQueryParameter_Value{}}, "holds a value without a type"},
		"value": {parameter("value { }"), "holds a value without a type"},
	}
	for name, c := range cases {
		q := request("SELECT * FROM k", nil)
		q.NamedBindings = maps.Clone(q.NamedBindings)
		q.NamedBindings[name] = c.parameter
		if _, err := gql.Parse(q, partition); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want an error with: %s", name, err, c.want)
		}
		q = request("SELECT * FROM k WHERE a = @1", nil)
		q.PositionalBindings = []*pb.GqlQueryParameter{c.parameter}
		if _, err := gql.Parse(q, partition); (err == nil) != (c.parameter == bound["i"]) {
			t.Errorf("%q as a positional binding: got %v", name, err)
		}
	}
	if _, err := gql.Parse(request("SELECT * FROM k WHERE a = @__", nil), partition); err == nil {
		t.Error("@__ is not bound, and was accepted")
	}
}

func TestErrorPosition(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT *\nFROM k\nWHERE a = ": "line 3, column 11: ",
		"SELECT * FROM ü WHERE ü ? 1":  "line 1, column 25: ",
		"SELECT * FROM \xff":           "line 1, column 15: the query is not valid UTF-8",
	} {
		if _, err := gql.Parse(request(text, nil), partition); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	long := "SELECT * FROM k WHERE " + strings.Repeat("ü", 10000)
	if _, err := gql.Parse(request(long+" "+long, nil), partition); err == nil || len(err.Error()) > 400 {
		t.Errorf("got %v, want a short error", err)
	}
	if _, err := gql.Parse(nil, nil); err == nil {
		t.Error("no query at all was accepted")
	}
}
