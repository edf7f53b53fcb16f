// Package keyspace compares keys, values and positions as Datastore orders them, and calculates
// with them. A [Position] is a place in the order in which a job processes entities. The package
// finds keys and values between two others, and estimates their sizes. It uses neither a database
// nor a clock.
package keyspace
