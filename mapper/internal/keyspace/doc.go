// Package keyspace has the order of entities, and arithmetic in it. It compares keys, values and
// positions as Datastore does, calculates keys and values that lie between two others, and
// estimates how many bytes they take in a record.
//
// Nothing in it asks a database or a clock.
package keyspace
