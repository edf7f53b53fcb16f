// Package undo takes back what a job has written, without stored images: from the database as it
// was just before the commit of each page.
//
// A page's commit writes the record of its range along with the entities, so all of them have the
// same version, and none of it has been changed since by anybody if it has that version still. The
// database serves what was there before: an entity that was there becomes what it was, and one that
// was not is deleted. This is the function of a mapper, over the records of the job that is undone:
// so an undo is a job as any, and each page of it takes effect once. Its mutations are on the
// condition that the entities have the versions that were compared, however late they are
// committed.
//
// What several pages have written becomes what it was before the first of them (history.go). What a
// page's commit can't hold is restored before it, in batches that are recorded (outcome.go).
package undo
