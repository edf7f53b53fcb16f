// Package fault says what an error means. Is the function to blame, the database, or chance? May
// another attempt help, and when? What does a record say about it?
package fault
