// Package dsemu is a google.datastore.v1 service that keeps its entities in
// memory.
//
// A [Server] has one database for each project and database ID that a request
// names. A database keeps, for each namespace and kind, its records in key
// order. A record is one entity with its versions: a read sees the version of
// its time, so a transaction reads a snapshot while others write. A commit
// checks, under the database's lock, that nothing that its transaction read has
// changed since: every history is serializable, and every read outside a
// transaction is strongly consistent.
//
// Keys and values have a form in bytes whose order is Datastore's order
// (package collate). Scans, sorts and cursors work on that form alone.
package dsemu
