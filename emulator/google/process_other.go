//go:build !linux

package google

import "os/exec"

// endWithParent does nothing on this system. If this process is killed, the emulator keeps running.
func endWithParent(*exec.Cmd) {}
