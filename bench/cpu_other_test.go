//go:build !unix

package bench

import "time"

// processTime returns 0: CPU time is not measured on this system.
func processTime() time.Duration { return 0 }
