package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Mount is a small file system in memory that a process sees at a directory, and no other process does. It is empty after a
// restart. The system must allow user namespaces.
type Mount struct {
	Dir  string // ""; there is none
	Size int64  // bytes
}

// under makes a command mount it before its program begins, in namespaces of its own: this needs no privilege.
func (m Mount) under(cmd *exec.Cmd) {
	if m.Dir == "" {
		return
	}
	script := fmt.Sprintf(`mount -t tmpfs -o mode=700,size=%d tmpfs "$0" && exec "$@"`, m.Size)
	cmd.Args = append([]string{"sh", "-c", script, m.Dir, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
}
