"""transformers, through generate in bfloat16."""

from pathlib import Path

import torch
import transformers

import worker


class Laps(transformers.StoppingCriteria):
    """Times the tokens: generate calls it after each token to see whether to stop."""

    def __init__(self) -> None:
        self.watch = worker.Stopwatch()
        self.laps: list[float] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        self.laps.append(self.watch.lap())
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Transformers:
    def __init__(self, path: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def measure(self, case: worker.Case) -> worker.Times:
        prompts = torch.tensor(case.prompts(self.model.config.vocab_size))
        config = transformers.GenerationConfig(
            max_new_tokens=case.gen + 1, do_sample=False, num_beams=case.beams, eos_token_id=None, pad_token_id=0
        )
        laps = Laps()
        with torch.inference_mode():
            self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                generation_config=config,
                stopping_criteria=transformers.StoppingCriteriaList([laps]),
            )
        return worker.Times(laps.laps[0], sum(laps.laps[1:]))


if __name__ == "__main__":
    worker.main(Transformers)
