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

var activationNames = []string{
	ActNone: "", ActSiLU: "silu", ActGELUTanh: "gelu_tanh", ActGELUErf: "gelu_erf", ActReLU: "relu",
	ActReLU2: "relu2", ActXIELU: "xielu", ActClamp: "clamp", ActSoftcap: "softcap", ActSwiGLU: "swiglu",
}

func (a Activation) String() string {
	if a >= 0 && int(a) < len(activationNames) {
		return activationNames[a]
	}
	return fmt.Sprintf("activation %d", int32(a))
}
