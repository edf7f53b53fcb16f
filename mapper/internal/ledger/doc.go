// Package ledger says how we know that all of a query was covered, and each entity once: it adds up
// the records of a job ([Ledger], [Sum]), part by part if need be ([Draft]), finds out which of
// them do not belong together (diagnosis), and compares their entities with those of the query
// ([OfEntities]). The record of each page has a seal and a digest of its keys, from package record.
package ledger
