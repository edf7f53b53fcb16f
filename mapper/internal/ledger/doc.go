// Package ledger proves that a job has processed each entity of its query once. It adds up the
// job's records ([Ledger], [Sum]), in parts if there are many ([Draft]). If they do not add up, it
// finds the records that are missing or wrong (diagnosis). And it compares the entities that pages
// had with the entities in the database ([OfEntities]).
//
// Each page's record has a seal and a digest of its keys; package record makes them.
package ledger
