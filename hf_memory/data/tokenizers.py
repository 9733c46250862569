"""A small tokenizer for each task, so that rows can be read and checkpoints used in pipelines."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from hf_memory.data.preview import symbols
from hf_memory.models.tokenization import TaskTokenizer
from hf_memory.tasks.base import Task


def task_tokenizer(
    task: Task, *, eos_token: str | None = None, pad_token: str | None = None, unk_token: str | None = None
) -> TaskTokenizer:
    """The tokenizer of a task: one word for each input id, separated by blanks.

    Words are the task's ``symbols``, or the ids themselves. Unless tools that need them ask for more, a word that is
    none of them raises, and there is no padding token, because every id is a symbol of some row. Decoded text begins
    with a blank, so that a prompt and what is generated after it can be joined, which is what pipelines do.

    Args:
        task: The task.
        eos_token: A word for the end of a text. Words of one's own get the ids after those of the task, in the order of
            these arguments: a model that reads them has ``vocab_size=len(tokenizer)``.
        pad_token: A word for padding.
        unk_token: A word in whose place every unknown one stands.

    Raises:
        ValueError: Where the symbols are not one distinct word for each id, or an own word is one of them.
    """
    words = symbols(task)
    if len(set(words)) != task.vocab_size or any(_is_no_word(word) for word in words):
        raise ValueError(f"symbols of {task.key} must be {task.vocab_size} distinct words without blanks")
    given = {"eos_token": eos_token, "pad_token": pad_token, "unk_token": unk_token}
    reserved = {name: word for name, word in given.items() if word is not None}
    for name, word in reserved.items():
        if _is_no_word(word) or word in words or list(reserved.values()).count(word) > 1:
            raise ValueError(f"{name} must be a word without blanks that is no symbol of {task.key}, got {word!r}")
    vocabulary = {word: number for number, word in enumerate([*words, *reserved.values()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, **({"unk_token": unk_token} if unk_token else {})))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Replace(Regex("^"), " ")
    return TaskTokenizer(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        padding_side="right",
        **reserved,
    )


def _is_no_word(word: str) -> bool:
    return len(word.split()) != 1 or word != word.strip()
