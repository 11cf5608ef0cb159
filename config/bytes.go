package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of memory, written "2GiB", "512 MiB", "1.5GB" or "4096".
// KiB, MiB, GiB, TiB are powers of 1024, KB, MB, GB, TB of 1000. It is a
// pflag.Value.
type Bytes int64

var errBytes = errors.New(`expected an amount like "2GiB" or "512MiB"`)

// unit is the number of bytes of a lower-case unit.
func unit(name string) (int64, bool) {
	switch name {
	case "", "b":
		return 1, true
	case "kb":
		return 1e3, true
	case "mb":
		return 1e6, true
	case "gb":
		return 1e9, true
	case "tb":
		return 1e12, true
	case "k", "ki", "kib":
		return 1 << 10, true
	case "m", "mi", "mib":
		return 1 << 20, true
	case "g", "gi", "gib":
		return 1 << 30, true
	case "t", "ti", "tib":
		return 1 << 40, true
	}
	return 0, false
}

// Set parses s.
func (b *Bytes) Set(s string) error {
	s = strings.TrimSpace(s)
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	size, ok := unit(strings.ToLower(strings.TrimSpace(s[len(digits):])))
	if !ok {
		return errBytes
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsNaN(n) {
		return errBytes
	}
	if n < 0 || n*float64(size) >= math.MaxInt64 {
		return fmt.Errorf("%w between 0 and 8 EiB", errBytes)
	}
	*b = Bytes(n * float64(size))
	return nil
}

// String is in the largest binary unit that divides the amount.
func (b Bytes) String() string {
	for _, u := range []struct {
		name string
		size Bytes
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Type is the word for the value in help texts.
func (Bytes) Type() string { return "bytes" }
