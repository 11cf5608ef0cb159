package openai

import "encoding/json"

// ProgramVersion is the answer of vLLM's /version.
type ProgramVersion struct {
	Version string `json:"version"`
}

// EncodeVersion returns the body of the answer to a version call.
func EncodeVersion(version string) ([]byte, error) { return json.Marshal(ProgramVersion{version}) }
