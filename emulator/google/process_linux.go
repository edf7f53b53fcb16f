package google

import (
	"os/exec"
	"syscall"
)

// endWithParent makes Linux kill the emulator's process when this process ends, for whatever
// reason.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
