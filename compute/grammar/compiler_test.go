package grammar

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func spec(source string) *Spec { return &Spec{Kind: Regex, Source: source, Param: "guided_regex"} }

func TestAProgramIsCompiledOnceForATenant(t *testing.T) {
	e := &fakeEngine{}
	c := NewCompiler(func() (Engine, error) { return e, nil })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := c.Check("a", spec("x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, e.compiled.Load())
	require.True(t, c.Known("a", spec("x")))
	require.False(t, c.Known("b", spec("x")), "tenants share nothing")
	require.NoError(t, c.Check("b", spec("x")))
	require.EqualValues(t, 2, e.compiled.Load())
	c.Forget("a", spec("x"))
	require.False(t, c.Known("a", spec("x")))
	require.Empty(t, c.queues)
}

func TestASpecThatCannotBeCompiledIsTriedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		c := NewCompiler(func() (Engine, error) { return e, nil })
		for tries := range int64(2) {
			for range 3 {
				require.ErrorIs(t, c.Check("a", spec("bad")), ErrSpec)
			}
			require.Equal(t, tries+1, e.compiled.Load())
			time.Sleep(refusalKept + 1) //nolint:forbidigo // the clock is not a real one
		}
		require.ErrorIs(t, c.Check("a", &Spec{Kind: Regex}), ErrSpec)
		require.ErrorIs(t, c.Check("a", &Spec{Kind: "xml", Source: "x", Param: "p"}), ErrSpec)
		for _, wrong := range []Spec{{SkipTo: "b"}, {After: "a", SkipFrom: "b"}, {After: "a", SkipFrom: "bab", SkipTo: "c"},
			{After: "a", SkipTo: strings.Repeat("b", MaxMarker+1)},
			{Opening: "a"}, {After: "a", Opening: "bab"}} {
			wrong.Kind, wrong.Source, wrong.Param = Regex, "x", "p"
			require.ErrorIs(t, c.Check("a", &wrong), ErrSpec)
		}
	})
}

func TestAModelWithoutAVocabularyRefusesAllSpecs(t *testing.T) {
	opened := 0
	c := NewCompiler(func() (Engine, error) { opened++; return nil, errors.New("no tokenizer.json") })
	for range 3 {
		err := c.Check("a", spec("x"))
		require.ErrorIs(t, err, ErrSpec)
		require.ErrorContains(t, err, "no tokenizer.json")
	}
	require.Equal(t, 1, opened)
}

func TestProgramsAreBoundedInNumberAndBytesForEachTenant(t *testing.T) {
	e := &fakeEngine{held: 1}
	c := NewCompiler(func() (Engine, error) { return e, nil })
	require.NoError(t, c.Check("b", spec("y")))
	for i := range 2 * maxTenantPrograms {
		require.NoError(t, c.Check("a", spec(fmt.Sprint(i))))
	}
	require.Len(t, c.programs, maxTenantPrograms+1)
	require.True(t, c.Known("b", spec("y")), "another tenant's")
	require.True(t, c.Known("a", spec(fmt.Sprint(2*maxTenantPrograms-1))))
	require.False(t, c.Known("a", spec("0")))
	e.held = maxTenantHeld / 3
	require.NoError(t, c.Check("a", spec("more")))
	require.Len(t, c.programs, 2+1, "the programs have grown")
	for tenant := range 40 {
		require.NoError(t, c.Check(fmt.Sprint(tenant), spec("z")))
	}
	require.LessOrEqual(t, len(c.programs)*e.held, maxHeld)
	require.Equal(t, len(c.programs), c.latest.Len())
}

// TestATenantCompilesOneSpecAtATime: others do not wait for it, and what waits is bounded.
func TestATenantCompilesOneSpecAtATime(t *testing.T) {
	e := &fakeEngine{block: make(chan struct{}), begun: make(chan string, maxQueued+8)}
	c := NewCompiler(func() (Engine, error) { return e, nil })
	var wg sync.WaitGroup
	check := func(tenant, source string) {
		wg.Go(func() {
			if err := c.Check(tenant, spec(source)); err != nil {
				t.Error(err)
			}
		})
	}
	check("a", "0")
	require.Equal(t, "0", <-e.begun)
	for i := range maxQueued - 1 {
		check("a", fmt.Sprint(i+1))
	}
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.queues["a"].waiting == maxQueued
	}, patience, tick)
	require.ErrorIs(t, c.Check("a", spec("one more")), ErrBusy)
	check("b", "b")
	require.Equal(t, "b", <-e.begun)
	require.Empty(t, e.begun)
	close(e.block)
	wg.Wait()
	require.Empty(t, c.queues)
}
