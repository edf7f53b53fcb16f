//go:build unix

package mutant

import (
	"fmt"
	"os"
	"syscall"
)

// seenFrom maps a file into memory. So bytes that the process sets stay in the file, even if the
// process is killed.
func seenFrom(path string) []byte {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", SeenEnv, err))
	}
	defer func() { _ = f.Close() }() // the mapping stays valid after the file is closed
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
