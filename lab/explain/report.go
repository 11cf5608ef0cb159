package explain

import "io"

// Report is a program in numbers, with what else was counted.
type Report struct {
	Explanation
	Pool     *Pool     `json:"kv_pool,omitempty"` // of a server on this machine
	Beams    *Beams    `json:"beams,omitempty"`
	Launches *Launches `json:"launches,omitempty"`
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	err := r.Explanation.Print(out)
	if err == nil && r.Pool != nil {
		err = r.Pool.Print(out)
	}
	if err == nil && r.Launches != nil {
		err = r.Launches.Print(out)
	}
	if err == nil && r.Beams != nil {
		err = r.Beams.Print(out)
	}
	return err
}
