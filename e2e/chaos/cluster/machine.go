package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Machine returns the name of the processor, if the system has it.
func Machine() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown machine"
	}
	fields := map[string]string{}
	cores := 0
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
		if strings.HasPrefix(line, "processor") {
			cores++
		}
	}
	return fmt.Sprintf("%s, family %s model %s, %d cores", fields["vendor_id"], fields["cpu family"], fields["model"], cores)
}

// Commit returns the commit of the working directory, with "-dirty" for changes, if git knows it.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
