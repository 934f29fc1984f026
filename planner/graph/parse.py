"""A graph from its text, the inverse of `str(graph)`:

    %0 = input() : float32[4, 8]
    %1 = aten.t.default(%0) : float32[8, 4] strides [1, 8]
    %2 = aten.sum.dim_IntList(%1, (0), True) : float32[1, 4]
    return %2

Names of nodes are not in the text: those of the result are made of operation and number (`sum_2`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .graph import Arg, Graph, Node, Numerics, Ref, Symbol, TensorType, contiguous, symbol_kind


class ParseError(ValueError):
    """The text is no graph; the message names the line."""


_NODE = re.compile(r"%(\d+) = ([^\s(]+)\((.*)\) : (\?|[^?].*)")
_TYPE = re.compile(r"([A-Za-z]\w*)\[([\d, ]*)\](?: strides \[([-\d, ]*)\])?")
_NUMERICS = "numerics: eager"
_TOKEN = re.compile(
    r"""\s*(?: (?P<ref>%\d+)
        | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
        | (?P<number>-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf\b|nan\b))
        | (?P<word>[A-Za-z_]\w*)
        | (?P<sign>[(),=:]) )""",
    re.VERBOSE,
)
_WORDS: dict[str, Arg] = {"None": None, "True": True, "False": False}


def parse(text: str) -> Graph:
    """The graph of a text. Lines that are empty or begin with # are left out. Raises ParseError."""
    nodes: list[Node] = []
    numerics: Numerics = "fast"
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
    for place, (number, line) in enumerate(lines):
        try:
            if line == _NUMERICS:
                numerics = "eager"
            elif line == "return" or line.startswith("return "):
                if place != len(lines) - 1:
                    raise ValueError("something follows the outputs")
                outputs = _outputs(line.removeprefix("return"), len(nodes))
                return Graph(tuple(nodes), outputs, numerics)
            else:
                nodes.append(_node(line, len(nodes)))
        except (ValueError, IndexError, SyntaxError) as error:
            raise ParseError(f"line {number}, {line!r}: {error}") from None
    raise ParseError(f"line {len(text.splitlines())}: the last line does not return the outputs")


def _node(line: str, position: int) -> Node:
    found = _NODE.fullmatch(line)
    if found is None:
        raise ValueError('a node is written "%0 = operation(arguments) : dtype[sizes]"')
    number, op, arguments, kind = found.groups()
    if int(number) != position:
        raise ValueError(f"%{position} is the next node")
    args, kwargs = _Arguments(arguments).all()
    word = re.sub(r"\W", "_", op.removeprefix("aten.").partition(".")[0]).strip("_")
    node = Node(position, f"{word}_{position}", op, args, kwargs, _type(kind))
    late = [i for i in node.inputs if i >= position]
    if late:
        raise ValueError(f"%{late[0]} comes later")
    return node


def _type(text: str) -> TensorType | None:
    if text == "?":
        return None
    found = _TYPE.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} is no type: one is written "float32[4, 8]"')
    dtype, sizes, strides = found.groups()
    if symbol_kind(dtype) != "dtype":
        raise ValueError(f"{dtype!r} is no dtype")
    shape = _integers(sizes)
    if strides is None:
        return TensorType(shape, contiguous(shape), dtype)
    stride = _integers(strides)
    if len(stride) != len(shape):
        raise ValueError(f"{len(stride)} strides for {len(shape)} sizes")
    return TensorType(shape, stride, dtype)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text.strip() else ()


def _outputs(text: str, nodes: int) -> tuple[int | None, ...]:
    found: list[int | None] = []
    for word in text.split(",") if text.strip() else ():
        word = word.strip()
        if word != "None" and not re.fullmatch(r"%\d+", word):
            raise ValueError(f"{word!r} is no output")
        if word != "None" and int(word[1:]) >= nodes:
            raise ValueError(f"there is no {word}")
        found.append(None if word == "None" else int(word[1:]))
    return tuple(found)


class _Arguments:
    """Reads the arguments of one node, token by token."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def all(self) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args: list[Arg] = []
        kwargs: dict[str, Arg] = {}
        while not self._ended:
            if args or kwargs:
                self._expect(",")
            if self._peek(1) == ("sign", "="):
                kind, name = self._next()
                if kind != "word" or name in kwargs:
                    raise ValueError(f"{name!r} is no name of another argument")
                self._expect("=")
                kwargs[name] = self._value()
            elif kwargs:
                raise ValueError("an argument without a name follows one with a name")
            else:
                args.append(self._value())
        return tuple(args), tuple(kwargs.items())

    def _value(self) -> Arg:
        kind, text = self._next()
        if kind == "ref":
            return Ref(int(text[1:]))
        if kind == "text":
            return str(ast.literal_eval(text))
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if (kind, text) == ("sign", "("):
            return self._tuple()
        if kind == "word":
            return self._word(text)
        raise ValueError(f"{text!r} is no argument")

    def _tuple(self) -> tuple[Arg, ...]:
        found: list[Arg] = []
        while self._peek() != ("sign", ")"):
            if found:
                self._expect(",")
            found.append(self._value())
        self._expect(")")
        return tuple(found)

    def _word(self, word: str) -> Arg:
        if word in _WORDS:
            return _WORDS[word]
        if self._peek() == ("sign", ":"):
            self._expect(":")
            kind, name = self._next()
            if kind != "text":
                raise ValueError(f"{word}: is followed by its name in quotes")
            return Symbol(word, str(ast.literal_eval(name)))
        found = symbol_kind(word)
        if found is None:
            raise ValueError(f"{word!r} is no argument")
        return Symbol(found, word)

    @property
    def _ended(self) -> bool:
        return self._at == len(self._tokens)

    def _peek(self, ahead: int = 0) -> tuple[str, str] | None:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        if self._ended:
            raise ValueError("the arguments end too soon")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        found = self._next()
        if found != ("sign", sign):
            raise ValueError(f"{found[1]!r} stands where {sign!r} is expected")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            raise ValueError(f"{text[place:].strip()!r} is no argument")
        yield found.lastgroup, found[found.lastgroup]
        place = found.end()
