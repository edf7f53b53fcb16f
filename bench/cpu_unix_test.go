//go:build unix

package bench

import (
	"syscall"
	"time"
)

// processTime returns how much CPU time this process has taken.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
