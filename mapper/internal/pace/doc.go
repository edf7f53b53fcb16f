// Package pace measures how fast a process works on each job, and limits jobs in three ways. It
// keeps a job to the rates that the user has set ([Limit], [Meter]). It slows calls of a service
// that refuses them ([Brake]). It makes background jobs give way to other clients of the database
// ([Background]). A page is a group of entities that a task processes and commits together.
package pace
