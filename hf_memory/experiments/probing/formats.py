"""How rows of words are written as text for a language model: named formats, each with a version.

A row is a context of units, ``given`` words with the words that ``answer`` them, filler before and behind them, and a
query, which is the given part of a unit without its answer. A format says what stands between these. What the model
reads is not assumed: :class:`Layout` learns from the tokenizer which ids the fixed pieces have, puts the ids of a row
together, and holds them against those of the whole text, for every single prompt.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from hf_memory.names import check_names

_MARK = "HFMEMORYCONTENT"
_UNKNOWN = (KeyError, ValueError, RuntimeError, TypeError)


@dataclasses.dataclass(frozen=True)
class Unit:
    """Words that are given and words that answer them, as numbers of words of a vocabulary."""

    given: tuple[int, ...]
    answer: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Format:
    """Fixed pieces of text around words; every word comes with a space before it.

    Attributes:
        name: Name of the format.
        version: Moves whenever a text of the format changes.
        head: Before everything.
        between: Between given words and their answer.
        end: Behind a unit.
        fill_end: Behind a block of filler.
        query_end: Between the query and its answer.
        chat: Whether all of this is a user's message, put in the model's chat template.
        reply: Where ``chat``, the beginning of the model's reply.
    """

    name: str
    version: str
    head: str = ""
    between: str = ""
    end: str = ""
    fill_end: str = ""
    query_end: str = ""
    chat: bool = False
    reply: str = ""


FORMATS = {
    "pairs": Format("pairs", "1.0.0"),
    "lines": Format("lines", "1.0.0", between=":", end="\n", fill_end="\n", query_end=":"),
    "chat": Format(
        "chat",
        "1.0.0",
        head="Each line below has words on the left and what belongs to them on the right. Complete the last line.\n",
        between=":",
        end="\n",
        fill_end="\n",
        query_end=":",
        chat=True,
        reply="The answer is",
    ),
}


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Ids of a row, and where its answers stand.

    Attributes:
        text: What the model reads before the query.
        prefix: Ids before the query.
        places: Position of the first answer token of each unit; of its last token where there is no answer.
    """

    text: str
    prefix: list[int]
    places: list[int]


class Layout:
    """A format as one tokenizer writes it.

    Args:
        name: Name of the format.
        tokenizer: The model's tokenizer.

    Raises:
        ValueError: The format is unknown, needs a chat template that there is none of, or cannot be written so that
            each word is one token and pieces do not merge.
    """

    def __init__(self, name: str, tokenizer: Any):
        check_names([name], FORMATS, "format")
        self.format, self.tokenizer = FORMATS[name], tokenizer
        self.before, self.after = ("", "")
        if self.format.chat:
            self.before, self.after = _chat_frame(tokenizer)
        self.head = self.before + self.format.head
        self.tail = self.format.query_end + self.after + self.format.reply
        self.bos = [] if self.format.chat else leading_ids(tokenizer)
        self.strip = False
        self.ids: dict[str, list[int]] = {}

    def learn(self, candidates: Sequence[str]) -> str:
        """Learn the ids of the fixed pieces from the first candidate that is one token everywhere; it is returned.

        Raises:
            ValueError: No candidate is.
        """
        for self.strip in (False, True):
            for word in candidates:
                if self._learn_from(word):
                    return word
        raise ValueError(
            f"format: the tokenizer writes no word as one token of its own in the format {self.format.name!r}, or "
            "merges neighbours; give another --format"
        )

    def _learn_from(self, word: str) -> bool:
        ids: dict[str, list[int]] = {}
        token: list[int] | None = None
        text, known = "", list[int]()
        for piece in self._sample(word):
            text += piece
            now = self.encode(text)
            if now is None or now[: len(known)] != known:
                return False
            new, known = now[len(known) :], now
            if piece == f" {word}":
                if len(new) != 1 or (token is not None and new != token):
                    return False
                token = new
            elif ids.setdefault(piece, new) != new:
                return False
        self.ids = ids
        return True

    def _sample(self, word: str) -> list[str]:
        """A text in which each piece stands at each place that rows have for it."""
        form, w = self.format, f" {word}"
        unit = [w, w, form.between, w, w, form.end]
        pieces = [self.head, w, w, form.fill_end, *unit, *unit, w, w, form.fill_end, w, self.tail, w, w]
        return [piece for piece in pieces if piece]

    def token_of(self, words: Sequence[str]) -> dict[str, int]:
        """The words that are one token each, the same at every place of the format, with its id."""
        samples = [self._sample(word) for word in words]
        texts = ["".join(pieces) for pieces in samples]
        encoded = self.encode_all(texts) or [self.encode(text) for text in texts]
        found, place = {}, len(self.ids.get(self.head, []))
        for word, pieces, ids in zip(words, samples, encoded, strict=True):
            token = ids[place] if ids is not None and place < len(ids) else -1
            wanted = [t for piece in pieces for t in ([token] if piece == f" {word}" else self.ids[piece])]
            if ids == wanted:
                found[word] = token
        return found

    def encode(self, text: str) -> list[int] | None:
        """Ids of a text without special tokens; None where the tokenizer cannot write it."""
        found = self.encode_all([text])
        return found[0] if found else None

    def encode_all(self, texts: Sequence[str]) -> list[list[int] | None] | None:
        """Ids of texts without special tokens; None for all where the tokenizer raises, as some do at a new word."""
        cut = [text[1:] if self.strip and text.startswith(" ") else text for text in texts]
        try:
            found = self.tokenizer(cut, add_special_tokens=False)["input_ids"]
        except Exception as error:
            # Tokenizers without an unknown token raise what they like, plain exceptions among them.
            if isinstance(error, _UNKNOWN) or type(error) is Exception:
                return None
            raise
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return [None if unknown is not None and unknown in ids else list(ids) for ids in found]

    def unit_size(self, given: int, answer: int) -> int:
        """Tokens of a unit."""
        between = self._size(self.format.between) if answer else 0
        return given + between + answer + self._size(self.format.end)

    def fixed_size(self, query: int) -> int:
        """Tokens of a prompt without its units and filler: what stands before all, and a query of so many words."""
        return len(self.bos) + self._size(self.head) + query + self._size(self.tail)

    def _size(self, piece: str) -> int:
        return len(self.ids[piece]) if piece else 0

    def filler_words(self, tokens: int) -> int:
        """Words of a block of filler of so many tokens.

        Raises:
            ValueError: There is no such block.
        """
        words = tokens - self._size(self.format.fill_end) if tokens else 0
        if words < 0 or (tokens and not words):
            raise ValueError(f"filler: no block of {tokens} tokens can be written in the format {self.format.name!r}")
        return words

    def prompt(
        self,
        units: Sequence[Unit],
        before: Sequence[int],
        behind: Sequence[int],
        words: Sequence[str],
        ids: Sequence[int],
    ) -> Prompt:
        """Write the part of a row before its query, and its intended ids.

        Args:
            units: The context.
            before: Filler before the units.
            behind: Filler behind them.
            words: Words by number.
            ids: Their ids.
        """
        form = self.format
        text, prefix, places = [self.head], [*self.bos, *(self.ids[self.head] if self.head else [])], []

        def write(numbers: Sequence[int], piece: str) -> None:
            text.extend(f" {words[number]}" for number in numbers)
            prefix.extend(ids[number] for number in numbers)
            if piece:
                text.append(piece)
                prefix.extend(self.ids[piece])

        if before:
            write(before, form.fill_end)
        for unit in units:
            if unit.answer:
                write(unit.given, form.between)
                places.append(len(prefix))
                write(unit.answer, form.end)
            else:
                places.append(len(prefix) + len(unit.given) - 1)
                write(unit.given, form.end)
        if behind:
            write(behind, form.fill_end)
        return Prompt("".join(text), prefix, places)

    def suffix(self, given: Sequence[int], ids: Sequence[int]) -> list[int]:
        """Ids of a query."""
        return [*(ids[number] for number in given), *(self.ids[self.tail] if self.tail else [])]

    def whole(self, prompt: Prompt, query: Unit, words: Sequence[str], ids: Sequence[int]) -> tuple[str, list[int]]:
        """The whole text of a query with its answer, and the ids that are intended for it, without leading ones."""
        given, answer = ("".join(f" {words[number]}" for number in part) for part in (query.given, query.answer))
        wanted = [*prompt.prefix[len(self.bos) :], *self.suffix(query.given, ids), *(ids[n] for n in query.answer)]
        return prompt.text + given + self.tail + answer, wanted

    def check(self, prompts: Sequence[tuple[str, list[int]]]) -> None:
        """Raise a ``ValueError`` unless the tokenizer reads each text as the ids intended for it."""
        encoded = self.encode_all([text for text, _ in prompts])
        for number, (_, wanted) in enumerate(prompts):
            found = None if encoded is None else encoded[number]
            if found != wanted:
                pairs = enumerate(zip(found or [], wanted, strict=False))
                place = next((place for place, pair in pairs if pair[0] != pair[1]), min(len(found or []), len(wanted)))
                raise ValueError(
                    f"tokenizer: it merges neighbours in the format {self.format.name!r}: its ids differ from the "
                    f"intended ones at token {place}; give another --format"
                )


def leading_ids(tokenizer: Any) -> list[int]:
    """The special ids that a tokenizer puts before a text by itself.

    What it puts behind one, as those of classifiers do, is left out: the model is to go on from there.
    """
    marked = list(tokenizer("")["input_ids"])
    bos = tokenizer.bos_token_id
    if bos is not None and marked[:1] == [bos]:
        return [bos]
    cls = getattr(tokenizer, "cls_token_id", None)
    return [cls] if cls is not None and marked[:1] == [cls] else []


def _chat_frame(tokenizer: Any) -> tuple[str, str]:
    """What a chat template puts before and behind a user's message, up to the model's reply.

    Raises:
        ValueError: There is no template, or it changes the message.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("format: 'chat' needs a tokenizer with a chat template, and this one has none")
    message = [{"role": "user", "content": _MARK}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    parts = re.split(_MARK, text)
    if len(parts) != 2:
        raise ValueError("format: the chat template does not hold the user's message once and unchanged")
    return parts[0], parts[1]
