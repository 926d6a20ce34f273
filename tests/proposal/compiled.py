"""C references compiled into one library, with the names that the Python references have."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowprec.proposal.reference import c_name, c_reference
from lowprec.proposal.reference.generate import context
from lowprec.spec import Datapath, FloatFormat, Quantizer, load_quantizer

FLAGS = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]


class Compiled:
    """The functions of one header, by the names of the Python reference."""

    def __init__(self, library: ctypes.CDLL, prefix: str, quantizer: Quantizer) -> None:
        self.library, self.prefix, self.context = library, prefix, context(quantizer)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, f"{self.prefix}_{name}")
        kinds = {"decode": ctypes.c_double, "encode": ctypes.c_uint32}
        function.restype = kinds[name.split("_")[0]]
        if name.startswith("decode"):
            function.argtypes = [ctypes.c_uint32]
        else:
            function.argtypes = [ctypes.c_double, ctypes.c_uint32]
            return lambda x, random=0: function(x, random)
        return function

    def outer_scale(self, x: Sequence[float], given: float = 0.0) -> float:
        return self._scale("outer_scale", x, given)

    def outer_offset_scale(self, x: Sequence[float]) -> float:
        return self._scale("outer_offset_scale", x, 0.0)

    def _scale(self, name: str, x: Sequence[float], given: float) -> float:
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype = ctypes.c_float
        numbers = (ctypes.c_float * len(x))(*x)
        return float(function(numbers, ctypes.c_size_t(len(x)), ctypes.c_float(given)))

    def quantize_block(self, x: Sequence[float], *more: Any) -> dict[str, Any]:
        outer, given, random = self._more(more)
        words = (ctypes.c_uint32 * 256)()
        code = (ctypes.c_uint32 * len(x))()
        getattr(self.library, f"{self.prefix}_quantize_block")(
            (ctypes.c_float * len(x))(*x), ctypes.c_size_t(len(x)), *map(ctypes.c_float, outer),
            ctypes.c_float(given), (ctypes.c_uint32 * len(x))(*random), words, code,
        )  # fmt: skip
        block: dict[str, Any] = {}
        at = 0
        for key, count in self._fields(len(x)):
            room = self._room(key)
            block[key] = list(words[at : at + count]) if key.startswith("inner") else words[at]
            at += room
        return block | {"code": list(code)}

    def dequantize_block(self, block: dict[str, Any], *more: Any) -> list[float]:
        outer, _, _ = self._more(more)
        code = block["code"]
        words = (ctypes.c_uint32 * 256)()
        at = 0
        for key, count in self._fields(len(code)):
            found = block[key] if isinstance(block[key], list) else [block[key]]
            words[at : at + count] = found
            at += self._room(key)
        y = (ctypes.c_float * len(code))()
        getattr(self.library, f"{self.prefix}_dequantize_block")(
            words, (ctypes.c_uint32 * len(code))(*code), ctypes.c_size_t(len(code)),
            *map(ctypes.c_float, outer), y,
        )  # fmt: skip
        return [float(each) for each in y]

    def _more(self, more: Sequence[Any]) -> tuple[list[float], float, list[int]]:
        """(outer, outer offset), given, random of the arguments after x."""
        numbers = [each for each in more if not isinstance(each, list)]
        random = next((each for each in more if isinstance(each, list)), [])
        if self.context["outer"]:
            return [*numbers, 0.0][:2], 0.0, random
        return [0.0, 0.0], (numbers or [0.0])[0], random

    def _fields(self, n: int) -> list[tuple[str, int]]:
        """The words of a block's struct, in order, and how many of each n numbers use."""
        fields = [("scale", 1)]
        fields += [(level["name"], -(-n // level["size"])) for level in self.context["inner"]]
        return fields + [(k, 1) for k in ("zero_point", "offset", "outlier") if self.context[k]]

    def _room(self, key: str) -> int:
        return next((v["count"] for v in self.context["inner"] if v["name"] == key), 1)


def compiled(quantizers: Sequence[Quantizer], folder: Path) -> list[Compiled]:
    """One library of all headers, each in a file of its own."""
    sources = []
    for i, quantizer in enumerate(quantizers):
        (folder / f"q{i}.h").write_text(c_reference(quantizer))
        source = folder / f"q{i}.c"
        source.write_text(_wrappers(f"q{i}", quantizer))
        sources.append(str(source))
    library = folder / "references.so"
    loaded = _library(sources, library)
    return [Compiled(loaded, f"q{i}", quantizer) for i, quantizer in enumerate(quantizers)]


def _library(sources: Sequence[str], library: Path) -> ctypes.CDLL:
    command = ["gcc", *FLAGS, "-shared", "-fPIC", "-o", str(library), *sources, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


class CompiledDot:
    """The dot product of a header, called as the Python reference's is."""

    def __init__(self, path: Datapath, folder: Path) -> None:
        quantizer = load_quantizer("float4_e2m1fn")
        self.path, name = path, c_name(quantizer)
        (folder / "dot.h").write_text(c_reference(quantizer, path))
        scales = "const double *s, const double *t, " if path.scaling else ""
        head = (
            f"size_t dot(const double *a, const double *b, size_t n, double c, int x, int y, "
            f"{scales}double *sums)"
        )
        call = f"{name}_dot(a, b, n, c, x, y, {'s, t, ' if path.scaling else ''}sums)"
        (folder / "dot.c").write_text(f'#include "dot.h"\n{head};\n{head} {{ return {call}; }}\n')
        self.function = _library([str(folder / "dot.c")], folder / f"{path.name}.so").dot
        self.function.restype = ctypes.c_size_t

    def dot(
        self, a: list[float], b: list[float], c: float, *scales: list[float], a_format: str,
        b_format: str,
    ) -> list[float]:  # fmt: skip
        emin = {f.name: f.emin if isinstance(f, FloatFormat) else 0 for f in self.path.inputs}
        arrays = [(ctypes.c_double * len(x))(*x) for x in (a, b, *scales)]
        sums = (ctypes.c_double * (len(a) + 1))()
        count = self.function(
            *arrays[:2], ctypes.c_size_t(len(a)), ctypes.c_double(c), emin[a_format],
            emin[b_format], *arrays[2:], sums,
        )  # fmt: skip
        return list(sums[:count])


def _wrappers(prefix: str, quantizer: Quantizer) -> str:
    """C functions with linkage that call the header's, all with the same parameters."""
    c, name = context(quantizer), c_name(quantizer)
    lines = [f'#include "{prefix}.h"']
    for part in c["parts"]:
        p, random = part.name, ", random" if part.random_bits else ""
        unused = "" if random else "(void)random; "
        lines += [
            f"double {prefix}_decode_{p}(uint32_t code);",
            f"double {prefix}_decode_{p}(uint32_t code) {{ return {name}_decode_{p}(code); }}",
            f"uint32_t {prefix}_encode_{p}(double x, uint32_t random);",
            f"uint32_t {prefix}_encode_{p}(double x, uint32_t random) {{",
            f"    {unused}return {name}_encode_{p}(x{random}); }}",
        ]
    return "\n".join([*lines, *(_block_wrappers(prefix, name, c) if c["block"] else [])]) + "\n"


def _block_wrappers(prefix: str, name: str, c: dict[str, Any]) -> list[str]:
    outer = (", outer" if c["outer"] else "") + (
        ", outer_offset" if c["outer"] and c["offset"] else ""
    )
    given = ", given" if c["static"] and not c["outer"] else ""
    random = ", random" if c["random_bits"] else ""
    lines = []
    for scale in ["outer_scale"] * bool(c["outer"]) + ["outer_offset_scale"] * (
        outer.endswith("offset")
    ):
        arguments = "x, n"
        if scale == "outer_scale" and c["rule"] in ("static", "fixed"):
            arguments = "given" if c["static"] else ""
        head = f"float {prefix}_{scale}(const float *x, size_t n, float given)"
        body = f"(void)x; (void)n; (void)given; return {name}_{scale}({arguments});"
        lines += [f"{head};", f"{head} {{ {body} }}"]
    head = (
        f"void {prefix}_quantize_block(const float *x, size_t n, float outer, float outer_offset, "
        "float given, const uint32_t *random, uint32_t *block, uint32_t *code)"
    )
    unused = "(void)outer; (void)outer_offset; (void)given; (void)random; "
    call = f"{name}_quantize_block(x, n{outer}{given}{random}, ({name}_block *)block, code);"
    lines += [f"{head};", f"{head} {{ {unused}{call} }}"]
    head = (
        f"void {prefix}_dequantize_block(const uint32_t *block, const uint32_t *code, size_t n, "
        "float outer, float outer_offset, float *y)"
    )
    unused = "(void)outer; (void)outer_offset; "
    call = f"{name}_dequantize_block((const {name}_block *)block, code, n{outer}, y);"
    return [*lines, f"{head};", f"{head} {{ {unused}{call} }}"]
