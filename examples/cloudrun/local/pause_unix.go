//go:build unix

package main

import (
	"os"
	"syscall"
)

// pauses says that a process can be stopped, and go on.
const pauses = true

// pause takes a process its CPU.
func pause(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) } // it may have ended

// proceed gives it back.
func proceed(p *os.Process) { _ = p.Signal(syscall.SIGCONT) } // it may have ended
