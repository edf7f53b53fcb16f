package gql_test

import "fmt"

// where returns a test case with one condition on the property a.
func where(condition, op, value string) validCase {
	return validCase{
		text: "SELECT * FROM k WHERE " + condition,
		want: kindK + fmt.Sprintf(`filter { %s }`, on("a", op, value)),
	}
}

func on(property, op, value string) string {
	return fmt.Sprintf(`property_filter { property { name: %q } op: %s value { %s } }`, property, op, value)
}

func composite(op string, filters ...string) string {
	text := "composite_filter { op: " + op
	for _, f := range filters {
		text += " filters { " + f + " }"
	}
	return text + " }"
}

func whereAll(condition, want string) validCase {
	return validCase{text: "SELECT * FROM k WHERE " + condition, want: kindK + "filter { " + want + " }"}
}

func unlessRefused(c validCase, why string) validCase {
	c.refused = why
	return c
}

var (
	aIs1   = on("a", "EQUAL", "integer_value: 1")
	bIs2   = on("b", "EQUAL", "integer_value: 2")
	cIsNot = on("c", "NOT_EQUAL", "integer_value: 3")
	dIs4   = on("d", "EQUAL", "integer_value: 4")

	oneTwo = "array_value { values { integer_value: 1 } values { integer_value: 2 } }"
	keyA1  = `key_value { partition_id { project_id: "p" namespace_id: "ns" } path { kind: "A" id: 1 } }`
)

var filters = []validCase{
	where("a = 1", "EQUAL", "integer_value: 1"),
	where("a != 1", "NOT_EQUAL", "integer_value: 1"),
	where("a < 1", "LESS_THAN", "integer_value: 1"),
	where("a <= 1", "LESS_THAN_OR_EQUAL", "integer_value: 1"),
	where("a > 1", "GREATER_THAN", "integer_value: 1"),
	where("a >= 1", "GREATER_THAN_OR_EQUAL", "integer_value: 1"),
	where("1 = a", "EQUAL", "integer_value: 1"),
	where("1 != a", "NOT_EQUAL", "integer_value: 1"),
	where("1 < a", "GREATER_THAN", "integer_value: 1"),
	where("1 <= a", "GREATER_THAN_OR_EQUAL", "integer_value: 1"),
	where("1 > a", "LESS_THAN", "integer_value: 1"),
	where("1 >= a", "LESS_THAN_OR_EQUAL", "integer_value: 1"),
	where("a>-1", "GREATER_THAN", "integer_value: -1"),
	where("a IS NULL", "EQUAL", "null_value: NULL_VALUE"),
	where("NULL = a", "EQUAL", "null_value: NULL_VALUE"),
	where("a CONTAINS 'x'", "EQUAL", "string_value: 'x'"),
	where("'x' IN a", "EQUAL", "string_value: 'x'"),
	where("a IN 'x'", "EQUAL", "string_value: 'x'"),
	where("a IN ARRAY(1, 2)", "IN", oneTwo),
	where("ARRAY(1, 2) IN a", "IN", oneTwo),
	where("a CONTAINS ARRAY(1, 2)", "IN", oneTwo),
	where("a NOT IN ARRAY(1, 2)", "NOT_IN", oneTwo),
	where("a IN @list", "IN", "array_value { values { integer_value: 5 } values { integer_value: 6 } }"),
	where("a NOT IN @list", "NOT_IN", "array_value { values { integer_value: 5 } values { integer_value: 6 } }"),
	where("a IN @i", "EQUAL", "integer_value: 5"),
	unlessRefused(where("a NOT IN @i", "NOT_IN", "integer_value: 5"), "requires an ArrayValue"),
	where("@i <= a", "GREATER_THAN_OR_EQUAL", "integer_value: 5"),
	where("a = @null", "EQUAL", "null_value: NULL_VALUE"),
	where("a = @$_1", "EQUAL", "boolean_value: true"),
	whereAll("__key__ HAS ANCESTOR KEY(A, 1)", on("__key__", "HAS_ANCESTOR", keyA1)),
	whereAll("__key__ HAS ANCESTOR @key", on("__key__", "HAS_ANCESTOR", keyA1)),
	whereAll("KEY(A, 1) HAS DESCENDANT __key__", on("__key__", "HAS_ANCESTOR", keyA1)),
	whereAll("@key HAS DESCENDANT __key__", on("__key__", "HAS_ANCESTOR", keyA1)),
	unlessRefused(whereAll("a HAS ANCESTOR KEY(A, 1)", on("a", "HAS_ANCESTOR", keyA1)), "must be __key__"),

	whereAll("a = 1 AND b = 2 AND d = 4", composite("AND", aIs1, bIs2, dIs4)),
	whereAll("a = 1 OR b = 2 OR d = 4", composite("OR", aIs1, bIs2, dIs4)),
	whereAll("a = 1 AND b = 2 OR c != 3 AND d = 4", composite("OR", composite("AND", aIs1, bIs2),
		composite("AND", cIsNot, dIs4))),
	whereAll("a = 1 OR b = 2 AND d = 4", composite("OR", aIs1, composite("AND", bIs2, dIs4))),
	whereAll("a = 1 AND (b = 2 OR c != 3) AND d = 4", composite("AND", aIs1, composite("OR", bIs2, cIsNot), dIs4)),
	whereAll("(a = 1 AND b = 2) AND d = 4", composite("AND", composite("AND", aIs1, bIs2), dIs4)),
	whereAll("((a = 1))", aIs1),
	whereAll("(((a = 1) OR (b = 2)))", composite("OR", aIs1, bIs2)),
	whereAll("a=1AND b=2", composite("AND", aIs1, bIs2)),
	{text: "SELECT * WHERE a = 1", want: "filter { " + aIs1 + " }", refused: "kind is required"},
	{
		text: "SELECT * FROM k WHERE a = @2 AND b = @1 AND c = @1", positional: []string{"i", "s"},
		want: kindK + "filter { " + composite("AND", on("a", "EQUAL", "string_value: 'x'"),
			on("b", "EQUAL", "integer_value: 5"), on("c", "EQUAL", "integer_value: 5")) + " }",
	},
	{
		text: "SELECT * FROM k WHERE a = @01 AND b = @i", positional: []string{"s"},
		want: kindK + "filter { " + composite("AND", on("a", "EQUAL", "string_value: 'x'"),
			on("b", "EQUAL", "integer_value: 5")) + " }",
	},
}
