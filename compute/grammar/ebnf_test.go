package grammar

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	patience = 10 * time.Second
	tick     = time.Millisecond
)

func TestAnEBNFGrammarBecomesLark(t *testing.T) {
	for source, want := range map[string]string{
		`root ::= "yes" | "no"`: "start: T0\nT0: \"yes\" | \"no\"\n",
		"root ::= item+ # one or more\nitem ::= [a-z_] [^\"\\n]{2,3} \"\\\"\"": "start: T0\nT0: T1+\nT1: /[\\x{61}-\\x{7A}\\x{5F}]/ /[^\\x{22}\\x{A}]/{2,3} \"\\\"\"\n",
		"root ::= \"(\" root \")\" |\n  digits?\ndigits ::= [0-9]{4,} 'é' .":   "start: r0\nr0: \"(\" r0 \")\" | T1?\nT1: /[\\x{30}-\\x{39}]/{4,} \"é\" /(?s:.)/\n",
		`root ::= ("a" | "b"){2} ""`:                                           "start: T0\nT0: (\"a\" | \"b\"){2,2} \"\"\n",
		"root ::= up # one\nup ::= down | \"x\"\ndown ::= \"y\" up":            "start: r0\nr0: r1\nr1: r2 | \"x\"\nr2: \"y\" r1\n",
	} {
		kind, got, err := (&Spec{Kind: Lark, Source: source}).Program()
		require.NoError(t, err, source)
		require.Equal(t, Lark, kind)
		require.Equal(t, want, got, source)
	}
	_, got, err := (&Spec{Kind: Lark, Source: `start: "a"`}).Program()
	require.NoError(t, err)
	require.Equal(t, `start: "a"`, got)
}

func TestABadEBNFGrammarIsRefusedWithItsLine(t *testing.T) {
	for source, want := range map[string]string{
		`a ::= "x"`:                      "no rule root",
		"root ::= \"a\"\nroot ::= \"b\"": "line 2: found rule root twice",
		"root ::= b":                     "which is no rule",
		"root ::= \"a":                   "line 1: found the end of the line",
		"root ::= [":                     "end of the line",
		"root ::= []":                    "empty class",
		"root ::= [z-a]":                 "lower character first",
		"root ::= (\"a\"":                "expected )",
		"root ::= \"a\"{3,2}":            "smaller number first",
		"root ::= \"a\"{x}":              "expected a number",
		"root ::= \"a\"{99999}":          "expected a number",
		"root ::= \"\\q\"":               "escape",
		"root ::= \"\\uD800\"":           "character",
		"x root ::= \"a\"":               "expected a rule",
		"root ::= \"a\" )":               "expected a rule",
		"root ::= %":                     "expected a rule, a string",
	} {
		_, _, err := (&Spec{Kind: Lark, Source: source}).Program()
		require.ErrorIs(t, err, ErrSpec, source)
		require.ErrorContains(t, err, want, source)
	}
}

func TestAChoiceIsOneTerminal(t *testing.T) {
	_, got, err := (&Spec{Kind: Choice, Source: ChoiceOf([]string{"a", "a\"b\n", "\x7f"})}).Program()
	require.NoError(t, err)
	require.Equal(t, "start: CHOICE\nCHOICE: \"a\" | \"a\\\"b\\n\" | \"\\u007f\"\n", got)
}

// FuzzEBNF: no grammar makes the reader panic or run for ever.
func FuzzEBNF(f *testing.F) {
	f.Add("root ::= (\"a\" | [^b-c]{2,})+ . low # one\nlow ::= '\\x41' root? # c")
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 1<<12 {
			return
		}
		if _, err := larkOfEBNF(source); err != nil {
			require.ErrorIs(t, err, ErrSpec)
		}
	})
}

func TestErrorsOfATranslatedGrammarHaveItsNames(t *testing.T) {
	s := Spec{Kind: Lark, Source: "root ::= \"a\" tail\ntail ::= \"b\" tail"} //nolint:dupword // a rule and its name
	err := s.explained(fmt.Errorf(`%w: line 3, column 4: no text of a part of "r1" ends`, ErrSpec))
	require.EqualError(t, err, `cannot be compiled: no text of a part of "tail" ends`)
	require.ErrorIs(t, err, ErrSpec)
	require.NoError(t, s.explained(nil))
	s.Source = `start: "r1"`
	require.ErrorContains(t, s.explained(fmt.Errorf(`%w: "r1"`, ErrSpec)), `"r1"`)
}
