"""A small tokenizer for each task, so that rows can be read and checkpoints used in pipelines."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_memory.data.preview import symbols
from hf_memory.tasks.base import Task


def task_tokenizer(task: Task) -> PreTrainedTokenizerFast:
    """The tokenizer of a task: one word for each input id, separated by blanks.

    Words are the task's ``symbols``, or the ids themselves. A word that is none of them raises: there is no unknown
    token, and, as everywhere here, no padding token, because every id is a symbol of some row. Decoded text begins with
    a blank, so that a prompt and what is generated after it can be joined, which is what pipelines do.

    Raises:
        ValueError: Where the symbols are not one distinct word for each id.
    """
    words = symbols(task)
    if len(set(words)) != task.vocab_size or any(len(word.split()) != 1 or word != word.strip() for word in words):
        raise ValueError(f"symbols of {task.key} must be {task.vocab_size} distinct words without blanks")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Replace(Regex("^"), " ")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
