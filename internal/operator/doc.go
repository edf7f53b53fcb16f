// Package operator has the code that the jobs API, the command line and the dashboard share. It
// checks who sends a request, and maps errors to status codes. It turns texts into queries, and
// numbers and times into text.
package operator
