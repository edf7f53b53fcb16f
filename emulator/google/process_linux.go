package google

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the system kill the process when this process ends, for any reason.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
