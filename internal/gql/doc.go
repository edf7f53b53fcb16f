// Package gql reads GQL, the query language of Cloud Datastore.
//
// A [Statement] is what [Parse] makes of a query string and its bindings: a
// Query of the protocol and, if the string asks for them, the aggregations over
// its results. A token is a word of the string, a value is a literal or what a
// binding site such as @name stands for.
//
// The string becomes tokens one at a time (lexer), a recursive descent over
// them builds the protocol's messages (parser), and literals and bindings
// become values on the way. Nothing is kept and nothing is printed back.
//
// The grammar is the one of the GQL reference:
//
//	statement   = query
//	            | SELECT aggregation, ... [FROM kind] [WHERE filter]
//	            | AGGREGATE aggregation, ... OVER "(" query ")"
//	aggregation = ( COUNT "(" "*" ")" | COUNT_UP_TO "(" integer ")"
//	            | SUM "(" property ")" | AVG "(" property ")" ) [AS name]
//	query       = SELECT [DISTINCT [ON "(" property, ... ")"]] ( "*" | property, ... )
//	              [FROM kind] [WHERE filter]
//	              [ORDER BY property [ASC|DESC], ...]
//	              [LIMIT ( position | FIRST "(" position "," position ")" )]
//	              [OFFSET position ["+" position]]
//	filter      = condition, joined by AND, which binds stronger, and OR
//	condition   = "(" filter ")"
//	            | property IS NULL
//	            | property ( comparator | CONTAINS | [NOT] IN | HAS ANCESTOR ) value
//	            | value ( comparator | IN | HAS DESCENDANT ) property
//	comparator  = "=" | "!=" | "<" | "<=" | ">" | ">="
//	value       = binding | string | integer | double | TRUE | FALSE | NULL
//	            | ARRAY "(" [value, ...] ")" | BLOB "(" string ")" | DATETIME "(" string ")"
//	            | KEY "(" [PROJECT "(" string ")" ","] [DATABASE "(" string ")" ","]
//	              [NAMESPACE "(" string ")" ","] ( kind "," ( integer | string ) ), ... ")"
//	position    = binding | integer
//	property    = name, joined by "."
//
// Where the reference says nothing or little (which words are reserved, what
// escapes there are, what a literal may look like) the package does what both
// of Google's emulators do, which share a parser; google_test.go compares.
//
// Only syntax, bindings and the forms of literals are checked here. Whether a
// query makes sense, such as two orders by one property, is for the server that
// runs it to say.
package gql
