"""What all matmuls of two operand formats on one machine have in common, found once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lowprec.perf.datapath import Choice, Operand, choose, is_block_scaled, same_encoding
from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.chip import Chip, chip_of
from lowprec.perf.kernel.constants import Constants, constants_of
from lowprec.perf.roofline import nbytes
from lowprec.perf.validation.point import Calibration
from lowprec.spec import BlockFormat, Format, IntFormat


@dataclass(frozen=True, slots=True)
class Plan:
    """Which datapath multiplies `x` by `w`, by what kind of kernel, and with which constants.

    bits: of the operands that the datapath multiplies; x_bits and w_bits: as they enter a core,
    scales along K included. reach: share of the rate that the kernel's instruction can have.
    scaled_tiles: the unit reads a scale for every few 4-bit elements.
    convert_x, convert_w: vector operations per element before it is multiplied.
    """

    machine: Machine
    x: Operand
    w: Operand
    dtype: Format
    choice: Choice
    chip: Chip
    path: str
    constants: Constants
    level: Calibration
    rate: float
    limit: float
    reach: float
    bits: int
    x_bits: float
    w_bits: float
    scaled_tiles: bool
    convert_x: int
    convert_w: int
    sizes: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def bytes_of(self, operand: Operand, rows: int, columns: int) -> int:
        """Bytes of a tensor of `operand`, kept: layers repeat."""
        key = (id(operand), rows, columns)
        known = self.sizes.get(key)
        if known is None:
            if len(self.sizes) > 4096:
                self.sizes.clear()
            known = self.sizes[key] = nbytes(operand, (rows, columns))
        return known


# A kernel that converts weights has them in registers, and the instruction that multiplies those,
# mma.sync, reaches 0.63 of what the ones on shared memory do on Hopper (HazyResearch, GPUs Go Brrr,
# 12 May 2024; arXiv 2402.13499; vllm-project/vllm#7174 says 0.75 at best).
REGISTER_OPERANDS = {"hopper": 0.63}

_PLANS: dict[tuple[int, int, int, int], Plan] = {}


def plan_of(x: Operand, w: Operand, machine: Machine, dtype: Format) -> Plan:
    """The plan of these objects, which are immutable and kept alive by it."""
    key = (id(x), id(w), id(machine), id(dtype))
    known = _PLANS.get(key)
    if known is None:
        if len(_PLANS) > 4096:
            _PLANS.clear()
        known = _PLANS[key] = _plan(x, w, machine, dtype)
    return known


def forget() -> None:
    """Drops all plans: their constants are no longer those of the tables."""
    _PLANS.clear()


def _plan(x: Operand, w: Operand, machine: Machine, dtype: Format) -> Plan:
    choice = choose(machine.datapaths, x, w, dtype, machine.name)
    native = choice.native
    bits = max(_element(x).bits, _element(w).bits) if native else dtype.bits
    chip = chip_of(machine, choice.datapath, bits)
    path = path_name(x, w, dtype, choice)
    constants, level = constants_of(chip, path, spell(x, w))
    return Plan(
        machine=machine,
        x=x,
        w=w,
        dtype=dtype,
        choice=choice,
        chip=chip,
        path=path,
        constants=constants,
        level=level,
        rate=choice.datapath.rate.value,
        limit=choice.datapath.limit.value if choice.datapath.limit else math.inf,
        reach=1.0 if native else REGISTER_OPERANDS.get(chip.family, 1.0),
        bits=bits,
        x_bits=_bits(x),
        w_bits=_bits(w),
        scaled_tiles=_scaled_tiles(x, w, choice),
        convert_x=0 if native else _conversions(x, dtype),
        convert_w=0 if native else _conversions(w, dtype),
    )


def path_name(x: Operand, w: Operand, dtype: Format, choice: Choice) -> str:
    """The kind of kernel and what it multiplies or converts, as calibration/gemm.toml names it.

    plain: both operands in the workload's type; weight: no datapath multiplies them as stored, so
    that they are converted on the way; tensor, token: scales of the whole tensor or of rows, which
    wait for the finished sum; block: scales along K; mx: 4-bit elements whose block scales the
    unit applies.
    """
    if same_encoding(x, dtype) and same_encoding(w, dtype):
        return f"plain/{dtype.bits}"
    if not choice.native:
        return f"weight/{_element(w).bits}"
    bits = max(_element(x).bits, _element(w).bits)
    name = f"{'int' if isinstance(_element(x), IntFormat) else 'fp'}{bits}"
    if is_block_scaled(x) or is_block_scaled(w):
        return f"{'mx' if _scaled_tiles(x, w, choice) else 'block'}/{name}"
    return f"{'tensor' if sees_whole_tensor(x) else 'token'}/{name}"


def spell(x: Operand, w: Operand) -> str:
    """What matters to a kernel of both formats: kind and width of the elements, and how many share
    a scale along K, such as ``fp16 x int4/128``."""
    return f"{_spell(x)} x {_spell(w)}"


def _spell(operand: Operand) -> str:
    element = _element(operand)
    text = f"{'int' if isinstance(element, IntFormat) else 'fp'}{element.bits}"
    if not isinstance(operand, BlockFormat):
        return text
    return f"{text}/{operand.block if isinstance(operand.block, str) else operand.block[-1]}"


def sees_whole_tensor(fmt: Operand) -> bool:
    """Whether the first element can't be written before the last one has been read."""
    return isinstance(fmt, BlockFormat) and fmt.block == "tensor"


def _element(operand: Operand) -> Format:
    return operand.element if isinstance(operand, BlockFormat) else operand


def _scaled_tiles(x: Operand, w: Operand, choice: Choice) -> bool:
    narrow = max(_element(x).bits, _element(w).bits) <= 4
    return narrow and choice.native and not choice.promoted and is_block_scaled(w)


def _bits(operand: Operand) -> float:
    if isinstance(operand, BlockFormat) and is_block_scaled(operand):
        assert not isinstance(operand.block, str)
        return operand.element.bits + operand.scale.bits / math.prod(operand.block)
    return _element(operand).bits


def _conversions(fmt: Operand, dtype: Format) -> int:
    return 0 if same_encoding(fmt, dtype) else 1 + is_block_scaled(fmt)
