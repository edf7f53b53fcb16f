// Package pace measures how fast a job goes in a process, and limits how fast it may go.
package pace
