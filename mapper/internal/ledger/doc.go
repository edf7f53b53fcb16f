// Package ledger proves that a job has processed each entity of its query once. It adds up the
// job's records ([Ledger], [Sum]), in parts if there are many ([Draft]). If they do not add up, it
// finds out which records are missing or wrong. It also compares the entities of each page with the
// entities in the database ([OfEntities]).
//
// Package record makes the seal and the digest of keys in a page's record, which this package
// checks.
package ledger
