//go:build !unix

package main

import "os"

// pauses is false: this system can't stop a process, so -cpu=request is refused.
const pauses = false

func pause(*os.Process) {}

func proceed(*os.Process) {}
