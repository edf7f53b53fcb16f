// Package page runs a user's function over the entities of a page. A [Page] reads the entities
// and calls the function for each. It ends when all entities are done, or its time is over. Its
// [Results] say what the function has asked for; the caller commits them.
package page
