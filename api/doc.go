// Package api has the exported API of all public packages in a file, scattermap.txt: a change of
// the API is a change of that file. Its form is that of the files in Go's own api folder.
package api
