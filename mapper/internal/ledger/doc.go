// Package ledger proves that a job has processed each entity of its query once. It adds up the
// records of the job's ranges ([Ledger], [Sum]), in parts if there are many ([Draft]). If they do
// not fit together, it finds out which records are missing or wrong. It also compares the entities
// that each page had with the entities in the database ([OfEntities]).
//
// It checks two hashes that package record stores in a page's record: the seal over the record, and
// the digest of the page's keys.
package ledger
