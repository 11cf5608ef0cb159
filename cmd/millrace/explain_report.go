package main

import (
	"io"

	"github.com/millrace/millrace/compute/model"
)

// ExplainReport is a program in numbers, with what else was counted.
type ExplainReport struct {
	model.Explanation
	Beams    *BeamBytes `json:"beams,omitempty"`
	Launches *Launches  `json:"launches,omitempty"`

	program *model.Program
	steps   model.ExplainOptions
}

// Print writes the report for people.
func (r *ExplainReport) Print(out io.Writer) error {
	err := model.Explain(out, r.program, r.steps)
	if err == nil && r.Launches != nil {
		err = r.Launches.print(out)
	}
	if err == nil && r.Beams != nil {
		err = r.Beams.print(out)
	}
	return err
}
