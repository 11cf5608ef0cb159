"""Exports a Hugging Face directory to OpenVINO, weights as bf16, int8 or int4 (optimum-intel)."""

import argparse
import shutil
from pathlib import Path

from optimum.exporters.openvino.convert import export_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer

QUANTIZATION = {
    "bf16": None,  # as the checkpoint has them
    "int8": OVWeightQuantizationConfig(bits=8, sym=True),
    # The embedding and the head stay at 8 bit, as optimum-intel's defaults have it.
    "int4": OVWeightQuantizationConfig(bits=4, sym=True, group_size=128, ratio=1.0),
}


def convert(model: Path, out: Path, weights: str) -> None:
    """Writes out whole or not at all."""
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    quantization = QUANTIZATION[weights]
    # load_in_8bit: the exporter makes int8 of a model of a billion weights unless this is False.
    options = {"quantization_config": quantization} if quantization else {"load_in_8bit": False}
    OVModelForCausalLM.from_pretrained(model, export=True, compile=False, **options).save_pretrained(part)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(part)
    export_tokenizer(tokenizer, part)
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
