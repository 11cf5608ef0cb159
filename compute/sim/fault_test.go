package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sim"
)

// fails runs n steps and lists those that fail.
func fails(t *testing.T, fault string, n int) (failed []int) {
	t.Helper()
	o := options(t)
	o.Fault = fault
	r := open(t, o)
	for step := 1; step <= n; step++ {
		_, err := r.Run([]compute.Rows{{Region: region(t, r, 0), Tokens: []int32{1}}})
		if err != nil {
			require.ErrorIs(t, err, device.ErrDevice)
			require.NoError(t, r.Reload(), "steps are counted on")
			failed = append(failed, step)
		}
	}
	return failed
}

func TestTheStepsThatAreToFailDo(t *testing.T) {
	require.Empty(t, fails(t, "", 5))
	require.Equal(t, []int{3}, fails(t, "step:3:lost", 5))
	require.Equal(t, []int{4, 5}, fails(t, "step:4+:resources", 5))
}

func TestAStepThatHangsEndsWithTheRunner(t *testing.T) {
	o := options(t)
	o.Fault = "step:1:hang"
	r, err := sim.Open(o)
	require.NoError(t, err)
	g := region(t, r, 0)
	ended := make(chan error)
	go func() {
		_, err := r.Run([]compute.Rows{{Region: g, Tokens: []int32{1}}})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the step ended before: %v", err)
	default:
	}
	r.Close()
	require.ErrorContains(t, <-ended, "kind hang")
}

func TestAFaultThatIsNoneIsAnError(t *testing.T) {
	for _, fault := range []string{"step", "step:0:lost", "step:-1:lost", "step:1:fire", "step:x:lost", "step:1++:lost", "steps:1:lost",
		"step:1:lost:2", "step:1:"} {
		o := options(t)
		o.Fault = fault
		_, err := sim.Open(o)
		require.ErrorIs(t, err, sim.ErrFault, fault)
		require.ErrorContains(t, err, fault)
	}
}
