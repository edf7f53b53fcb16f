// Package query checks queries, plans them over the indexes of kinds, and runs them.
//
// A filter is brought into a disjunction of conjunctions (filter.go). Each is a scan
// of an index that has its results in the order of the query (plan.go), and the
// scans are merged (scan.go).
package query

// ScatterProperty is the name of the property that only orders can use.
const ScatterProperty = "__scatter__"

// ResultOverhead is what a result has besides its entity and its cursor, about, in
// bytes.
const ResultOverhead = 100
