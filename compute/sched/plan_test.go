package sched

import (
	"reflect"
	"testing"
)

func TestResetEmptiesThePlan(t *testing.T) {
	p := Plan{
		Step: 6, Chunks: make([]Chunk, 1, 2), Release: make([]ID, 1, 2), Reserve: make([]Reservation, 1, 2),
		Lease: make([]Lease, 1, 2), Spill: make([]Spill, 1, 2), Restore: make([]Reservation, 1, 2), Ended: make([]End, 1, 2),
	}
	v := reflect.ValueOf(&p).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(1)
		case reflect.Bool:
			f.SetBool(true)
		}
		if v.Field(i).IsZero() {
			t.Fatalf("the test leaves %s empty", v.Type().Field(i).Name)
		}
	}
	p.reset()
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch {
		case f.Kind() == reflect.Slice:
			if f.Len() != 0 || f.Cap() != 2 {
				t.Errorf("%s has %d of %d items, expected none and its memory", name, f.Len(), f.Cap())
			}
		case name == "Step":
			if p.Step != 7 {
				t.Errorf("step %d follows step 6", p.Step)
			}
		case !f.IsZero():
			t.Errorf("%s is %v", name, f)
		}
	}
}
