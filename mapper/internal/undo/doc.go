// Package undo restores what a job has changed. It needs no stored copies, because Datastore serves
// past states: it reads each entity as of just before the commit of the job's page.
//
// A page's commit writes the record of its range and the entities, so all of them get the same
// version. An entity that still has this version was not changed since. If it existed before the
// commit, it gets its state of that time; otherwise it is deleted.
//
// An undo is an ordinary job. Its mapper processes the range records of the job that is undone, and
// the function of that mapper is in this package. So each page of the undo takes effect once. Its
// mutations require the versions that were compared, so they are safe even if they are committed
// late.
//
// If several pages wrote an entity, it gets its state from before the first of them (history.go).
// If the restored entities of a page don't fit its commit, the undo commits batches of them first
// (outcome.go).
package undo
