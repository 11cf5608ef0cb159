package model

import "fmt"

// opNames returns the name of each kind of op in the C ABI, in lower case, by kind. Kind 0 has none.
func opNames() []string {
	return []string{
		OpEmbed:      "embed",
		OpNorm:       "norm",
		OpLinear:     "linear",
		OpRopeStore:  "rope_store",
		OpAttention:  "attention",
		OpSelectRows: "select_rows",
		OpRoute:      "route",
		OpConv:       "conv",
		OpRecur:      "recur",
		OpGate:       "gate",
		OpAltUp:      "altup",
	}
}

// OpNames returns the names of all kinds of op.
func OpNames() []string { return opNames()[1:] }

// String returns the kind's name in the C ABI, in lower case.
func (k OpKind) String() string {
	if names := opNames(); k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("op %d", int32(k))
}

func (a Activation) String() string {
	switch a {
	case ActNone:
		return ""
	case ActSiLU:
		return "silu"
	case ActGELUTanh:
		return "gelu_tanh"
	case ActGELUErf:
		return "gelu_erf"
	case ActReLU:
		return "relu"
	case ActReLU2:
		return "relu2"
	case ActXIELU:
		return "xielu"
	case ActClamp:
		return "clamp"
	case ActSoftcap:
		return "softcap"
	case ActSwiGLU:
		return "swiglu"
	}
	return fmt.Sprintf("activation %d", int32(a))
}
