// Package undolog encodes data for undos that is stored in the records of pages. A [Wrote] says
// which entities a page's commit wrote. A [Left] is an entity that an undo did not restore.
package undolog
