package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is a reference generation of the demo model.
type golden struct {
	PromptIDs   []int32 `json:"prompt_ids"`
	OutputIDs   []int32 `json:"output_ids"`
	MinMargin   float64 `json:"min_margin"`
	TopLogprobs [][]struct {
		ID      int32   `json:"id"`
		Logprob float64 `json:"logprob"`
	} `json:"top_logprobs"`
}

func goldens(t *testing.T) []golden {
	t.Helper()
	text, err := os.ReadFile("../../models/tiny-chat/goldens.json")
	require.NoError(t, err)
	var file struct {
		Goldens []golden `json:"goldens"`
	}
	require.NoError(t, json.Unmarshal(text, &file))
	require.Len(t, file.Goldens, 40)
	return file.Goldens
}

func ids(tokens []int32) string {
	texts := make([]string, len(tokens))
	for i, id := range tokens {
		texts[i] = strconv.Itoa(int(id))
	}
	return strings.Join(texts, ",")
}

// runLogits runs "millrace logits --json" with the demo model.
func runLogits(t *testing.T, args ...string) logitsResult {
	t.Helper()
	code, stdout, stderr := millrace(t, nil, append([]string{"logits", "--json"}, args...)...)
	require.Equal(t, 0, code, stderr)
	var r logitsResult
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Logits, len(r.Positions))
	for i, row := range r.Logits {
		require.Len(t, row, 4096, "position %d", r.Positions[i])
	}
	return r
}

// logprob is the log of id's softmax.
func logprob(row []float32, id int32) float64 {
	sum := 0.0
	for _, x := range row {
		sum += math.Exp(float64(x - row[id]))
	}
	return -math.Log(sum)
}

func TestLogitsAgreeWithTheDemoModelsReference(t *testing.T) {
	all := goldens(t)
	// The reference is float32 from the same weights, printed with 5 digits.
	for backend, tolerance := range map[string]float64{"ref": 1e-3, "cpu": 0.1} {
		for _, i := range []int{0, 4, 17} {
			g := all[i]
			r := runLogits(t, "--backend", backend, "--tokens", ids(append(g.PromptIDs, g.OutputIDs...)))
			require.NotEmpty(t, g.TopLogprobs)
			for j, top := range g.TopLogprobs {
				row := r.Logits[len(g.PromptIDs)-1+j]
				for _, want := range top {
					require.InDelta(t, want.Logprob, logprob(row, want.ID), tolerance, "%s, golden %d, output %d, token %d", backend, i, j,
						want.ID)
				}
			}
		}
	}
}

func TestLogitsOfAPositionDoNotDependOnWhichOthersArePrinted(t *testing.T) {
	var tokens []int32
	for i := range 2*logitsChunk + 5 { // the third chunk is a short one
		tokens = append(tokens, int32(10+i*7%4000))
	}
	all := runLogits(t, "--tokens", ids(tokens))
	require.Len(t, all.Positions, len(tokens))
	some := runLogits(t, "--tokens", ids(tokens), "--positions", "130,0,64")
	require.Equal(t, []int32{130, 0, 64}, some.Positions)
	for i, p := range some.Positions {
		require.Equal(t, all.Logits[p], some.Logits[i], "position %d", p)
	}
}

func TestLogitsRefusesWhatIsNoSequence(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, 2, "--tokens: found nothing, expected token ids separated by commas"},
		{[]string{"--tokens", "1,2", "--positions", "2"}, 2, "--positions: found 2, expected 0 to 1"},
		{[]string{"--tokens", "1,x"}, 2, "--tokens"},
		{[]string{"--tokens", "4096"}, 1, "4096"},
		{[]string{"--tokens", "1,-1"}, 1, "-1"},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"logits"}, tt.args...)...)
		require.Equal(t, tt.code, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}

// TestLogitsAreThoseOfTheWeightsAndTheCacheThatFlagsAskFor: each type has bits, and a digest,
// of its own.
func TestLogitsAreThoseOfTheWeightsAndTheCacheThatFlagsAskFor(t *testing.T) {
	seen := map[string]string{}
	for _, flags := range []string{"", "--weights=int8", "--weights=bf16+mlp.down=int4", "--kv-type=int8"} {
		args := []string{"--tokens", "1,2,3,4,5", "--positions", "4"}
		if flags != "" {
			args = append(args, flags)
		}
		r := runLogits(t, args...)
		require.Equal(t, r, runLogits(t, args...), "the same again")
		require.Len(t, r.Numerics, 32)
		for _, key := range []string{r.Numerics, fmt.Sprint(r.Logits)} {
			require.NotContains(t, seen, key, flags)
			seen[key] = flags
		}
	}
}
