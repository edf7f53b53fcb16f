package gql_test

import "fmt"

// is returns a test case with the condition a = literal.
func is(literal, value string) validCase { return where("a = "+literal, "EQUAL", value) }

func isKey(literal, partition, path string) validCase {
	return is(literal, fmt.Sprintf("key_value { partition_id { %s } %s }", partition, path))
}

var values = []validCase{
	is("'x'", "string_value: 'x'"),
	is(`"x"`, "string_value: 'x'"),
	is("''", "string_value: ''"),
	is("''''", `string_value: "'"`),
	is("'it''s'", `string_value: "it's"`),
	is(`"q""q"`, `string_value: 'q"q'`),
	is(`'"'`, `string_value: '"'`),
	is(`'\n\t\\\'\"`+"\\`"+`\Z\0\b\r'`, `string_value: "\n\t\\'\"`+"`"+`\x1a\x00\b\r"`),
	is(`'\%\_%_'`, `string_value: "\\%\\_%_"`),
	is("'x\ty'", `string_value: "x\ty"`),
	is("'ü😀'", `string_value: "ü😀"`),
	is("+1", "integer_value: 1"),
	is("007", "integer_value: 7"),
	is("9223372036854775807", "integer_value: 9223372036854775807"),
	is("-9223372036854775808", "integer_value: -9223372036854775808"),
	is("1.5", "double_value: 1.5"),
	is("1.", "double_value: 1"),
	is(".5", "double_value: 0.5"),
	is("-.5", "double_value: -0.5"),
	is("1e3", "double_value: 1000"),
	is("-1.5E-3", "double_value: -0.0015"),
	is("-0.0", "double_value: -0.0"),
	is("1e999", "double_value: inf"),
	is("-1e999", "double_value: -inf"),
	is("1e-999", "double_value: 0"),
	is("TRUE", "boolean_value: true"),
	is("false", "boolean_value: false"),
	is("Null", "null_value: NULL_VALUE"),
	is("BLOB('aGk_')", `blob_value: "hi?"`),
	is(`blob ("aGk")`, `blob_value: "hi"`),
	is("BLOB('')", `blob_value: ""`),
	is("DATETIME('2013-09-29T09:30:20Z')", "timestamp_value { seconds: 1380447020 }"),
	is("DATETIME('2013-09-29t09:30:20.00002-08:00')", "timestamp_value { seconds: 1380475820 nanos: 20000 }"),
	is("DATETIME('1969-12-31T23:59:59.5Z')", "timestamp_value { seconds: -1 nanos: 500000000 }"),
	is("DATETIME('9999-12-31T23:59:59.999999Z')", "timestamp_value { seconds: 253402300799 nanos: 999999000 }"),
	unlessRefused(is("ARRAY()", "array_value { }"), "list value is not allowed"),
	where("a IN ARRAY('x', NULL, KEY(A, 1), @i)", "IN",
		`array_value { values { string_value: 'x' } values { null_value: NULL_VALUE } values { `+keyA1+
			` } values { integer_value: 5 } }`),
}

const here = "project_id: 'p' namespace_id: 'ns'"

var keys = []validCase{
	isKey("KEY(A, 1)", here, "path { kind: 'A' id: 1 }"),
	isKey("key (A, -1)", here, "path { kind: 'A' id: -1 }"),
	isKey("KEY(A, 'x', `B c`, 2)", here, "path { kind: 'A' name: 'x' } path { kind: 'B c' id: 2 }"),
	isKey("KEY(project, 1)", here, "path { kind: 'project' id: 1 }"),
	isKey("KEY(NAMESPACE('n'), A, 1)", "project_id: 'p' namespace_id: 'n'", "path { kind: 'A' id: 1 }"),
	isKey("KEY(NAMESPACE(''), A, 1)", "project_id: 'p'", "path { kind: 'A' id: 1 }"),
	isKey("KEY(PROJECT('q'), A, 1)", "project_id: 'q'", "path { kind: 'A' id: 1 }"),
	isKey("KEY(project('q'), namespace('n'), A, 1)", "project_id: 'q' namespace_id: 'n'", "path { kind: 'A' id: 1 }"),
	isKey("KEY(PROJECT('q'), DATABASE('d'), NAMESPACE('n'), A, 1)",
		"project_id: 'q' database_id: 'd' namespace_id: 'n'", "path { kind: 'A' id: 1 }"),
	isKey("KEY(DATABASE('d'), A, 1)", "project_id: 'p' database_id: 'd'", "path { kind: 'A' id: 1 }"),
}

func named(written, name string) validCase {
	return whereAll(written+" = 1", on(name, "EQUAL", "integer_value: 1"))
}

var lexical = []validCase{
	named("`a`", "a"),
	named("`select`", "select"),
	named("`a``b`", "a`b"),
	named("`a\\`b\\n`", "a`b\n"),
	named("$a_1", "$a_1"),
	named("ü😀", "ü😀"),
	named("a.b.c", "a.b.c"),
	named("`a.b`.`c`", "a.b.c"),
	named("a . b", "a.b"),
	named("key", "key"),
	named("First", "First"),
	named("array.blob", "array.blob"),
	named("a\u00a0", "a\u00a0"), // all characters outside ASCII count as letters
	{text: "\r\n\tSELECT`a`FROM`k`\n", want: kindK + `projection { property { name: "a" } }`},
	{text: "SELECT *FROM k", want: kindK},
	{text: "SELECT * FROM `a b`", want: `kind { name: "a b" }`},
}
