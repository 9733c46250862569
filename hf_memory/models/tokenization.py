"""The tokenizer class of the tasks: one that names a word which it does not know."""

from typing import Any

from transformers import PreTrainedTokenizerFast


class TaskTokenizer(PreTrainedTokenizerFast):
    """A tokenizer of words between blanks, whose error for an unknown word says which one it is.

    Where the package is not installed, transformers reads the same files with its own class.
    """

    def tokenize(self, text: str, *args: Any, **kwargs: Any) -> list[str]:
        """Split a text. Raises a ``ValueError`` that names a word without an id, unless there is a token for those."""
        try:
            return super().tokenize(text, *args, **kwargs)
        except Exception as error:  # tokenizers raises nothing more special
            self._name_unknown(error, text)
            raise

    def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._encode_plus(text, *args, **kwargs)
        except Exception as error:  # tokenizers raises nothing more special
            self._name_unknown(error, text)
            raise

    def _name_unknown(self, error: Exception, text: Any) -> None:
        """Raise in the place of an error that comes from a word without an id."""
        known = self.get_vocab()
        unknown = next((word for word in _words(text) if word not in known), None)
        if unknown is None or self.unk_token is not None:
            return
        some = " ".join(sorted(known, key=known.__getitem__)[:20])
        more = f" and so on, {len(known)} in all" if len(known) > 20 else ""
        raise ValueError(f"text: {unknown!r} is no symbol of this task; its symbols are {some}{more}") from error


def _words(text: Any) -> list[str]:
    """The words of a text, or of texts at any depth."""
    return text.split() if isinstance(text, str) else [word for part in text for word in _words(part)]
