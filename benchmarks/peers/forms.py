"""Makes random models of other forms than Llama's, to measure beside llama.cpp and to run the fault suite with.

    pip install torch transformers==5.24.0 gguf safetensors
    python benchmarks/peers/forms.py OUT [--llama LLAMA_CPP] FORM ...

OUT/FORM is the model in safetensors (llama-1b-gptq and -awq: in the packings of GPTQ and AWQ), OUT/FORM.gguf the same in BF16 by llama.cpp's own converter, of the
source tree LLAMA_CPP. llama-quantize makes other types of that.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
WORDS = {"vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
DEMO = {"vocab_size": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
THREE_TO_ONE = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]


def qwen3_moe(**sizes):
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, decoder_sparse_step=1, norm_topk_prob=True))


def qwen3_5(**sizes):
    layers = THREE_TO_ONE * (sizes["num_hidden_layers"] // 4)
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**sizes, layer_types=layers))


def gpt_oss(**sizes):
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, sliding_window=128))


def gemma3(**sizes):
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes))


def deepseek(**sizes):
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes))


def bert(**sizes):
    return transformers.BertModel(transformers.BertConfig(**sizes))


FORMS = {
    # 3.1 billion parameters, 0.43 of them for a token.
    "qwen3-moe-3b": lambda: qwen3_moe(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=2048,
        moe_intermediate_size=512, num_experts=80, num_experts_per_tok=8, max_position_embeddings=16384, **WORDS,
    ),
    "qwen3_5-1b": lambda: qwen3_5(
        hidden_size=1536, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2, head_dim=256, intermediate_size=5120,
        linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
        max_position_embeddings=16384, **WORDS,
    ),
    "gpt-oss-2b": lambda: gpt_oss(
        hidden_size=1024, num_hidden_layers=20, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=1024,
        num_local_experts=32, num_experts_per_tok=4, max_position_embeddings=16384, **WORDS,
    ),
    # The size of BERT base.
    "bert-110m": lambda: bert(vocab_size=30522),
    # With the demo model's tokenizer.
    "demo-moe": lambda: qwen3_moe(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512,
        moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4, max_position_embeddings=4096, **DEMO,
    ),
    "demo-hybrid": lambda: qwen3_5(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512,
        linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
        max_position_embeddings=4096, **DEMO,
    ),
    "demo-window": lambda: gemma3(
        hidden_size=256, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=512,
        sliding_window=256, max_position_embeddings=4096, query_pre_attn_scalar=64, **DEMO,
    ),
    "demo-latents": lambda: deepseek(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=64,
        qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32, intermediate_size=512, moe_intermediate_size=128, n_routed_experts=8,
        num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, max_position_embeddings=4096, **DEMO,
    ),
}


def tokenizer_of(form):
    """The folder whose tokenizer a form has; None: none."""
    return ROOT / "models" / "tiny-chat" if form.startswith("demo-") else None


# The 1.1 B Llama of `make bench-1b`, its linear layers as integers of 4 bits in groups of 128: GPTQ's with zeros in the middle, AWQ's with any.
INTEGERS = {"llama-1b-gptq": "gptq", "llama-1b-awq": "awq"}


def make_integers(form, out):
    """Writes random integers: what each layer stands for has about the size of random weights."""
    hidden, inner, layers, heads, kv_heads, group = 2048, 5632, 22, 32, 4, 128
    method = INTEGERS[form]
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=16384, architectures=["LlamaForCausalLM"], dtype="float16", **WORDS,
    )
    config.quantization_config = {"quant_method": method, "bits": 4, "group_size": group, "desc_act": False, "sym": method == "gptq", "version": "gemm"}
    torch.manual_seed(len(form))

    def words(*shape):
        return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)

    def table(*shape):
        return torch.randn(shape).mul_(0.02).half()

    narrow = hidden // heads * kv_heads
    tensors = {"model.embed_tokens.weight": table(config.vocab_size, hidden), "lm_head.weight": table(config.vocab_size, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden).half()
    for i in range(layers):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[layer + norm + ".weight"] = torch.ones(hidden).half()
        attention = {"q": (hidden, hidden), "k": (hidden, narrow), "v": (hidden, narrow), "o": (hidden, hidden)}
        matrices = {f"self_attn.{name}_proj": shape for name, shape in attention.items()}
        matrices |= {"mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner), "mlp.down_proj": (inner, hidden)}
        for name, (wide, high) in matrices.items():
            at = layer + name
            tensors[at + ".qweight"] = words(wide // 8, high) if method == "gptq" else words(wide, high // 8)
            middle = torch.full((wide // group, high // 8), 0x77777777, dtype=torch.int32)  # 8, stored less 1
            tensors[at + ".qzeros"] = middle if method == "gptq" else words(wide // group, high // 8)
            tensors[at + ".scales"] = torch.rand(wide // group, high).mul_(0.002).add_(0.003).half()
    part = out / f"{form}.part"
    part.mkdir(exist_ok=True)
    safetensors.torch.save_file(tensors, part / "model.safetensors")
    config.save_pretrained(part)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(ROOT / "models" / "tiny-chat" / name, part)
    part.rename(out / form)


def make(form, out):
    """Writes a model in bfloat16, config.json last: it marks the folder as whole."""
    torch.manual_seed(len(form))
    torch.set_default_dtype(torch.bfloat16)
    with torch.inference_mode():
        model = FORMS[form]().eval()
        if not form.startswith("demo-"):
            print(f"{form}: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters")
        else:  # so that answers differ from prompt to prompt
            for name, p in model.named_parameters():
                if p.ndim > 1:
                    p.mul_(3)
    part = out / f"{form}.part"
    model.save_pretrained(part)
    if folder := tokenizer_of(form):
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copy(folder / name, part)
    part.rename(out / form)


def vocabulary(path, size):
    """set_vocab of a class: the tokenizer of the folder, or numbers where it has none."""

    def set_vocab(self):
        w, merges, special = self.gguf_writer, [], set()
        tokens = [str(i) for i in range(size)]
        if (path / "tokenizer.json").exists():
            t = json.loads((path / "tokenizer.json").read_text())
            ids = dict(t["model"]["vocab"]) | {a["content"]: a["id"] for a in t["added_tokens"]}
            special = {a["content"] for a in t["added_tokens"]}
            merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
            tokens = sorted(ids, key=ids.__getitem__)
            w.add_chat_template(json.loads((path / "tokenizer_config.json").read_text())["chat_template"])
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(tokens)
        w.add_token_types([3 if s in special else 1 for s in tokens])  # control, normal
        w.add_token_merges(merges or ["0 1"])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_add_bos_token(False)

    return set_vocab


def convert(path, out):
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(path, False)
    if "n_routed_experts" in hparams:
        hparams["scoring_func"] = "sigmoid"  # which published configurations have, and transformers leaves out
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    cls.no_mtp = True
    cls.set_vocab = vocabulary(path, hparams["vocab_size"])
    cls(path, gguf.LlamaFileType.MOSTLY_BF16, out, model_name=path.name, hparams=hparams).write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("forms", nargs="+", choices=[*FORMS, *INTEGERS], metavar="FORM", help=", ".join([*FORMS, *INTEGERS]))
    parser.add_argument("--llama", help="source tree of llama.cpp, for GGUF files")
    args = parser.parse_args()
    if args.llama:
        sys.path[:0] = [args.llama, args.llama + "/gguf-py"]
    args.out.mkdir(parents=True, exist_ok=True)
    for form in args.forms:
        if not (args.out / form).exists():
            (make_integers if form in INTEGERS else make)(form, args.out)
        if args.llama and form in FORMS and not (args.out / f"{form}.gguf").exists():
            convert(args.out / form, args.out / f"{form}.gguf")


if __name__ == "__main__":
    main()
