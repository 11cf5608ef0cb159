"""llama.cpp, through the C API that llama-cpp-python binds."""

import random
from importlib.metadata import version
from pathlib import Path

import llama_cpp as ll

import worker

MAX_BATCH = 16
CONTEXT = 640  # of each sequence


class LlamaCpp:
    def __init__(self, path: Path, threads: int) -> None:
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(str(path).encode(), ll.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        params = ll.llama_context_default_params()
        params.n_ctx = MAX_BATCH * CONTEXT
        params.n_batch = 2048
        params.n_seq_max = MAX_BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = ll.llama_init_from_model(self.model, params)
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.batch = ll.llama_batch_init(params.n_batch, 0, 1)
        system = ll.llama_print_system_info().decode()
        self.versions = {"llama-cpp-python": version("llama-cpp-python"), "llama.cpp flags": system.strip()}

    def measure(self, case: worker.Case) -> worker.Times:
        prompts = case.prompts(self.vocab)
        ll.llama_memory_clear(ll.llama_get_memory(self.context), False)
        watch = worker.Stopwatch()
        for sequence, prompt in enumerate(prompts):
            last = len(prompt) - 1
            self.run([(t, i, sequence, i == last) for i, t in enumerate(prompt)])
        prefill = watch.lap()
        r = random.Random(case.seed)
        for step in range(case.gen):
            position = case.prompt + step
            self.run([(r.randrange(self.vocab), position, s, True) for s in range(case.batch)])
        return worker.Times(prefill, watch.lap())

    def run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Runs rows of (token, position, sequence, whether its logits are wanted)."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence, output) in enumerate(rows):
            b.token[i], b.pos[i], b.logits[i] = token, position, output
            b.n_seq_id[i], b.seq_id[i][0] = 1, sequence
        if status := ll.llama_decode(self.context, b):
            raise SystemExit(f"llama_decode: status {status}")
        ll.llama_synchronize(self.context)


if __name__ == "__main__":
    worker.main(LlamaCpp)
