//go:build !unix

package bench

import "time"

// processTime is not known on this system.
func processTime() time.Duration { return 0 }
