// Package undolog encodes what undos need to know in the records of pages. A page is a group of
// entities that were committed together. A [Wrote] says which entities the commit wrote. A [Left]
// is an entity that an undo did not restore.
package undolog
