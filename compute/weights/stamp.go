package weights

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Stamp identifies the state of a file. Writing to the file or replacing it changes its Stamp: no
// program can set the time of change.
type Stamp struct {
	Path              string
	Inode             uint64
	Bytes             int64
	Modified, Changed int64 // mtime and ctime, ns since 1970
}

func stampOf(path string, info fs.FileInfo) Stamp {
	s := Stamp{Path: path, Bytes: info.Size(), Modified: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Inode, s.Changed = sys.Ino, sys.Ctim.Nano()
	}
	return s
}

// stamp notes a file that decides on the tensors before it is read; one that is not there
// decides nothing.
func (c *Checkpoint) stamp(path string) {
	if info, err := os.Stat(path); err == nil {
		c.stamps = append(c.stamps, stampOf(path, info))
	}
}

// Stamps are those of the files that decide on the tensors, as they were opened: those that
// they lie in, the index of shards, and the config.json that may say how they are quantized;
// sorted by path.
func (c *Checkpoint) Stamps() []Stamp {
	stamps := slices.Clone(c.stamps)
	slices.SortFunc(stamps, func(a, b Stamp) int { return strings.Compare(a.Path, b.Path) })
	return stamps
}

// Unchanged says whether the files still have the stamps that they were opened with.
func (c *Checkpoint) Unchanged() bool {
	return !slices.ContainsFunc(c.stamps, func(s Stamp) bool {
		info, err := os.Stat(s.Path)
		return err != nil || stampOf(s.Path, info) != s
	})
}
