// Package query checks queries, decides which indexes serve them, and runs them.
//
// A filter becomes a disjunction of conjunctions (filter.go). Each of these is a scan of an index
// whose entries are in the order of the query (plan.go). The scans are merged (scan.go).
package query

// ScatterProperty is the name of a property by which queries can only order.
const ScatterProperty = "__scatter__"

// ResultOverhead is the estimated size of a result in bytes, besides its entity and its cursor.
const ResultOverhead = 100
