"""A probe against the bare forward passes over its prompts, which it cannot do without."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from benchmarks.rows import Row, Scale, compared
from hf_memory.experiments.probing.cells import answer_jobs
from hf_memory.experiments.probing.formats import Layout
from hf_memory.experiments.probing.passes import make_runner
from hf_memory.experiments.probing.prompts import Case, make_jobs
from hf_memory.experiments.probing.scores import metrics_of
from hf_memory.experiments.probing.tables import LAWS
from hf_memory.experiments.probing.words import draw_vocabulary, find_pool, needed_words

PAIRS, ROWS, DRAWS = 8, 2, 2
MOST = 1.2
"""Of the bare passes, the time that a probe may take at 1,024 tokens."""


def probes(scale: Scale) -> Iterator[Row]:
    """A case of MQAR, from its draw to its metrics, against one batched pass over each of its prompts."""
    length, width, depth = (1024, 512, 2) if scale.length > 16 else (64, 32, 1)
    tokenizer = word_tokenizer()
    for name, make in public_models(len(tokenizer), width, depth).items():
        model = make().eval()
        probe, bare = steps(model, tokenizer, length)
        yield compared(f"{name}, width {width}, {length} tokens", probe, bare, scale, at_most=MOST)


def steps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, length: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The probe and the bare passes."""
    runner, layout, law = make_runner(model), Layout("pairs", tokenizer), LAWS["mqar"]
    pool = find_pool(layout, needed_words(PAIRS))
    vocabularies = [draw_vocabulary(pool, PAIRS, seed) for seed in range(DRAWS)]
    prompts = make_jobs(layout, law, vocabularies, Case(length, PAIRS), ROWS)
    shapes = [[job for job in prompts if job.changed == changed] for changed in (False, True)]
    batches = [torch.tensor([job.prefix + job.suffixes[0] for job in jobs]) for jobs in shapes]

    def probe() -> Any:
        jobs = make_jobs(layout, law, vocabularies, Case(length, PAIRS), ROWS)
        groups = ([job for job in jobs if job.changed == changed] for changed in (False, True))
        return metrics_of([answer for group in groups for answer in answer_jobs(runner, group)])

    @torch.inference_mode()
    def bare() -> Any:
        return [model(input_ids=ids, use_cache=False, logits_to_keep=1).logits.argmax(-1) for ids in batches]

    return probe, bare


def public_models(vocabulary: int, width: int, depth: int) -> dict[str, Callable[[], PreTrainedModel]]:
    """Random models of transformers, by name."""
    ends = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 4 * width}
    return {
        "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=depth, n_head=4, n_positions=1024, **ends)),
        "Llama": lambda: LlamaForCausalLM(
            LlamaConfig(hidden_size=width, num_hidden_layers=depth, **heads, **ends)  # type: ignore[arg-type]
        ),
    }


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of some thousand words."""
    words = ["".join(letters) for letters in itertools.product("bdfgklmnprst", "aeiou", "bdgklmnprst", "aeo")]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["<s>", "<unk>", *words])}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")
