package config

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// Sim is what the simulated device of the sim backend is, beyond its name.
type Sim struct {
	SimGBps         float64       // 0: the device's
	SimTFLOPS       float64       // 0: the device's
	SimLaunch       time.Duration // of each op; 0: the device's
	SimSpeed        float64       // 0: steps take no time
	SimAnswerTokens int           // 0: answers go on to their limit
	SimFault        string
}

// Register adds the settings to a command's flags.
func (s *Sim) Register(f *pflag.FlagSet) {
	s.RegisterDevice(f)
	f.Float64Var(&s.SimSpeed, "sim-speed", 1, "sim: how many times as fast as the device (0: steps take no time)")
	f.IntVar(&s.SimAnswerTokens, "sim-answer-tokens", 256, "sim: mean length of an answer that nothing else ends (0: it goes on to its limit)")
	f.StringVar(&s.SimFault, "sim-fault", "", "sim: step:N:KIND fails step N, step:N+:KIND every one from there on; KIND async, submit, resources, lost, or hang, which never returns")
}

// RegisterDevice adds those that change the device of --device.
func (s *Sim) RegisterDevice(f *pflag.FlagSet) {
	f.Float64Var(&s.SimGBps, "sim-gbps", 0, "sim: memory bandwidth in GB/s (0: that of --device)")
	f.Float64Var(&s.SimTFLOPS, "sim-tflops", 0, "sim: peak of 16-bit products in TFLOP/s (0: that of --device)")
	f.DurationVar(&s.SimLaunch, "sim-launch", 0, "sim: time to launch each op (0: that of --device)")
}

// Validate checks the ranges.
func (s *Sim) Validate() error {
	return errors.Join(
		atLeast("sim-gbps", s.SimGBps, 0),
		atLeast("sim-tflops", s.SimTFLOPS, 0),
		atLeast("sim-launch", s.SimLaunch, 0),
		atLeast("sim-speed", s.SimSpeed, 0),
		atLeast("sim-answer-tokens", s.SimAnswerTokens, 0),
	)
}
