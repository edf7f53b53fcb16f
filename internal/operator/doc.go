// Package operator has what the jobs API, the command line and the dashboard share. It decides who
// is allowed what, which status code an error has, how texts choose a query, and how numbers and
// times are written.
package operator
