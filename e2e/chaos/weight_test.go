package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func held(values ...float64) (all weights) {
	for _, v := range values {
		all = append(all, weight{"x-1": {"open files": v}})
	}
	return all
}

func TestGrowthIsJudgedOnceTheProcessesAreWarm(t *testing.T) {
	require.NoError(t, held(10, 50, 100, 110, 100, 120, 108, 114, 999).flat(), "a warm-up and an outlier")
	require.ErrorContains(t, held(100, 100, 100, 100, 100, 100, 100, 109, 110).flat(),
		"x-1: open files grew from 100.0 in the second third of the rounds to 109.0 in the last, expected at most 108.0")
	require.Contains(t, held(1, 2, 3, 4, 5, 6, 7, 8).table()[2], "| x-1 | | 1.5, 4.0, 7.0 |", "thirds of two, three and three rounds")
}
