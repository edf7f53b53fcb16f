// Package fault says what an error means: whether the function is at fault, or the database, or
// chance; whether another attempt may help, and when it is due; and what a record says of it.
package fault
