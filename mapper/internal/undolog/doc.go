// Package undolog encodes what the record of a page stores for an undo. [Wrote] says which entities
// the page's commit wrote. [Left] is an entity that an undo did not restore.
package undolog
