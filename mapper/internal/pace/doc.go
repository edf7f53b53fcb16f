// Package pace has how fast a job goes, which its processes observe, and how fast it may go.
package pace
