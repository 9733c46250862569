r"""Equations of docstrings, written to be read in code, as LaTeX.

>>> equation("h_t = a h_{t-1} + (1 - a) W x_t")
'h_{t} = a h_{t-1} + (1 - a) W x_{t}'
>>> cells("S_t = g_h S_{t-1} / sqrt(K),    o_t = S_t^T q_t        per head")
['S_{t} = g_{h} S_{t-1} / \\sqrt{K},', 'o_{t} = S_{t}^{\\mathsf{T}} q_{t}', '\\text{per head}']

A line is cut into cells where two or more spaces stand. A cell with a relation is an equation, any other a remark.
"""

import re

GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"),
    *("xi", "pi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega"),
)
_SYMBOLS = {"eps": r"\varepsilon", "phi": r"\varphi", **{name: rf"\{name}" for name in GREEK if name != "phi"}}
_RELATIONS = {"<-": r"\leftarrow", "<=": r"\le", ">=": r"\ge", "...": r"\dots", "+-": r"\pm"}
_STEPS = {"dt"}
_RELATION = re.compile(r"<-|<=|>=|=|(?<= )[<>](?= )| in ")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[A-Za-z]+)
    | (?P<relation><-|<=|>=|\.\.\.|\+-)
    | (?P<dot>\.(?=\s))
    | (?P<script>[_^])
    | (?P<prime>'+)
    | (?P<sign>[-+*/=<>,;:|()\[\]{}.])""",
    re.VERBOSE,
)
_SCRIPT = r"[_^](?:\{[^}]*\}|\([^)]*\)|-?\w+?(?=[_^\W]|$))"
_SYMBOL = re.compile(
    rf"(?<![\w`.])(?:\d+(?=\^)|dt(?=_)|[A-Za-z]|{'|'.join(GREEK)})'*(?:{_SCRIPT})+"
    rf"|\|(?:[A-Za-z]|{'|'.join(GREEK)})(?:{_SCRIPT})*\|(?:{_SCRIPT})*"
    rf"|(?<![\w`.])(?P<greek>{'|'.join(GREEK)})(?![\w'])"
)


class NotationError(ValueError):
    """A text is not an equation that can be read."""


def cells(line: str, convolution: bool = False) -> list[str]:
    """The cells of a line: equations, and remarks as texts.

    Args:
        line: One line of an equation, without its indentation.
        convolution: Whether an asterisk is a convolution; else it is a product of entries.

    Raises:
        NotationError: A sign that equations do not have.
    """
    parts = [part for part in re.split(r"\s{2,}", line.strip()) if part]
    if len(parts) == 1:
        return [equation(parts[0], convolution)]
    joined: list[str] = []
    for part in parts:
        # The second half of an aligned sign, as in `h_t  = ...`, belongs to what stands before.
        if joined and re.match(r"(=|<-)\s", part):
            joined[-1] += f" {part}"
        else:
            joined.append(part)
    return [equation(part, convolution) if _RELATION.search(part) else remark(part) for part in joined]


def is_equation(block: str) -> bool:
    """Whether every line of a block reads as an equation."""
    try:
        return all(_RELATION.search(line) and cells(line) for line in block.splitlines() if line.strip())
    except NotationError:
        return False


def remark(text: str) -> str:
    """Words beside an equation."""
    plain = re.sub(r"([_&%#$^{}])", r"\\\1", text.replace('"', ""))
    return rf"\text{{{plain}}}"


def equation(text: str, convolution: bool = False) -> str:
    """One equation as LaTeX.

    Raises:
        NotationError: A sign that equations do not have, or brackets that do not close.
    """
    reader = _Reader(_tokens(text), r"\ast" if convolution else r"\odot")
    return reader.read(until=None)


def letters(text: str) -> frozenset[str]:
    """Greek letters by name that stand in equations of a text."""
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    return frozenset(GREEK).intersection(re.findall(r"[A-Za-z]+", " ".join(lines)))


def inline(text: str, greek: frozenset[str] = frozenset()) -> str:
    r"""Symbols with subscripts and Greek letters of a sentence, each between backticks of the role ``math``.

    >>> inline("h_t holds N numbers, and beta decays by the delta rule", frozenset({"beta"}))
    ':math:`h_{t}` holds N numbers, and :math:`\\beta` decays by the delta rule'

    Args:
        text: A sentence.
        greek: Names of letters that are letters where they stand alone.
    """

    def role(match: re.Match[str]) -> str:
        if match["greek"] and match["greek"] not in greek:
            return match[0]
        try:
            return f":math:`{equation(match[0])}`"
        except NotationError:
            return match[0]

    return _SYMBOL.sub(role, text)


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotationError(f"{text[place]!r} in {text!r} is no sign of an equation")
        found.append((str(match.lastgroup), match[0]))
        place = match.end()
    return found


class _Reader:
    """Reads tokens from left to right; scripts and roots ask for the group that follows."""

    def __init__(self, tokens: list[tuple[str, str]], product: str):
        self._tokens, self._place, self._product = tokens, 0, product

    def read(self, until: str | None) -> str:
        """Everything up to a closing bracket, or to the end."""
        parts: list[str] = []
        while self._place < len(self._tokens):
            kind, text = self._tokens[self._place]
            self._place += 1
            if text == until:
                return "".join(parts).strip()
            parts.append(self._one(kind, text))
        if until is not None:
            raise NotationError(f"{until!r} is missing")
        return "".join(parts).strip()

    def _one(self, kind: str, text: str) -> str:
        if kind == "name":
            return self._name(text)
        if kind == "script":
            return self._script(text)
        if kind == "relation":
            return _RELATIONS[text] + ("" if self._peek().isspace() else " ")
        if kind == "dot":
            return r"\cdot"
        if text in "{}":
            raise NotationError(f"{text!r} stands outside of a subscript")
        return {"*": self._product, "|": r"\vert "}.get(text, " " if kind == "space" else text)

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _script(self, sign: str) -> str:
        """A subscript or an exponent, in braces or brackets or of one word."""
        kind, text = self._tokens[self._place] if self._place < len(self._tokens) else ("", "")
        self._place += 1
        if text in ("{", "("):
            return f"{sign}{{{self.read('}' if text == '{' else ')')}}}"
        if text == "-" and self._peek().isdigit():
            self._place += 1
            return f"{sign}{{-{self._tokens[self._place - 1][1]}}}"
        if kind not in ("name", "number"):
            raise NotationError(f"{sign!r} without what it marks")
        if sign == "^" and text == "T":
            return r"^{\mathsf{T}}"
        while self._peek() == "_" and sign == "_" and self._next_is_name():  # log_A_real: one subscript of two words
            self._place += 2
            text += "," + self._tokens[self._place - 1][1]
        return f"{sign}{{{','.join(map(_subscript, text.split(',')))}}}"

    def _next_is_name(self) -> bool:
        return self._place + 1 < len(self._tokens) and self._tokens[self._place + 1][0] == "name"

    def _name(self, text: str) -> str:
        if text == "sqrt" and self._peek() == "(":
            self._place += 1
            return rf"\sqrt{{{self.read(')')}}}"
        if text == "sum":
            return r"\sum"
        if len(text) == 1 or text in _SYMBOLS:
            return self._primed(_SYMBOLS.get(text, text))
        if text in _STEPS:
            return rf"{{\mathit{{{text}}}}}"
        name = self._long(text)
        if self._peek() in ("(", "_", "^") or len(name) > len(text):
            return rf"\operatorname{{{name}}}"
        return self._words(text)

    def _primed(self, symbol: str) -> str:
        """A letter with the primes that follow it, which are part of it before any subscript."""
        if self._peek().startswith("'"):
            primes = r"\prime" * len(self._peek())
            self._place += 1
            return f"{{{symbol}{primes}}}"
        return symbol + (" " if symbol.startswith("\\") and self._peek().isalpha() else "")

    def _long(self, text: str) -> str:
        """A name of several letters; `short_conv(` is one name, `softmax_s(` a function with an index."""
        pieces = [text]
        while self._peek() == "_" and self._next_is_name() and (len(pieces) > 1 or not self._is_index()):
            pieces.append(self._tokens[self._place + 1][1])
            self._place += 2
        return r"\_".join(pieces)

    def _is_index(self) -> bool:
        after = self._tokens[self._place + 2][1] if self._place + 2 < len(self._tokens) else ""
        return len(self._tokens[self._place + 1][1]) == 1 and after != "_"

    def _words(self, text: str) -> str:
        """A word and those that follow it, as text."""
        words = [text]
        while self._peek().isspace() and self._next_is_name() and self._is_word(self._tokens[self._place + 1][1]):
            words.append(self._tokens[self._place + 1][1])
            self._place += 2
        return rf"\ \text{{{' '.join(words)}}}\ "

    def _is_word(self, text: str) -> bool:
        after = self._tokens[self._place + 2][1] if self._place + 2 < len(self._tokens) else ""
        return len(text) > 1 and text not in (*_SYMBOLS, *_STEPS, "sum", "sqrt") and after not in ("(", "_", "^")


def _subscript(text: str) -> str:
    if text in _SYMBOLS:
        return _SYMBOLS[text]
    if text in _STEPS:
        return rf"\mathit{{{text}}}"
    return text if len(text) == 1 or text.isdigit() or text == "ts" else rf"\text{{{text}}}"
