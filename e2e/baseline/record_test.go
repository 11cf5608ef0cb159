package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachDifferenceFromTheBaselineIsNamed(t *testing.T) {
	recorded := facts{"same": "1", "changed": "1", "gone": "1"}
	found := facts{"same": "1", "changed": "2", "new": "1"}
	require.Equal(t, []string{
		`changed: found "2", recorded "1"`,
		`gone: not found, recorded "1"`,
		`new: found "1", which is not recorded`,
	}, compare(recorded, found, nil, false))
	require.Equal(t, []string{
		`changed: found "2", recorded "1"`,
		`gone: not found, recorded "1"`,
	}, compare(recorded, found, nil, true))
}

func TestAnAllowedDifferenceNeedsAReasonAndADifference(t *testing.T) {
	recorded := facts{"serve --sim-a": "", "serve --sim-b": "", "serve --x": "1", "TestOld": ""}
	found := facts{"serve --x": "2", "run --x": "2", "TestNew": ""}
	for name, c := range map[string]struct {
		allowed allowances
		wrong   []string
	}{
		"all allowed": {allowances{"serve --sim-*": "in the device file", "serve --x": "as the issue says", "Test*": "now TestNew: a better name"}, nil},
		"no reason":   {allowances{"serve*": "", "Test*": "renamed"}, []string{"serve*: allowed.yaml gives no reason"}},
		"stale":       {allowances{"*": "everything", "server": "nothing"}, []string{"server: allowed.yaml allows it, but nothing differs"}},
		"renamed to nothing": {
			allowances{"*": "everything", "TestOld": "now TestNewer"},
			[]string{`TestOld: allowed.yaml says that it is now "TestNewer", which is not there`},
		},
		"renamed by pattern": {
			allowances{"serve --*": "now run --*: shorter", "TestOld": "gone"},
			[]string{
				`serve --sim-a: allowed.yaml says that it is now "run --sim-a", which is not there`,
				`serve --sim-b: allowed.yaml says that it is now "run --sim-b", which is not there`,
			},
		},
	} {
		require.Equal(t, c.wrong, compare(recorded, found, c.allowed, true), name)
	}
}

func TestAStarStandsForAnyText(t *testing.T) {
	for pattern, expected := range map[string]string{
		"/paths/*": "~1v1/get", "*get": "/paths/~1v1/", "/*/get": "paths/~1v1", "*": "/paths/~1v1/get", "/paths/~1v1/get*": "", "/paths/~1v1/get": "",
	} {
		text, ok := match(pattern, "/paths/~1v1/get")
		require.True(t, ok, pattern)
		require.Equal(t, expected, text, pattern)
	}
	for _, pattern := range []string{"/paths", "v1*", "", "/paths/*/put", "/paths/~1v1/*1/get"} {
		_, ok := match(pattern, "/paths/~1v1/get")
		require.False(t, ok, pattern)
	}
}

func TestARecordReadsAsItWasWritten(t *testing.T) {
	f := facts{"a": "x = y", "b": ""}
	require.Equal(t, "a = x = y\nb\n", string(f.write()))
	again, err := read(f.write())
	require.NoError(t, err)
	require.Equal(t, f, again)
	_, err = read([]byte("a = 1\na = 1\n"))
	require.ErrorContains(t, err, "stands twice")
}

func TestProseOfADocumentIsNotCompared(t *testing.T) {
	f, err := flat([]byte(`{"description": "x", "properties": {"description": {"type": "string"}}, "enum": ["b", "a"], "of": [{"n": 1}], "none": {}}`),
		func(name string, value any) bool {
			_, text := value.(string)
			return text && name == "description"
		})
	require.NoError(t, err)
	require.Equal(t, facts{"/properties/description/type": `"string"`, "/enum": `["b","a"]`, "/of/0/n": "1", "/none": "{}"}, f)
}

func TestATestIsNamedAsGoNamesIt(t *testing.T) {
	for name, is := range map[string]bool{
		"TestX": true, "Test": true, "Test_x": true, "FuzzX": true, "BenchmarkX": true, "Example": true, "ExampleX_y": true,
		"TestMain": false, "Testing": false, "Exampled": false, "Check": false,
	} {
		require.Equal(t, is, isTest(name), name)
	}
}

// TestNoTestIsGoneThatTheAllowedDifferencesDoNotName compares the one record that needs no program.
func TestNoTestIsGoneThatTheAllowedDifferencesDoNotName(t *testing.T) {
	b, err := open("../../testdata/baseline")
	require.NoError(t, err)
	found, err := goTests(t.Context(), &subject{source: "../.."})
	require.NoError(t, err)
	wrong, err := b.compare(&record{name: "go-tests", mayGrow: true}, found)
	require.NoError(t, err)
	require.Empty(t, wrong)
}
