// Package pace measures how fast a process works on each job. It also limits jobs: to the rates
// that users set, to what a called service accepts, and for background jobs to what the database
// has to spare.
package pace
