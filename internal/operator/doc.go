// Package operator is what all who show jobs to people and take their orders have in common, which
// are the jobs API, the command line and the dashboard: who is allowed what, which answer an error
// is, how a query is chosen by texts, and how numbers and times are written.
package operator
