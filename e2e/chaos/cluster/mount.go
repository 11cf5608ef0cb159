package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// Disk is a small file system in memory that outlives the processes that use it. A process of its own has it mounted.
type Disk struct {
	Dir    string // as this process and its children see it
	holder *exec.Cmd
	input  io.Closer // the holder ends when it is closed
}

// NewDisk makes a disk of the given size in bytes. mountpoint is a folder. The caller closes the disk after the processes that use it.
func NewDisk(mountpoint string, size int64) (*Disk, error) {
	cmd := exec.Command("cat") //nolint:noctx // it is ended by Close
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	Mount{Dir: mountpoint, Size: size}.under(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the holder of a disk at %s: %w", mountpoint, err)
	}
	d := &Disk{Dir: fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, mountpoint), holder: cmd, input: in}
	if _, err = in.Write([]byte{'\n'}); err == nil { // cat echoes it after the mount
		_, err = out.Read(make([]byte, 1))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount a disk at %s: %w", mountpoint, err), d.Close())
	}
	return d, nil
}

// ballast is the file that fills a disk.
func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fill writes to the disk until no byte more fits.
func (d *Disk) Fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2] // what is left may be smaller
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(fmt.Errorf("%s: found the error %w, expected no space left", d.Dir, err), f.Close())
	}
	return f.Close()
}

// Empty removes what Fill wrote.
func (d *Disk) Empty() error { return os.Remove(d.ballast()) }

// Close removes the disk with all files.
func (d *Disk) Close() error {
	return errors.Join(d.input.Close(), d.holder.Wait())
}
