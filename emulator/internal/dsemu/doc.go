// Package dsemu serves google.datastore.v1, with entities in memory.
//
// A [Server] has a database for each project and database ID in requests. A database has the
// records of each namespace and kind, in key order. A record has the versions of one entity. A read
// sees the version of its time, so a transaction reads a snapshot while others write. A commit
// checks, with the database locked, that nothing its transaction has read has changed since. So
// every history is serializable, and every read outside of transactions is strongly consistent.
//
// Keys and values have a form in bytes whose order is Datastore's order (package collate). Scans,
// sorts and cursors use only that form.
package dsemu
