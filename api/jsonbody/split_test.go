package jsonbody

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestElementsAreThoseOfTheDecoder(t *testing.T) {
	for _, list := range []string{
		`[]`, ` [ ] `, `[1]`, `[ 1 , -2.5e3 ,"a,]\"" , {"a":[1,{"b":"]"}]},[[]], null ,true]`, "[\n1\t,\r2]", `["\\",["\\\""]]`, `[{}]`,
		`[[],[]]`,
	} {
		var want []json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(list), &want))
		got, count, ok := Elements([]byte(list), 100)
		require.True(t, ok)
		require.Len(t, want, count)
		for i := range want {
			require.Equal(t, string(want[i]), string(got[i]), list)
		}
		some, count, _ := Elements([]byte(list), 1)
		require.LessOrEqual(t, len(some), 1)
		require.Len(t, want, count)
	}
	for _, other := range []string{`{}`, `"[]"`, `1`, ``, `null`} {
		_, _, ok := Elements([]byte(other), 9)
		require.False(t, ok, other)
	}
}

func FuzzElements(f *testing.F) {
	f.Add([]byte(`[ 1 , "a\"]" , {"a":[]} ]`))
	f.Fuzz(func(t *testing.T, list []byte) {
		var want []json.RawMessage
		if json.Unmarshal(list, &want) != nil || want == nil {
			return
		}
		got, count, ok := Elements(list, len(want))
		require.True(t, ok)
		require.Len(t, want, count)
		for i := range want {
			require.Equal(t, string(want[i]), string(got[i]))
		}
	})
}

func TestContentsAreCounted(t *testing.T) {
	c := contentsOf([]byte(`{"a": [1, "x,[{" , null, {"b": [true, -1.5]}], "c": 5, "d": "\"[", "e": [ ] }`))
	require.Equal(t, contents{containers: 5, strings: 7, commas: 7, scalars: 5}, c)
	require.Zero(t, contentsOf([]byte("[]]]}}")).scalars, "text that is not valid")
}
