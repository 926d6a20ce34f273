"""compressed-tensors (vLLM, LLM Compressor), as version 0.20.1 writes it: read into codes.

Its scales of a dynamically quantized input are computed by whatever runs the model. Here: float8
and integers amax, integers with zero points minmax, MXFP4 even, as compressed-tensors' own forward
does (but for symmetric integers, whose largest magnitude it maps to 2^(bits - 1) - 1/2, and vLLM
to 2^(bits - 1) - 1, as amax does); MXFP8 rceil.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from pydantic import ConfigDict

from lowprec.checkpoints.files import Files
from lowprec.checkpoints.formats import FLOATS, block_format, one_byte
from lowprec.checkpoints.source import Quantized
from lowprec.errors import LowprecError, unknown
from lowprec.kernels import QTensor, layouts
from lowprec.nn.stored.modules import Activation
from lowprec.spec import Quantizer, build, load_format, load_quantizer
from lowprec.spec.base import Spec
from lowprec.spec.block import Block, BlockFormat

_ONE_BYTE = ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (
    *_ONE_BYTE, "pack-quantized", "mxfp8-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized",
)  # fmt: skip
_E4M3, _E2M1 = "float8_e4m3fn", "float4_e2m1fn"


class Args(Spec):
    """`QuantizationArgs`: those that say how a tensor is stored."""

    model_config = ConfigDict(extra="ignore")

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool | Literal["local"] = False
    scale_dtype: str | None = None

    @property
    def element(self) -> str:
        """The name of the elements' format, "float6" or so where there is none of ours."""
        floats = {8: _E4M3, 4: _E2M1}
        if self.type == "float":
            return floats.get(self.num_bits, f"float{self.num_bits}")
        return f"int{self.num_bits}"

    @property
    def block(self) -> Block | None:
        """What shares a scale, or None for a strategy that has no such form."""
        if self.strategy == "group" and self.group_size:
            return (self.group_size,)
        if self.strategy == "block":
            return self.block_structure
        inferred = "channel" if self.group_size == -1 else "tensor"
        names = {None: inferred, "tensor": "tensor", "channel": "channel", "token": "channel"}
        return names.get(self.strategy)

    @property
    def microscaled(self) -> bool:
        """Whether scales are powers of two of one byte."""
        named = (self.scale_dtype or "").endswith("uint8")
        return self.type == "float" and self.group_size == 32 and (named or self.num_bits == 4)


class Group(Spec):
    """`QuantizationScheme`: how the modules that its targets name are quantized."""

    model_config = ConfigDict(extra="ignore")

    targets: tuple[str, ...]
    weights: Args | None = None
    input_activations: Args | None = None
    output_activations: Args | None = None
    format: str | None = None


def read(
    files: Files, settings: Mapping[str, Any]
) -> tuple[dict[str, Quantized], set[str], dict[str, str]]:
    """The quantized weights by name, the tensors they consist of, and those that nothing reads.

    settings: ``quantization_config`` of config.json. LowprecError: a format, strategy or
    transform that is not read; a tensor that is missing, or of another shape or dtype.
    """
    where = f"{files.folder / 'config.json'}: quantization_config"
    for key in ("sparsity_config", "transform_config"):
        if settings.get(key):
            raise LowprecError(f"{where}: {key}: not read, and the values depend on it")
    groups = _groups(settings, where)
    modules = {n.rpartition(".")[0] for n in files.entries if n.endswith(_MARKS)}
    found, used = {}, set()
    for module in sorted(modules):
        group = _group_of(module, groups, where)
        weight, names = _weight(files, module, group, where)
        activation, more = _activation(files, module, group.input_activations, where)
        found[f"{module}.weight"] = Quantized(*weight, activation)
        used |= {f"{module}.{name}" for name in (*names, *more)}
    kept = {n: "scale of a quantized KV cache" for n in files.entries if n.endswith(_CACHE)}
    return found, used, kept


_MARKS = (".weight_packed", ".weight_scale")
_CACHE = (".k_scale", ".v_scale", ".q_scale")


def _groups(settings: Mapping[str, Any], where: str) -> list[Group]:
    named = settings.get("config_groups")
    if not isinstance(named, Mapping) or not named:
        raise LowprecError(f"{where}: config_groups: missing")
    groups = []
    for name, data in named.items():
        place = f"{where}: config_groups.{name}"
        if not isinstance(data, Mapping):
            raise LowprecError(f"{place}: a preset; expected the scheme itself")
        group = build(Group, {"format": settings.get("format"), **_set(data)}, place)
        if group.output_activations:
            raise LowprecError(f"{place}: output_activations: not read")
        groups.append(group)
    return groups


def _set(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


def _group_of(module: str, groups: list[Group], where: str) -> Group:
    """The group that names the module, or the one for nn.Linear."""

    def named(target: str) -> bool:
        if target.startswith("re:"):
            return re.match(target[3:], module) is not None
        return target == module

    found = [group for group in groups if any(named(target) for target in group.targets)]
    found = found or [group for group in groups if "Linear" in group.targets]
    if not found:
        raise LowprecError(f"{where}: config_groups: no target is {module!r}, which has scales")
    return found[0]


_Matrix = tuple[tuple[int, int], tuple[Callable[[], QTensor]]]


def _weight(files: Files, module: str, group: Group, where: str) -> tuple[_Matrix, list[str]]:
    """Shape and reader of a module's weight, and the names of its tensors."""
    args, kind = group.weights, group.format
    if args is None:
        raise LowprecError(f"{where}: {module}: has scales, but its group has no weights")
    if kind not in FORMATS:
        raise unknown("format", str(kind), FORMATS, f"{where}: {module}")
    names = ["weight_scale"] + ([] if args.symmetric else ["weight_zero_point"])
    names += ["weight" if kind.endswith("8-quantized") or kind in _ONE_BYTE else "weight_packed"]
    names += ["weight_shape"] if kind == "pack-quantized" else []
    names += ["weight_global_scale"] if kind.startswith("nvfp4") else []
    for name in names:
        files.expect(f"{module}.{name}", _DTYPES[name])
    shapes = {name: files.entries[f"{module}.{name}"].shape for name in names}

    def state() -> dict[str, torch.Tensor]:
        return {name: files.read(f"{module}.{name}") for name in names}

    if kind == "pack-quantized":
        shape = tuple(files.read(f"{module}.weight_shape").tolist())
        fmt = _format(files, module, args, where)
        read_it = partial(_pack_quantized, state, fmt, fmt.scale_shape(shape))
    elif kind in _ONE_BYTE or kind == "mxfp8-quantized":
        shape = shapes["weight"]
        fmt = load_format("mxfp8_e4m3") if args.microscaled else _format(files, module, args, where)
        _expect_scales(files, module, fmt, shape)
        read_it = partial(_one_byte, state, fmt)
    else:
        shape = (*shapes["weight_packed"][:-1], 2 * shapes["weight_packed"][-1])
        read_it = partial(_fp4, kind, state)
    if len(shape) != 2:
        raise LowprecError(f"{files.folder}: {module}: a weight of shape {shape}; expected rank 2")
    return (shape, (read_it,)), names


_FLOAT_DTYPES = tuple(FLOATS)
_DTYPES = {
    "weight": (torch.int8, torch.float8_e4m3fn),
    "weight_packed": (torch.int32, torch.uint8),
    "weight_scale": (*_FLOAT_DTYPES, torch.uint8, torch.float8_e4m3fn),
    "weight_zero_point": (torch.int8, torch.int32),
    "weight_shape": (torch.int64, torch.int32),
    "weight_global_scale": (torch.float32,),
}


def _format(files: Files, module: str, args: Args, where: str) -> BlockFormat:
    """The block format of integers or float8 with float scales of the file's dtype."""
    name = f"{module}.weight_scale"
    files.expect(name, _FLOAT_DTYPES)
    if args.block is None or args.element == _E2M1:
        raise LowprecError(f"{where}: {module}: strategy {args.strategy!r} of {args.element}: not "
                           "read")  # fmt: skip
    scale = FLOATS[files.entries[name].dtype]
    zero_point = None if args.symmetric else args.element
    return block_format(args.element, args.block, scale, zero_point)


def _expect_scales(files: Files, module: str, fmt: BlockFormat, shape: tuple[int, ...]) -> None:
    each = fmt.scale_shape(shape)
    shapes = [each, each[:1]] if fmt.block in ("tensor", "channel") else [each]
    shapes += [()] if fmt.block == "tensor" else []
    names = ["weight_scale"] + (["weight_zero_point"] if fmt.zero_point else [])
    for name in names:
        files.expect(f"{module}.{name}", _DTYPES[name], *shapes)


def _pack_quantized(
    state: Callable[[], dict[str, torch.Tensor]], fmt: BlockFormat, scales: tuple[int, ...]
) -> QTensor:
    tensors = state()
    tensors["weight_scale"] = tensors["weight_scale"].reshape(scales)
    return layouts.from_pack_quantized(tensors, fmt)


def _one_byte(state: Callable[[], dict[str, torch.Tensor]], fmt: BlockFormat) -> QTensor:
    tensors = state()
    zero_point = tensors.get("weight_zero_point")
    return one_byte(fmt, tensors["weight"], tensors["weight_scale"], zero_point)


def _fp4(kind: str, state: Callable[[], dict[str, torch.Tensor]]) -> QTensor:
    if kind.startswith("nvfp4"):
        return layouts.from_nvfp4_pack_quantized(state())
    return layouts.from_mxfp4_pack_quantized(state())


def _activation(
    files: Files, module: str, args: Args | None, where: str
) -> tuple[Activation | None, list[str]]:
    """How the input is quantized, and the names of the tensors that say so."""
    if args is None:
        return None, []
    if args.dynamic is True and args.block is not None:
        return Activation(dynamic_quantizer(args)), []
    name = f"{module}.input_scale"
    if not args.dynamic and args.block == "tensor" and args.symmetric and name in files:
        files.expect(name, _FLOAT_DTYPES, (), (1,))
        quantizer = Quantizer(format=block_format(args.element, "tensor"), rule="static")
        return Activation(quantizer, files.read(name).float().reshape(())), ["input_scale"]
    name = f"{module}.input_global_scale"
    if args.strategy == "tensor_group" and (args.element, args.group_size) == (_E2M1, 16):
        files.expect(name, (torch.float32,), (1,), ())
        quantizer = Quantizer(format=load_format("nvfp4"), rule="static")
        scale = 1 / files.read(name).reshape(())
        return Activation(quantizer, scale), ["input_global_scale"]
    raise LowprecError(
        f"{where}: {module}: input_activations of strategy {args.strategy!r}, dynamic "
        f"{args.dynamic}, symmetric {args.symmetric}: not read"
    )


def dynamic_quantizer(args: Args) -> Quantizer:
    """The quantizer of an input whose scales are computed at every call."""
    if args.microscaled:
        return load_quantizer("mxfp4/even" if args.element == _E2M1 else "mxfp8_e4m3/rceil")
    zero_point = None if args.symmetric else args.element
    fmt = block_format(args.element, args.block, zero_point=zero_point)
    return Quantizer(format=fmt, rule="minmax" if zero_point else "amax")
