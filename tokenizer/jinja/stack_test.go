package jinja_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer/jinja"
)

// stacks returns the number of stacks that the process has mapped for renders, and the bytes that the
// largest one holds in memory.
func stacks(t *testing.T) (count, most int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	writable, size := false, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kilobytes int
		switch fields := strings.Fields(lines.Text()); {
		case strings.Contains(fields[0], "-"): // its addresses
			writable = fields[1] == "rw-p"
		case fields[0] == "Size:":
			_, err = fmt.Sscan(fields[1], &size)
			require.NoError(t, err)
		case fields[0] == "Rss:" && writable && size == 256<<10:
			_, err = fmt.Sscan(fields[1], &kilobytes)
			require.NoError(t, err)
			count, most = count+1, max(most, kilobytes<<10)
		}
	}
	return count, most
}

func TestAStackIsKeptForTheNextRender(t *testing.T) {
	first := 0
	for i := range 20 {
		_, err := render("{{ x }}", `{"x":1}`, limits)
		require.NoError(t, err)
		count, _ := stacks(t)
		if i == 0 {
			first = count
		}
		require.Positive(t, count)
		require.Equal(t, first, count)
	}
}

func TestAKeptStackHoldsLittleMemory(t *testing.T) {
	deep := limits
	deep.Steps = 100_000_000
	for _, rounds := range []string{"1", "20"} {
		_, err := render(grow("1", "{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}", rounds), "{}", deep)
		if rounds == "1" {
			require.NoError(t, err, "the first render succeeds, and frees its nested value on its stack")
		} else {
			require.ErrorIs(t, err, jinja.ErrLimit)
		}
		_, most := stacks(t)
		require.LessOrEqual(t, most, 512<<10)
	}
}
