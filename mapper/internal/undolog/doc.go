// Package undolog has what a page's record says for an undo: what the page's commit has written
// ([Wrote]), and what an undo has left as it is ([Left]), in as many bytes as a record has room
// for.
package undolog
