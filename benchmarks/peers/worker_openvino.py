"""OpenVINO GenAI, through its continuous batching pipeline, which LLMPipeline uses too."""

from pathlib import Path

import numpy as np
import openvino
import openvino_genai as genai
from openvino_genai.py_openvino_genai import GenerationHandle

import worker

MAX_TOKENS = 2048  # of a step: all prompts of a case, so that no sequence decodes while another prefills


class OpenVINO:
    def __init__(self, path: Path, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = MAX_TOKENS
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        )
        self.vocab = len(self.pipeline.get_tokenizer().get_vocab())
        self.requests = 0
        self.versions = {"openvino-genai": genai.__version__, "openvino": openvino.__version__}

    def measure(self, case: worker.Case) -> worker.Times:
        handles = [self.add(prompt, case.gen + 1) for prompt in case.prompts(self.vocab)]
        watch = worker.Stopwatch()
        self.pipeline.step()
        prefill = watch.lap()
        if not all(h.can_read() for h in handles):
            raise SystemExit(f"{case}: the first step has not made a token for each sequence")
        steps = 0
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            steps += 1
        decode = watch.lap()
        if steps != case.gen:
            raise SystemExit(f"{case}: found {steps} steps, expected {case.gen}")
        return worker.Times(prefill, decode)

    def add(self, prompt: list[int], tokens: int) -> GenerationHandle:
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        self.requests += 1
        return self.pipeline.add_request(self.requests, openvino.Tensor(np.array([prompt], np.int64)), config)


if __name__ == "__main__":
    worker.main(OpenVINO)
