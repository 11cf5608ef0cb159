package sched

import (
	"fmt"
	"testing"
)

func TestTheLengthOfAnAnswerIsPredicted(t *testing.T) {
	repeat := func(a *answers, tenant string, prompt, n, length int) {
		for range n {
			a.add(tenant, prompt, length)
		}
	}
	for _, c := range []struct {
		name     string
		add      func(a *answers)
		min, max int // of the prediction for tenant a, prompts of 100 tokens
	}{
		{"nothing has ended", func(*answers) {}, priorAnswer, priorAnswer},
		{"too few have", func(a *answers) { repeat(a, "a", 100, fewAnswers-1, 20) }, priorAnswer, priorAnswer},
		{"all are alike", func(a *answers) { repeat(a, "a", 100, 100, 200) }, 200, 240},
		{"less than half are long", func(a *answers) { repeat(a, "a", 100, 55, 50); repeat(a, "a", 100, 45, 4000) }, 50, 60},
		{"more than half are long", func(a *answers) { repeat(a, "a", 100, 45, 50); repeat(a, "a", 100, 55, 4000) }, 4000, 4800},
		{"other tenants know", func(a *answers) { repeat(a, "b", 100, 100, 20) }, 20, 24},
		{"its own count more", func(a *answers) { repeat(a, "a", 100, 16, 500); repeat(a, "b", 100, 400, 20) }, 500, 600},
		{"other prompts say nothing", func(a *answers) { repeat(a, "a", 10_000, 100, 20) }, priorAnswer, priorAnswer},
		{"answers became longer", func(a *answers) { repeat(a, "a", 100, 2000, 20); repeat(a, "a", 100, 400, 800) }, 800, 960},
		{"a length beyond all bins", func(a *answers) { repeat(a, "a", 100, 100, 1<<30) }, 1 << 21, 1 << 22},
	} {
		a := newAnswers()
		c.add(&a)
		if n := a.predict("a", 100, covered); n < c.min || n > c.max {
			t.Errorf("%s: predicted %d, expected %d to %d", c.name, n, c.min, c.max)
		}
	}
}

func TestPredictionsAreBoundedInMemory(t *testing.T) {
	a := newAnswers()
	for i := range 3 * mostTenants {
		a.add(fmt.Sprint(i), 100, 20)
		a.add("often", 100, 20)
	}
	if len(a.tenants) != mostTenants || a.tenants["often"] == nil {
		t.Fatalf("%d tenants, expected %d", len(a.tenants), mostTenants)
	}
}
