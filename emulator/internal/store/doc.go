// Package store keeps the versions of the entities of a kind, and indexes over them.
package store
