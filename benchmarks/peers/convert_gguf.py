"""Writes a Llama of bf16 safetensors as GGUF, weights as bf16, Q8_0 (int8) or Q4_0 (int4)."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

QUANTIZATION = {
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "int8": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "int4": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and values (float32) of a safetensors file."""
    with path.open("rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    data = np.memmap(path, np.uint8, "r", 8 + size)
    for name, info in header.items():
        if name == "__metadata__":
            continue
        if info["dtype"] != "BF16":
            raise SystemExit(f"{path}: {name}: found {info['dtype']}, expected BF16")
        begin, end = info["data_offsets"]
        bits = data[begin:end].view(np.uint16).astype(np.uint32) << 16
        yield name, bits.view(np.float32).reshape(info["shape"])


def gguf_name(name: str) -> str:
    if layer := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name):
        return f"blk.{layer[1]}.{NAMES[layer[2]]}.weight"
    return NAMES[name.removesuffix(".weight")] + ".weight"


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """Orders the rows of a head as GGUF has them: the two of a rotated pair side by side."""
    rows = weights.shape[0] // heads
    return weights.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def add_config(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])


def add_tokenizer(w: gguf.GGUFWriter, t: dict[str, Any], bos: int, eos: int) -> None:
    ids = dict(t["model"]["vocab"])
    special = {a["content"]: a["id"] for a in t["added_tokens"]}
    ids |= special
    tokens = sorted(ids, key=ids.__getitem__)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if s in special else gguf.TokenType.NORMAL for s in tokens])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_bos_token_id(bos)
    w.add_eos_token_id(eos)
    w.add_add_bos_token(False)


def convert(model: Path, out: Path, weights: str) -> None:
    """Writes out whole or not at all."""
    config = json.loads((model / "config.json").read_text())
    kind, file_type = QUANTIZATION[weights]
    part = out.with_name(out.name + ".part")
    w = gguf.GGUFWriter(part, "llama", use_temp_file=True)
    w.add_name(model.name)
    w.add_file_type(file_type)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_config(w, config)
    eos = config["eos_token_id"]
    add_tokenizer(
        w,
        json.loads((model / "tokenizer.json").read_text()),
        config["bos_token_id"],
        eos[0] if isinstance(eos, list) else eos,
    )
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in tensors(model / "model.safetensors"):
        if rope := re.search(r"[qk]_proj", name):
            values = interleave(values, heads[rope[0]])
        if values.ndim == 1:  # a norm
            w.add_tensor(gguf_name(name), values)
        else:
            w.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    part.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=QUANTIZATION, default="bf16")
    args = parser.parse_args()
    convert(args.model, args.out, args.weights)


if __name__ == "__main__":
    main()
