// Package cluster runs Millrace's processes and NATS servers on the loopback
// interface, and causes faults: kill -9, SIGSTOP, closed connections. The fault suite
// and `make cluster` use it. It must not know the load or the answers.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that can be started again after it ended. One goroutine at a
// time calls its methods, except Usage and Running.
type Process struct {
	Name string
	Role string

	path  string
	args  []string
	dir   string   // working directory; "": that of this process
	env   []string // added to that of this process
	log   string   // file; a restart appends
	ready string   // URL that answers 200 when the process serves
	mount Mount
	nice  int // added to the nice value of this process

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{} // closed after the process ended
	wanted bool          // Terminate or Kill ends it
}

// NewProcess describes a program to start. ready is a URL that answers 200 when it serves; WaitReady needs it.
func NewProcess(name, path string, args []string, log, ready string) *Process {
	return &Process{Name: name, path: path, args: args, log: log, ready: ready}
}

// poll is the interval of polling a state that sends no notification.
const poll = 20 * time.Millisecond

// Start starts the process and returns at once.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own handle
	command := append([]string{p.path}, p.args...)
	if p.nice > 0 { // nice(1) becomes the program
		command = append([]string{"nice", "-n", strconv.Itoa(p.nice)}, command...)
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it is ended by Kill and Terminate
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	// Ctrl-C ends this process alone, and its end kills the child
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.mount.under(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended, p.wanted = cmd, ended, false
	p.mu.Unlock()
	go func() {
		_ = cmd.Wait() // the exit code is kept in cmd
		close(ended)
	}()
	return nil
}

// current returns the last command and the channel that closes at its end; nil before Start.
func (p *Process) current() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.ended
}

// PID returns the id of the process; 0 if it does not run.
func (p *Process) PID() int {
	cmd, ended := p.current()
	if cmd == nil {
		return 0
	}
	select {
	case <-ended:
		return 0
	default:
		return cmd.Process.Pid
	}
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} {
	_, ended := p.current()
	return ended
}

// WaitReady waits until the process serves. It returns an error if the process ends before.
func (p *Process) WaitReady(ctx context.Context) error {
	_, ended := p.current()
	client := http.Client{Timeout: time.Second}
	for {
		if r, err := get(ctx, &client, p.ready); err == nil {
			r.Body.Close()
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended before it was ready; the end of its log:\n%s", p.Name, p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.Name, ctx.Err(), p.LogTail())
		case <-time.After(poll):
		}
	}
}

// get returns the answer of a GET request. A status other than 200 is an error.
func get(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return answer, nil
}

// signal sends a signal to the process if it runs.
func (p *Process) signal(s syscall.Signal, ends bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s was never started", p.Name)
	}
	p.wanted = p.wanted || ends
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %v: %w", p.Name, s, err)
	}
	return nil
}

// Kill ends the process as kill -9 does, and waits for its end.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL, true); err != nil {
		return err
	}
	_, ended := p.current()
	<-ended
	return nil
}

// Stop suspends the process (SIGSTOP).
func (p *Process) Stop() error { return p.signal(syscall.SIGSTOP, false) }

// Continue continues a suspended process.
func (p *Process) Continue() error { return p.signal(syscall.SIGCONT, false) }

// Drain sends SIGTERM and returns at once. WaitEnded or Kill follows.
func (p *Process) Drain() error { return p.signal(syscall.SIGTERM, true) }

// Terminate sends SIGTERM and waits for the end of the process, see WaitEnded.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.Drain(); err != nil {
		return err
	}
	return p.WaitEnded(ctx)
}

// WaitEnded waits for the end of a process that got SIGTERM. An exit code other than 0 is an error; after ctx the process is
// killed.
func (p *Process) WaitEnded(ctx context.Context) error {
	cmd, ended := p.current()
	select {
	case <-ended:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not end after SIGTERM: %w", p.Name, ctx.Err()), p.Kill())
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with exit code %d, expected 0; the end of its log:\n%s", p.Name, code, p.LogTail())
	}
	return nil
}

// EndedByItself returns an error with the exit of a process that ended without Terminate or Kill.
func (p *Process) EndedByItself() error {
	if p.PID() != 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.wanted {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %v; the end of its log:\n%s", p.Name, p.cmd.ProcessState, p.LogTail())
}

// LogTail returns the end of the process's log.
func (p *Process) LogTail() string {
	const lines = 20
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// LogCount counts the lines of the process's log that contain a text. A log that cannot be read has none.
func (p *Process) LogCount(text string) (n int) {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte(text)) {
			n++
		}
	}
	return n
}

// Usage is the use of the machine by a process.
type Usage struct {
	Resident  int64 // bytes, without shared memory: the KV pool is set aside at start, and how much of it is mapped changes
	Files     int   // open files
	Processor time.Duration
}

// Tick is the unit of times in /proc: USER_HZ, which is 100 on every Linux.
const Tick = 10 * time.Millisecond

// Usage reads the usage from /proc. It is zero if the process does not run.
func (p *Process) Usage() (u Usage, err error) {
	pid := p.PID()
	if pid == 0 {
		return u, nil
	}
	dir := "/proc/" + strconv.Itoa(pid)
	files, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return u, err
	}
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return u, err
	}
	// After the name in parentheses, which may have spaces; proc(5) counts from 3 there.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks [2]int64
	for i, field := range []int{14, 15} { // utime, stime
		if field-3 >= len(fields) {
			return u, fmt.Errorf("%s/stat: found %d fields, expected %d", dir, len(fields)+2, field)
		}
		if ticks[i], err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return u, fmt.Errorf("%s/stat: %w", dir, err)
		}
	}
	resident, err := privateResident(dir + "/status")
	if err != nil {
		return u, err
	}
	return Usage{Resident: resident, Files: len(files), Processor: time.Duration(ticks[0]+ticks[1]) * Tick}, nil
}

// privateResident reads the resident memory of a process without its shared memory, in bytes.
func privateResident(path string) (sum int64, err error) {
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"RssAnon", "RssFile"} {
		_, rest, found := strings.Cut(string(status), "\n"+name+":")
		var kib int64
		if _, err := fmt.Sscan(rest, &kib); !found || err != nil {
			return 0, fmt.Errorf("%s: found no number of %s", path, name)
		}
		sum += kib << 10
	}
	return sum, nil
}
