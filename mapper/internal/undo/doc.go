// Package undo restores the entities that a job has changed. It stores no copies, because Datastore
// serves past states: it reads each entity's state from just before the commit of the job's page.
//
// A page's commit writes the record of its range and the entities, so all of them get the same
// version. An entity that still has this version was not changed since. If it existed before the
// commit, it gets its state of that time. Otherwise it is deleted.
//
// An undo is an ordinary job. It processes the range records of the undone job, and its function is
// in this package. So it takes back each page once. Its mutations require the versions that it has
// compared, so they do no harm even if they are committed late.
//
// If several pages wrote an entity, it gets its state from before the first of them (history.go).
// If the restored entities of a page do not fit in one commit, the undo commits batches of them
// first (outcome.go).
package undo
