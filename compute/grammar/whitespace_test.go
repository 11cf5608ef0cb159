package grammar

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWhiteSpacePatternIsBoundedAndHasWhiteSpaceOnly(t *testing.T) {
	for _, expression := range []string{`[\n\t ]*`, `\s*`, ` +`, `( |\n)*`, `[ ]?`, ` {0,1000}`, ` {2,}`, `(?: *\n)?`, `\x20\x0A?`} {
		bounded, err := ParseWhiteSpace(expression)
		require.NoError(t, err, expression)
		r := regexp.MustCompile(`^(?:` + bounded + `)$`)
		for _, text := range []string{"", " ", "\n", "  ", " \n", strings.Repeat(" ", maxSpaces)} {
			require.Equal(t, regexp.MustCompile(`^(?:`+expression+`)$`).MatchString(text), r.MatchString(text), "%q: %q", expression, text)
		}
		require.False(t, r.MatchString(strings.Repeat(" ", maxSpaces*maxSpaces+1)), expression)
		require.False(t, r.MatchString("\f"), expression)
	}
	for _, expression := range []string{``, `(?:)`, ` {0}`} {
		bounded, err := ParseWhiteSpace(expression)
		require.NoError(t, err, expression)
		require.Empty(t, bounded, expression)
	}
	for expression, why := range map[string]string{
		`a*`: `it allows 'a'`, `[^x]`: "it allows", `.*`: "it has", `^ `: "it has", `(`: "expected a regular expression", `\d`: "it allows",
		" \u00a0": "it allows",
	} {
		_, err := ParseWhiteSpace(expression)
		require.ErrorContains(t, err, why, expression)
	}
}
