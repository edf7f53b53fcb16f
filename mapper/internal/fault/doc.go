// Package fault classifies errors. It says what caused an error (the user's function, the
// database, or chance), whether another attempt may help, and when. It also says which part of an
// error's text may be logged or recorded.
package fault
