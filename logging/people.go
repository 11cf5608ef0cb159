package logging

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Durations are the fields of logs that are durations: a line of JSON has their milliseconds.
func Durations() []string {
	return []string{"again", "delay", "grace", "silence", "took", "ttft"}
}

// digests are fields that compare processes. They are not for people, who find them with --log-format json.
func digests() []string { return []string{"numerics", "class", "text"} }

// forPeople gives the numbers of a line of the console their units. A field that ends in bytes is a size.
func forPeople(line map[string]any) error {
	for name, v := range line {
		number, ok := v.(json.Number)
		if !ok {
			continue
		}
		value, err := number.Float64()
		if err != nil {
			continue
		}
		switch {
		case slices.Contains(Durations(), name):
			line[name] = Duration(time.Duration(value * float64(time.Millisecond)))
		case name == "bytes" || strings.HasSuffix(name, "_bytes"):
			delete(line, name)
			line[strings.TrimSuffix(name, "_bytes")] = Size(value)
		case name == "percent":
			delete(line, name)
			line["done"] = number.String() + "%"
		}
	}
	return nil
}

// Duration writes a duration with three digits: "1.36s", "14.6ms".
func Duration(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 && unit < time.Second {
		unit *= 10
	}
	if d >= time.Minute {
		unit = time.Second
	}
	return d.Round(unit).String()
}

// Size writes a number of bytes for people: "1.5 GiB".
func Size[T int64 | uint64 | float64](bytes T) string {
	v, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for v >= 1024 && len(units) > 1 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%.0f B", v)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}
