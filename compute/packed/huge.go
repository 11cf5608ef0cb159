package packed

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute/mapped"
)

// inHugePages says whether nearly all of a mapping of a file is mapped by huge pages, as
// /proc/self/smaps has it.
func inHugePages(mapping []byte) bool {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return false
	}
	defer f.Close()
	begin := fmt.Sprintf("%x-", uintptr(unsafe.Pointer(unsafe.SliceData(mapping))))
	found := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		found = found || strings.HasPrefix(line, begin)
		var kib int
		if n, _ := fmt.Sscanf(line, "FilePmdMapped: %d kB", &kib); found && n == 1 {
			return kib >= len(mapping)>>10/20*19
		}
	}
	return false
}

// copyOut copies the file into huge pages of the process and unmaps it. Without the memory
// it stays where it is.
func (f *File) copyOut() {
	memory, err := unix.Mmap(-1, 0, len(f.mapping), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // advice
	// Whole huge pages for each thread: the first touch clears them.
	parts := runtime.GOMAXPROCS(0)
	part := (len(memory)/parts/dataAt + 1) * dataAt
	var copying sync.WaitGroup
	for from := 0; from < len(memory); from += part {
		to := min(from+part, len(memory))
		copying.Go(func() { copy(memory[from:to], f.mapping[from:to]) })
	}
	copying.Wait()
	_ = mapped.Unmap(f.mapping) // a mapping of ours
	f.mapping, f.copied = memory, true
}
