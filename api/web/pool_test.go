package web_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/web"
)

func TestThePageOfTheKVCacheShowsEverySlabOnce(t *testing.T) {
	module := fetch(t, web.Handler(), "/web/pool.js", "").Body.String()
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module")
	cmd.Stdin = strings.NewReader(module + `
import assert from "node:assert/strict";
const stats = { slabs: 10, used: 4, shared: 1, cached: 3, promised: 5, free: 1 };
assert.deepEqual(states(stats).map((s) => [s.name, s.slabs]), [["held", 3], ["shared", 1], ["cached", 3], ["free", 3]]);
const map = { cell_slabs: 4, held: [3, 0, 0], shared: [1, 0, 0], cached: [0, 2, 1] };
assert.deepEqual(cells(map, 10).map((c) => [c.all, c.held, c.shared, c.cached, c.free]), [[4, 3, 1, 0, 0], [4, 0, 0, 2, 2], [2, 0, 0, 1, 1]]);
const samples = [];
for (const at of [0, 1000, span, span + 1000]) remember(samples, at, stats);
assert.deepEqual(samples.map((s) => s.at), [1000, span, span + 1000]);
assert.deepEqual([samples[0].used, samples[0].full], [0.4, 0.7]);
assert.deepEqual(hitRatio({ tokens: 40, hits: 10 }, { tokens: 30, hits: 5 }), { all: "25.0%", recent: "50.0%" });
assert.equal(percent(0, 0), "–");
`)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
