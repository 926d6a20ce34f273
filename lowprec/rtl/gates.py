"""Netlists of gates from Verilog, by yosys, and their evaluation, 512 cases at once, in C.

Each module is mapped to gates once and cached by the digest of its Verilog; the hierarchy is
flattened here.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec.errors import LowprecError
from lowprec.rtl import yosys
from lowprec.rtl.verilog import split
from lowprec.spec.load import cache_dir

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

KINDS = ("AND", "OR", "XOR", "XNOR", "NAND", "NOR", "ANDNOT", "ORNOT", "NOT", "MUX")
_MUX = KINDS.index("MUX")
SOURCE = Path(__file__).with_name("gates.c")
WORDS = 8  # of 64 bits in gates.c's word
_MAP = (
    "read_verilog unit.v\nproc -norom\nopt_expr\nopt_clean\nwreduce\nopt_clean\ntechmap\n"
    "opt -fast\nabc -fast -g AND,OR,XOR,MUX,ANDNOT,ORNOT\nopt_clean\nwrite_json unit.json\n"
)


@dataclass(frozen=True)
class Program:
    """Gates in an order in which each follows those it reads: rows of kind, a, b, s, y, all slots
    of values. inputs, outputs: the slots of the ports' bits, one port after the other in the order
    of their names."""

    gates: NDArray[np.int32]
    inputs: NDArray[np.int32]
    outputs: NDArray[np.int32]
    next: NDArray[np.int32]
    state: NDArray[np.int32]
    slots: int

    def run(self, x: Words, latency: int) -> Words:
        """Outputs (bits, words) for inputs (bits, words); words a multiple of `WORDS`."""
        import numpy as np

        x = np.ascontiguousarray(x)
        y = np.zeros((len(self.outputs), x.shape[1]), np.uint64)
        arrays = (self.gates, self.inputs, self.outputs, self.next, self.state)
        counts = (self.gates, self.inputs, self.outputs, self.state)
        netlist = _Netlist(*(a.ctypes.data for a in arrays), *map(len, counts))
        aligned = [_aligned(a) for a in (x, y)]
        room = [_aligned(np.zeros((n, WORDS), np.uint64)) for n in (self.slots, len(self.state))]
        room[0][1] = np.uint64(0xFFFFFFFFFFFFFFFF)  # slot 0 is the constant 0, slot 1 is 1
        _library().lp_gates(
            ctypes.byref(netlist),
            aligned[0].ctypes.data,
            aligned[1].ctypes.data,
            x.shape[1] // WORDS,
            latency,
            room[0].ctypes.data,
            room[1].ctypes.data,
        )
        return aligned[1]


class _Netlist(ctypes.Structure):
    _fields_ = [
        *[(name, c_void_p) for name in ("gates", "inputs", "outputs", "next", "state")],
        *[(name, c_int64) for name in ("n_gates", "n_inputs", "n_outputs", "n_state")],
    ]


def _aligned(x: Words) -> Words:
    """A copy at an address that words of 512 bits may have."""
    import numpy as np

    room = np.zeros(x.size + WORDS, np.uint64)
    start = -room.ctypes.data % (8 * WORDS) // 8
    view = room[start : start + x.size].reshape(x.shape)
    view[...] = x
    return view


@cache
def _library() -> ctypes.CDLL:
    flags = ("-O3", "-march=native", "-shared", "-fPIC", "-w")
    key = sha256(SOURCE.read_bytes() + repr(flags).encode() + _processor()).hexdigest()[:16]
    path = cache_dir() / f"gates-{key}.so"
    if not path.exists():
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise LowprecError("no C compiler (cc) found; simulate with engine='amaranth'")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            command = [compiler, *flags, "-o", str(fresh), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LowprecError(f"{compiler} failed: {done.stderr.strip()[-200:]}")
            fresh.replace(path)
    library = ctypes.CDLL(str(path))
    pointers = [c_void_p] * 3
    library.lp_gates.argtypes = [*pointers, c_int64, c_int64, c_void_p, c_void_p]
    library.lp_gates.restype = None
    return library


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return b""
    return next((s for s in lines if s.startswith(("flags", "Features"))), "").encode()


def program(verilog: str, top: str) -> Program:
    """The gates of a unit's Verilog; its modules come from the cache where they are there."""
    return _Flat(_modules(split(verilog)), top).program()


def _modules(verilog: Mapping[str, str]) -> dict[str, Any]:
    """Each module as gates and instances, as yosys's JSON has it."""
    folder = cache_dir() / "gates"
    folder.mkdir(exist_ok=True)
    keys = {
        name: sha256((_MAP + yosys.version() + text).encode()).hexdigest()[:24]
        for name, text in verilog.items()
    }
    paths = {name: folder / f"{key}.json" for name, key in keys.items()}
    fresh = [name for name, path in paths.items() if not path.exists()]
    if fresh:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            work = Path(temporary)
            (work / "unit.v").write_text("\n".join(verilog[name] for name in fresh))
            yosys.run(_MAP, work)
            found = json.loads((work / "unit.json").read_text())["modules"]
            for name in fresh:
                kept = {key: found[name][key] for key in ("ports", "cells")}
                (work / paths[name].name).write_text(json.dumps(kept))
                (work / paths[name].name).replace(paths[name])
    return {name: json.loads(path.read_text()) for name, path in paths.items()}


class _Flat:
    """The gates of all instances, by the wires that they drive; wires 0 and 1 are the constants."""

    def __init__(self, modules: Mapping[str, Any], top: str) -> None:
        self.modules, self.wires = modules, 2
        self.gates: dict[int, tuple[int, int, int, int]] = {}
        self.same: dict[int, int] = {}
        self.flip_flops: list[tuple[int, int]] = []
        ports = modules[top]["ports"]
        local: dict[int | str, int] = {}
        self.inputs = self._bits(ports, "input", local)
        self._instance(top, local)
        self.outputs = self._bits(ports, "output", local)

    def _bits(self, ports: Mapping[str, Any], way: str, local: dict[int | str, int]) -> list[int]:
        """Wires of the ports of one direction, the clock and reset aside."""
        return [
            self._wire(bit, local)
            for name, port in sorted(ports.items())
            if port["direction"] == way and name not in ("clk", "rst")
            for bit in port["bits"]
        ]

    def _wire(self, bit: int | str, local: dict[int | str, int]) -> int:
        if isinstance(bit, str):
            return int(bit == "1")
        if bit not in local:
            local[bit] = self.wires
            self.wires += 1
        return local[bit]

    def _instance(self, module: str, local: dict[int | str, int]) -> None:
        for cell in self.modules[module]["cells"].values():
            kind, pins = cell["type"], cell["connections"]
            if kind in self.modules:
                self._child(kind, pins, local)
            elif kind == "$_DFF_P_":
                pair = self._wire(pins["D"][0], local), self._wire(pins["Q"][0], local)
                self.flip_flops.append(pair)
            else:
                a, b, s = (self._wire(pins[p][0], local) if p in pins else 0 for p in "ABS")
                out = self._wire(pins["Y"][0], local)
                self.gates[out] = KINDS.index(kind.strip("$_")), a, b, s

    def _child(self, kind: str, pins: Mapping[str, Any], local: dict[int | str, int]) -> None:
        inner: dict[int | str, int] = {}
        ports = self.modules[kind]["ports"]
        for name, port in ports.items():
            if port["direction"] == "input":
                pairs = zip(port["bits"], pins[name], strict=True)
                inner |= {bit: self._wire(outer, local) for bit, outer in pairs}
        self._instance(kind, inner)
        for name, port in ports.items():
            if port["direction"] == "output":
                for bit, outer in zip(port["bits"], pins[name], strict=True):
                    self.same[self._wire(outer, local)] = self._wire(bit, inner)

    def _source(self, wire: int) -> int:
        while wire in self.same:
            wire = self.same[wire]
        return wire

    def program(self) -> Program:
        import numpy as np

        outputs = [self._source(w) for w in self.outputs]
        nexts = [self._source(d) for d, _ in self.flip_flops]
        order = self._ordered([*outputs, *nexts])
        fixed = [0, 1, *self.inputs, *(q for _, q in self.flip_flops)]
        slot, slots = _slots(order, fixed, [*outputs, *nexts])
        rows = [(k, slot[a], slot[b], slot[s], slot[y]) for k, a, b, s, y in order]
        places = [
            np.array([slot[w] for w in wires], np.int32)
            for wires in (self.inputs, outputs, nexts, [q for _, q in self.flip_flops])
        ]
        table = np.array(rows, np.int32).reshape(-1, 5)
        return Program(table, places[0], places[1], places[2], places[3], slots)

    def _ordered(self, wanted: list[int]) -> list[tuple[int, int, int, int, int]]:
        """All gates that the wanted wires depend on, each after those that it reads."""
        done: set[int] = set()
        order, stack = [], list(reversed(wanted))
        while stack:
            wire = stack[-1]
            gate = self.gates.get(wire)
            if wire in done or gate is None:
                stack.pop()
                continue
            read = [self._source(w) for w in gate[1:]]
            missing = [w for w in read if w in self.gates and w not in done]
            if missing:
                stack += missing
                continue
            order.append((gate[0], read[0], read[1], read[2], wire))
            done.add(wire)
            stack.pop()
        return order


def _slots(
    order: list[tuple[int, int, int, int, int]], fixed: list[int], kept: list[int]
) -> tuple[dict[int, int], int]:
    """A place for each wire: that of one that nothing reads any more, so that they fit a cache."""
    last = {wire: k for k, gate in enumerate(order) for wire in gate[1:]}
    last |= dict.fromkeys([*kept, *fixed], len(order))
    slot = {wire: k for k, wire in enumerate(dict.fromkeys(fixed))}
    free: list[int] = []
    count = len(slot)
    for k, (_, a, b, s, y) in enumerate(order):
        free += [slot[wire] for wire in {a, b, s} if last[wire] == k]
        if not free:
            free, count = [count], count + 1
        slot[y] = free.pop()
    return slot, count
