// Package api has the exported API of all public packages in scattermap.txt, so that a change of
// the API shows as a change of that file. The file has the form of those in Go's own api folder.
package api
