//go:build unix

package main

import (
	"os"
	"syscall"
)

// pauses says whether this system can stop a process and let it continue later.
const pauses = true

// pause stops a process, so that it uses no CPU. An error means that the process has ended.
func pause(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

// proceed lets a stopped process continue.
func proceed(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
