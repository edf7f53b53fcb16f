//go:build unix

package bench

import (
	"syscall"
	"time"
)

// processTime returns the CPU time that this process has used.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
