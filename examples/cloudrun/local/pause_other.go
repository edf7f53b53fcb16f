//go:build !unix

package main

import "os"

// pauses says whether this system can stop a process and let it continue later. Here it can't, so
// the flag -cpu=request is refused.
const pauses = false

func pause(*os.Process) {}

func proceed(*os.Process) {}
