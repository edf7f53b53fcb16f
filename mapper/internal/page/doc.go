// Package page runs a user's function over the entities of a page: a [Page] reads them, calls the
// function for each, and ends when they are done or it has taken its time. Its [Results] say what
// became of them; the commit is up to its caller.
package page
