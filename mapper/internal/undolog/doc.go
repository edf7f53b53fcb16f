// Package undolog encodes the parts of a page's record that serve an undo. [Wrote] says which
// entities the page's commit wrote. [Left] is an entity that an undo did not restore.
package undolog
