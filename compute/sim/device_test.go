package sim_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
)

func TestDevicesAreThoseOfTheTableAndOfFiles(t *testing.T) {
	for _, name := range sim.DeviceNames() {
		d, b, err := sim.Find(name)
		require.NoError(t, err)
		require.NoError(t, d.Validate())
		require.Equal(t, name, d.ID)
		require.Equal(t, sim.Behavior{Speed: 1, AnswerTokens: 256}, b)
	}
	auto, _, err := sim.Find("auto")
	require.NoError(t, err)
	require.Equal(t, "cpu", auto.ID)
	_, _, err = sim.Find("b300")
	require.ErrorContains(t, err, `found "b300", expected cpu, max-1550-tile, max-1100, flex-170`)

	want := sim.Device{
		Peak: sim.Peak{ID: "mine", GBps: 3.5, TFLOPS: 0.1}, StepSeconds: 1e-4,
		Reached: map[string][]sim.Share{"linear": {{Rows: 1, Share: 0.5}}},
	}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	found, _, err := sim.Find(path)
	require.NoError(t, err)
	require.Equal(t, want, found)
}

func TestAFileThatIsNoDeviceIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		`{"gbps":1}`:                                    "tflops is 0",
		`{"gbps":-1,"tflops":1}`:                        "gbps is -1",
		`{"gbps":1,"tflops":1,"spill_gbps":-1}`:         "spill_gbps is -1",
		`{"gbps":1,"tflops":1,"handover_gbps":-1}`:      "handover_gbps is -1",
		`{"gbps":1,"tflops":1,"sped":2}`:                `unknown field "sped"`,
		`{"gbps":1,"tflops":1,"speed":-1}`:              "speed is -1",
		`{"gbps":1,"tflops":1,"answer_tokens":-1}`:      "answer_tokens is -1",
		`{"gbps":1,"tflops":1,"fault":"step:0:lost"}`:   `found "step:0:lost"`,
		`{"base":"b300"}`:                               `base: sim: invalid device: found "b300", expected cpu`,
		`[1]`:                                           "cannot unmarshal array",
		`{"gbps":1,"tflops":1,"reached":{"matmul":[]}}`: `reached has "matmul", expected embed, norm, linear`,
		`{"gbps":1,"tflops":1,"reached":{"linear":[{"rows":2,"share":1},{"rows":2,"share":1}]}}`: "reached linear[1] is",
		`{"gbps":1,"tflops":1,"reached":{"linear":[{"rows":2,"share":0}]}}`:                      "reached linear[0] is",
	} {
		path := filepath.Join(t.TempDir(), "device.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, _, err := sim.Find(path)
		require.ErrorIs(t, err, sim.ErrDevice, text)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
	_, _, err := sim.Find("/nonexistent/device.json")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestCopiesOfKeysAndValuesHaveBandwidthsOfTheirOwn(t *testing.T) {
	var d sim.Device
	require.InDelta(t, 1.5, d.SpillSeconds(3e9), 1e-9)
	require.InDelta(t, 3, d.HandoverSeconds(3e9), 1e-9)
	d.SpillGBps, d.HandoverGBps = 20, 10
	require.InDelta(t, 0.15, d.SpillSeconds(3e9), 1e-9)
	require.InDelta(t, 0.3, d.HandoverSeconds(3e9), 1e-9)
}

func TestAFileChangesItsBase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slow.json")
	require.NoError(t,
		os.WriteFile(path, []byte(`{"base":"flex-170","gbps":2,"op_seconds":1e-5,"speed":0,"answer_tokens":0,"fault":"step:3:lost"}`),
			0o600))
	d, b, err := sim.Find(path)
	require.NoError(t, err)
	base, _, err := sim.Find("flex-170")
	require.NoError(t, err)
	want := base
	want.GBps, want.OpSeconds = 2, 1e-5
	require.Equal(t, want, d)
	require.Equal(t, sim.Behavior{Fault: "step:3:lost"}, b)

	require.NoError(t, os.WriteFile(path, []byte(`{"base":"cpu"}`), 0o600))
	d, b, err = sim.Find(path)
	require.NoError(t, err)
	require.Equal(t, "cpu", d.ID)
	require.Equal(t, sim.Behavior{Speed: 1, AnswerTokens: 256}, b)
}
