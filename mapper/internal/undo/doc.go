// Package undo takes back what a job wrote. It needs no stored copies: Datastore serves past
// states, so it reads each entity's state just before the page's commit.
//
// A page's commit writes the record of its range and the entities, so all of them get the same
// version. An entity that still has this version was not changed since. If it was there before the
// commit, it becomes what it was; otherwise it is deleted.
//
// This is the function of a mapper, over the range records of the job that is undone. So an undo is
// an ordinary job, and each of its pages takes effect once. Its mutations require the versions that
// were compared, so they are safe however late they are committed.
//
// If several pages wrote an entity, it becomes what it was before the first of them (history.go).
// If the restored entities don't fit one commit, batches are committed before it (outcome.go).
package undo
