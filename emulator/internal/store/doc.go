// Package store holds the versions of the entities of a kind in memory, and indexes over them.
package store
