package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Behavior is how a simulated device serves, beyond the time of its steps.
type Behavior struct {
	// Speed divides the time of each step: 2 is twice as fast as the device. 0: steps take no
	// time.
	Speed float64 `json:"speed"`
	// AnswerTokens is the mean number of tokens of an answer that nothing else ends. 0: such
	// an answer continues to its limit.
	AnswerTokens int `json:"answer_tokens"`
	// Fault makes steps fail. "step:N:KIND" fails step N, "step:N+:KIND" each step from N on;
	// KIND is async, submit, resources, lost or hang. "": no step fails.
	Fault string `json:"fault"`
}

// defaultBehavior applies where no file says otherwise.
func defaultBehavior() Behavior { return Behavior{Speed: 1, AnswerTokens: 256} }

// Validate returns an ErrDevice that names the first field at fault.
func (b *Behavior) Validate() error {
	if !(b.Speed >= 0 && b.Speed <= 1e9) {
		return fmt.Errorf("%w: speed is %g, expected 0 to 1e9", ErrDevice, b.Speed)
	}
	if b.AnswerTokens < 0 {
		return fmt.Errorf("%w: answer_tokens is %d, expected at least 0", ErrDevice, b.AnswerTokens)
	}
	_, err := parseFault(b.Fault)
	return err
}

// file is the JSON that Find reads.
type file struct {
	// Base is one of DeviceNames: keys that the file leaves out are those of this device. "":
	// the file describes a device by itself.
	Base string `json:"base"`
	Device
	Behavior
}

// readFile reads a description of a device.
func readFile(path string) (Device, Behavior, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Device{}, Behavior{}, fmt.Errorf("%w: %w", ErrDevice, err)
	}
	f, err := parseFile(text)
	if err != nil {
		return Device{}, Behavior{}, fmt.Errorf("%w: %s: %w", ErrDevice, path, err)
	}
	return f.Device, f.Behavior, nil
}

func parseFile(text []byte) (*file, error) {
	var base struct {
		Base string `json:"base"`
	}
	if err := json.Unmarshal(text, &base); err != nil {
		return nil, err
	}
	f := &file{Behavior: defaultBehavior()}
	if base.Base != "" {
		var err error
		if f.Device, err = named(base.Base); err != nil {
			return nil, fmt.Errorf("base: %w", err)
		}
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(f); err != nil {
		return nil, err
	}
	return f, errors.Join(f.Device.Validate(), f.Behavior.Validate())
}
