// Package gql parses GQL, the query language of Cloud Datastore.
//
// [Parse] turns a query string and its bindings into a [Statement]: a Query of the protocol and, if
// the string asks for them, the aggregations over its results. A token is a word of the string. A
// value is a literal, or the binding of a binding site such as @name.
//
// The lexer turns the string into tokens one at a time. A recursive descent over them builds the
// protocol's messages (parser), and turns literals and bindings into values. There is no syntax
// tree.
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
// The reference says little about reserved words, escapes and the forms of literals. There the
// package follows Google's two emulators, which share a parser; google_test.go compares.
//
// Only syntax, bindings and the forms of literals are checked here. The server that runs a query
// decides whether it makes sense, for example with two orders by one property.
package gql
