// Package grammarpb is the wire form of package grammar's specs: protobuf messages, and the conversion of both.
//
// It must not know what a spec means.
package grammarpb

import "github.com/millrace/millrace/compute/grammar"

// FromSpec returns the wire form of a spec; nil for nil.
func FromSpec(s *grammar.Spec) *Spec {
	if s == nil {
		return nil
	}
	return &Spec{
		Kind: string(s.Kind), Source: []byte(s.Source), Param: s.Param, After: []byte(s.After), Optional: s.Optional, Repeat: s.Repeat,
		SkipTo: []byte(s.SkipTo), SkipFrom: []byte(s.SkipFrom), Opening: []byte(s.Opening), Compact: s.Compact, WhiteSpace: s.WhiteSpace,
	}
}

// ToSpec is the inverse of FromSpec. The spec is not validated.
func (w *Spec) ToSpec() *grammar.Spec {
	if w == nil {
		return nil
	}
	return &grammar.Spec{
		Kind: grammar.Kind(w.GetKind()), Source: string(w.GetSource()), Param: w.GetParam(), After: string(w.GetAfter()),
		Optional: w.GetOptional(), Repeat: w.GetRepeat(), SkipTo: string(w.GetSkipTo()), SkipFrom: string(w.GetSkipFrom()),
		Opening: string(w.GetOpening()), Compact: w.GetCompact(), WhiteSpace: w.GetWhiteSpace(),
	}
}
