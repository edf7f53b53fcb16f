// Package keyspace has the order of entities, and arithmetic in it. It compares keys, values and
// positions as Datastore does, calculates keys and values between two others, and estimates their
// size in a record. It uses neither a database nor a clock.
package keyspace
