//go:build unix

package main

import (
	"os"
	"syscall"
)

// pauses says whether this system can stop a process and let it continue.
const pauses = true

// pause takes the CPU away from a process.
func pause(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) } // it may have ended

// proceed gives a process its CPU back.
func proceed(p *os.Process) { _ = p.Signal(syscall.SIGCONT) } // it may have ended
