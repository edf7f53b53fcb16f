// Package fault classifies errors. It says whether the function, the database or chance is the
// cause, and whether and when another attempt may help. It also says which part of an error's text
// may be logged or recorded.
package fault
