package gql_test

const kindK = `kind { name: "k" } `

var selections = []validCase{
	{text: "SELECT * FROM k", want: kindK},
	{text: "select * From k", want: kindK},
	{text: "SELECT *", want: ""},
	{text: "SELECT __key__ FROM k", want: kindK + `projection { property { name: "__key__" } }`},
	{text: "SELECT a, b.c FROM k", want: kindK +
		`projection { property { name: "a" } } projection { property { name: "b.c" } }`},
	{
		text: "SELECT DISTINCT a, `b c` FROM k",
		want: kindK + `projection { property { name: "a" } } projection { property { name: "b c" } }
			distinct_on { name: "a" } distinct_on { name: "b c" }`,
	},
	{text: "SELECT DISTINCT ON (a, b) * FROM k", want: kindK + `distinct_on { name: "a" } distinct_on { name: "b" }`},
	{
		text: "SELECT DISTINCT ON (a) a, b FROM k",
		want: kindK +
			`projection { property { name: "a" } } projection { property { name: "b" } } distinct_on { name: "a" }`,
	},
	{
		text: "SELECT * FROM k ORDER BY a, b.c ASC, __key__ DESC",
		want: kindK + `order { property { name: "a" } direction: ASCENDING }
			order { property { name: "b.c" } direction: ASCENDING }
			order { property { name: "__key__" } direction: DESCENDING }`,
	},
	{
		text: "SELECT a FROM k WHERE a > 1 ORDER BY a desc LIMIT 2 OFFSET 3",
		want: kindK + `projection { property { name: "a" } }
			filter { property_filter { property { name: "a" } op: GREATER_THAN value { integer_value: 1 } } }
			order { property { name: "a" } direction: DESCENDING } limit { value: 2 } offset: 3`,
	},
}

var positions = []validCase{
	{text: "SELECT * FROM k LIMIT 0", want: kindK + "limit { }"},
	{text: "SELECT * FROM k LIMIT +7", want: kindK + "limit { value: 7 }"},
	{text: "SELECT * FROM k LIMIT 2147483647 OFFSET 2147483647", want: kindK +
		"limit { value: 2147483647 } offset: 2147483647"},
	{text: "SELECT * FROM k LIMIT @i", want: kindK + "limit { value: 5 }"},
	{text: "SELECT * FROM k LIMIT @1 OFFSET @2", positional: []string{"i", "c"}, want: kindK + "limit { value: 5 }" +
		startCursor},
	{text: "SELECT * FROM k LIMIT @c", want: kindK + endCursor},
	{text: "SELECT * FROM k LIMIT FIRST(3, @c)", want: kindK + "limit { value: 3 }" + endCursor},
	{text: "SELECT * FROM k LIMIT first (@c, @i)", want: kindK + "limit { value: 5 }" + endCursor},
	{text: "SELECT * FROM k OFFSET @i", want: kindK + "offset: 5"},
	{text: "SELECT * FROM k OFFSET @c", want: kindK + startCursor},
	{text: "SELECT * FROM k OFFSET @c + 3", want: kindK + "offset: 3" + startCursor},
	{text: "SELECT * FROM k OFFSET @c + @i", want: kindK + "offset: 5" + startCursor},
	{text: "SELECT * FROM k LIMIT FIRST(3, @c) OFFSET @c + 2", want: kindK + "limit { value: 3 } offset: 2" +
		startCursor + endCursor},
}

const (
	cursorText  = `"\n\x19\x12\x13j\x01pr\t\x0b\x12\x01k\"\x02n1\x0c\xa2\x01\x02ns\x18\x00 \x00" `
	startCursor = " start_cursor: " + cursorText
	endCursor   = " end_cursor: " + cursorText
)

var aggregations = []validCase{
	{text: "SELECT COUNT(*) FROM k", want: kindK, aggregations: []string{"count { }"}},
	{text: "SELECT COUNT(*)", want: "", aggregations: []string{"count { }"}},
	{
		text: "SELECT count (*) AS n, SUM(p), AVG(p.q) as `a b`, COUNT_UP_TO(5) FROM k WHERE a = 1",
		want: kindK + `filter { property_filter { property { name: "a" } op: EQUAL value { integer_value: 1 } } }`,
		aggregations: []string{
			`alias: "n" count { }`, `sum { property { name: "p" } }`,
			`alias: "a b" avg { property { name: "p.q" } }`, `count { up_to { value: 5 } }`,
		},
	},
	{text: "AGGREGATE COUNT(*) OVER (SELECT * FROM k)", want: kindK, aggregations: []string{"count { }"}},
	{
		text: "AGGREGATE COUNT_UP_TO(0) AS b, COUNT(*) AS a, SUM(x) OVER ( SELECT * FROM k ORDER BY a LIMIT 3 " +
			"OFFSET 1 )",
		want: kindK + `order { property { name: "a" } direction: ASCENDING } limit { value: 3 } offset: 1`,
		aggregations: []string{
			`alias: "b" count { up_to { } }`, `alias: "a" count { }`, `sum { property { name: "x" } }`,
		},
	},
}
