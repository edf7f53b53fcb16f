// Package page runs a user's function over a page, a group of entities that are committed together.
// A [Page] reads the entities and calls the function for each. It ends when all entities are done,
// or when its time is over. Its [Results] have the writes that the function has asked for. The
// caller commits them.
package page
