// Package api is a folder for scattermap.txt, the exported API of all public packages, so that a
// change of the API shows as a change of that file. The file has the form of the files in Go's own
// api folder.
package api
