// Package query checks queries, plans them over the indexes of kinds, and runs them.
//
// A filter becomes a disjunction of conjunctions (filter.go). Each is a scan of an index whose
// entries are in the order of the query (plan.go). The scans are merged (scan.go).
package query

// ScatterProperty is the name of a property that queries can only order by.
const ScatterProperty = "__scatter__"

// ResultOverhead estimates the bytes of a result besides its entity and its cursor.
const ResultOverhead = 100
