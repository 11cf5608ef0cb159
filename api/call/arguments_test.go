package call

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArgumentsOfAnEarlierCallAreAnObject(t *testing.T) {
	for text, want := range map[string]string{
		"": `{}`, " \n": `{}`, "null": `{}`, `{}`: `{}`, `{"a": 1}`: `{"a":1}`, ` {"a":1} `: `{"a":1}`,
		`"Tell me,"`: `{"input":"Tell me,"}`, `4`: `{"input":4}`, `true`: `{"input":true}`, `[1,2]`: `{"input":[1,2]}`,
		`"{\"a\":1}"`: `{"a":1}`, `"{\"a\""`: `{"input":"{\"a\""}`, `rm -r <x>`: `{"input":"rm -r <x>"}`, `[1, 2`: `{"input":"[1, 2"}`,
		`}`: `{"input":"}"}`, `"open`: `{"input":"\"open"}`, `{"a":1}}`: `{"input":"{\"a\":1}}"}`,
		`{`: `{}`, `{"`: `{}`, `{"a`: `{}`, `{"a"`: `{}`, `{"a":`: `{}`, `{"a":t`: `{}`, `{"a":-`: `{}`, `{"a":12`: `{"a":12}`,
		`{"a":1,`:   `{"a":1}`,
		`{"a":1,"b`: `{"a":1}`, `{"a":1,"b":`: `{"a":1}`, `{"city": "Par`: `{"city":"Par"}`, `{"a":"x\`: `{"a":"x"}`,
		`{"a":"x\\`:   `{"a":"x\\"}`,
		`{"a":"x\u00`: `{"a":"x"}`, `{"a":"x\u00e9`: `{"a":"xé"}`, `{"a":"\"`: `{"a":"\""}`, `{"a":"}{`: `{"a":"}{"}`,
		`{"a":[{"b":[1,2`: `{"a":[{"b":[1,2]}]}`, `{"a":[{"b":1},{"c`: `{"a":[{"b":1},{}]}`, `{"a":{"b":"c"}`: `{"a":{"b":"c"}}`,
	} {
		require.JSONEq(t, want, string(Arguments(text)), "%q", text)
	}
	for _, text := range []string{"", "a\n\"b\"", "<é>"} {
		require.Equal(t, text, TextOf(TextArguments(text)))
	}
	require.Equal(t, "ls -", TextOf(`{"input":"ls -`))
	require.Equal(t, `{"a":1}`, TextOf(`{"a":1}`))
}

func TestAnyBeginningOfArgumentsIsAnObject(t *testing.T) {
	const whole = ` {"a": "x\\\"y\u00e9\ud83d\ude00", "b": [1, -2.5e3, {"c": null, "d": [true, false, []]}], "e": {}, "f": "é😀"} `
	for n := range len(whole) {
		var v map[string]any
		require.NoError(t, json.Unmarshal(Arguments(whole[:n]), &v), "%q", whole[:n])
		require.NotContains(t, v, argument, "%q", whole[:n])
	}
}

func FuzzArguments(f *testing.F) {
	f.Add(`{"a":"\u00`)
	f.Fuzz(func(t *testing.T, text string) {
		var v map[string]any
		require.NoError(t, json.Unmarshal(Arguments(text), &v), "%q gave %s", text, Arguments(text))
	})
}
