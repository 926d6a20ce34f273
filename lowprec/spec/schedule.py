"""Operations whose sizes are laws, with equal layers said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from lowprec.errors import LowprecError, unknown
from lowprec.spec.base import Spec
from lowprec.spec.law import Sizes, evaluate
from lowprec.spec.operation import KINDS, Attention, Embedding, Matmul, Vector

AnyOp = Matmul | Attention | Vector | Embedding
# An operation as plain data, without the fields at their defaults. Its path has a * for the
# number of the layer, and its integers may be laws.
Template = dict[str, bool | int | str | None]
Pass = Literal["start", "prefill", "extend", "decode"]
PASSES: tuple[Pass, ...] = ("start", "prefill", "extend", "decode")
TEXTS = {"kind", "path", "name", "tied_to"}
_LAYER = re.compile(r"(?<![^.])(\d+)(?![^.])")


def kind_of_pass(tokens: int, context: int) -> Pass:
    """One new token or several, with nothing cached or something: models branch on these."""
    if context:
        return "decode" if tokens == 1 else "extend"
    return "start" if tokens == 1 else "prefill"


class Run(Spec):
    """Blocks that follow each other: that with number `block`, as layers `first`, first + 1, ..."""

    block: int = Field(ge=0)
    first: int = Field(default=0, ge=0)
    count: int = Field(default=1, ge=1)


@dataclass(frozen=True)
class Group:
    """Operations that are equal but for their paths. `op` is the first of them."""

    op: AnyOp
    paths: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.paths)


class Schedule(Spec):
    """What runs in passes of the kinds `passes`: distinct `blocks`, and in which order they run.

    passes: none where the operations are those of one pass only.
    """

    passes: tuple[Pass, ...]
    blocks: tuple[tuple[Template, ...], ...]
    order: tuple[Run, ...]

    def at(self, sizes: Sizes) -> tuple[tuple[AnyOp, ...], ...]:
        """The blocks' operations; a path still has the ``*``. LowprecError: one that is none."""
        return tuple(tuple(_concrete(t, sizes) for t in block) for block in self.blocks)

    def groups(self, blocks: tuple[tuple[AnyOp, ...], ...]) -> tuple[Group, ...]:
        """`blocks`, which `at` gave, with the paths at which each operation runs."""
        layers: dict[int, list[int]] = {}
        for run in self.order:
            layers.setdefault(run.block, []).extend(range(run.first, run.first + run.count))
        found = []
        for block, numbers in layers.items():
            for op in blocks[block]:
                paths = tuple(_named(op.path, number) for number in numbers)
                first = op if paths[0] == op.path else op.model_copy(update={"path": paths[0]})
                found.append(Group(first, paths))
        return tuple(found)

    def ops(self, blocks: tuple[tuple[AnyOp, ...], ...]) -> Iterator[AnyOp]:
        """`blocks`, which `at` gave, one operation after the other."""
        for run in self.order:
            for number in range(run.first, run.first + run.count):
                for op in blocks[run.block]:
                    path = _named(op.path, number)
                    yield op if path == op.path else op.model_copy(update={"path": path})


def template(op: AnyOp) -> Template:
    """`op` as plain data, its sizes as they are."""
    return sparse(dict(iter(op)))


def sparse(each: Template) -> Template:
    """`each` without the fields at their defaults."""
    fields = _class(str(each["kind"])).model_fields
    return {
        name: value
        for name, value in each.items()
        if fields[name].is_required() or value != fields[name].default
    }


def fold(templates: Iterable[Template], passes: tuple[Pass, ...]) -> Schedule:
    """The schedule of these operations: what differs in the layer's number only stands once.

    A layer is what follows each other with equal paths up to the first number in them.
    """
    blocks: dict[str, int] = {}
    contents: list[tuple[Template, ...]] = []
    order: list[Run] = []
    for number, block in _layers(templates):
        index = blocks.setdefault(repr(block), len(blocks))
        if index == len(contents):
            contents.append(block)
        last = order[-1] if order else None
        if last and number and last.block == index and last.first + last.count == number:
            order[-1] = last.model_copy(update={"count": last.count + 1})
        else:
            order.append(Run(block=index, first=number))
    return Schedule(passes=passes, blocks=tuple(contents), order=tuple(order))


def layer_of(path: str) -> tuple[str, int] | None:
    """The path up to its first number, and that number; None without one."""
    found = _LAYER.search(path)
    return (path[: found.start()], int(found[1])) if found else None


def _layers(templates: Iterable[Template]) -> Iterator[tuple[int, tuple[Template, ...]]]:
    layer: tuple[str, int] | None = None
    block: list[Template] = []
    for each in templates:
        path = str(each["path"])
        found = layer_of(path)
        if found != layer and block:
            yield layer[1] if layer else 0, tuple(block)
            block = []
        layer = found
        block.append(each | {"path": _LAYER.sub("*", path, count=1)})
    if block:
        yield layer[1] if layer else 0, tuple(block)


def _named(path: str, number: int) -> str:
    return path.replace("*", str(number), 1)


def _class(kind: str) -> type[AnyOp]:
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    return KINDS[kind]


def _concrete(each: Template, sizes: Sizes) -> AnyOp:
    values: dict[str, Any] = {
        name: evaluate(value, sizes) if isinstance(value, str) and name not in TEXTS else value
        for name, value in each.items()
    }
    try:
        return _class(str(each.get("kind")))(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise LowprecError(f"operation {each.get('path')!r}: {key}: {first['msg']}") from None
