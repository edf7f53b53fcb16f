// Package operator has code that the jobs API, the command line and the dashboard share. It checks
// who sent a request, and chooses the status code for an error. It makes queries from users'
// texts, and texts from numbers and times.
package operator
