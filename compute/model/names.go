package model

import "fmt"

// String is the kind's name in the C ABI, in lower case.
func (k OpKind) String() string {
	switch k {
	case OpEmbed:
		return "embed"
	case OpNorm:
		return "norm"
	case OpLinear:
		return "linear"
	case OpRopeStore:
		return "rope_store"
	case OpAttention:
		return "attention"
	case OpSelectRows:
		return "select_rows"
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
	}
	return fmt.Sprintf("activation %d", int32(a))
}
