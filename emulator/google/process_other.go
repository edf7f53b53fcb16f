//go:build !linux

package google

import "os/exec"

// endWithParent does nothing, because only Linux can end a process with its parent. If this process
// is killed, the emulator keeps running.
func endWithParent(*exec.Cmd) {}
