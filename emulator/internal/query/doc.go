// Package query checks queries, decides which indexes serve them, and runs them.
//
// A filter becomes several conjunctions, and each result satisfies at least one of them
// (filter.go). For each conjunction, a scan reads an index whose entries are in the order of the
// query (plan.go). The scans are merged (scan.go).
package query

// ScatterProperty is the name of a hidden property that some random entities have. Queries can
// order by it, but not filter by it.
const ScatterProperty = "__scatter__"

// ResultOverhead is the estimated size of a result in bytes, besides its entity and its cursor.
const ResultOverhead = 100
