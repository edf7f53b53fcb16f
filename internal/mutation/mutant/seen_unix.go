//go:build unix

package mutant

import (
	"fmt"
	"os"
	"syscall"
)

// seenFrom maps a file into memory. Bytes that are set there stay in the file, however the process
// ends.
func seenFrom(path string) []byte {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", SeenEnv, err))
	}
	defer func() { _ = f.Close() }() // the mapping stays valid
	info, err := f.Stat()
	if err != nil {
		panic(fmt.Sprintf("%s: %v", SeenEnv, err))
	}
	const access = syscall.PROT_READ | syscall.PROT_WRITE
	data, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), access, syscall.MAP_SHARED)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", SeenEnv, err))
	}
	return data
}
