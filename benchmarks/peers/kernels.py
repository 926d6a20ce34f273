"""Other libraries' fake quantization, as far as they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# (name, the quantizer of ours that does the same, the call, elements at most)
Peer = tuple[str, str, Callable[[], Tensor], int]
ANY = 1 << 40


def peers_of(x: Tensor) -> Iterator[Peer]:
    for peers in (of_torch, of_ml_dtypes, of_gfloat, of_qtorch, of_pychop, of_torchao):
        try:
            yield from peers(x)
        except ImportError as error:
            print(f"{error.name}: not installed")


def of_torch(x: Tensor) -> Iterator[Peer]:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        name = str(dtype).removeprefix("torch.")
        yield f"torch .to({name})", name, lambda dtype=dtype: x.to(dtype).float(), ANY


def of_ml_dtypes(x: Tensor) -> Iterator[Peer]:
    import ml_dtypes

    for name in ("float8_e4m3fn", "float6_e2m3fn", "float4_e2m1fn"):
        dtype = getattr(ml_dtypes, name)

        def call(dtype: type = dtype) -> Tensor:
            return torch.from_numpy(x.numpy().astype(dtype).astype("float32"))

        yield f"ml_dtypes {name}", name, call, ANY


def of_gfloat(x: Tensor) -> Iterator[Peer]:
    import gfloat
    from gfloat.formats import format_info_ocp_e4m3

    def call() -> Tensor:
        rounded = gfloat.round_ndarray(format_info_ocp_e4m3, x.double().numpy(), sat=True)
        return torch.as_tensor(rounded).float()

    yield "gfloat round_ndarray", "float8_e4m3fn", call, 1 << 22


def of_qtorch(x: Tensor) -> Iterator[Peer]:
    from qtorch.quant import float_quantize

    yield (
        "qtorch float_quantize",
        "float8_e5m2",
        lambda: float_quantize(x, exp=5, man=2, rounding="nearest"),
        ANY,
    )


def of_pychop(x: Tensor) -> Iterator[Peer]:
    import pychop
    from pychop import Chop

    pychop.backend("torch")
    chop = Chop(exp_bits=5, sig_bits=2, rmode=1)
    yield "pychop Chop", "float8_e5m2", lambda: chop(x), 1 << 22


def of_torchao(x: Tensor) -> Iterator[Peer]:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    for name, dtype in (
        ("mxfp8_e4m3/floor", torch.float8_e4m3fn),
        ("mxfp4/floor", torch.float4_e2m1fn_x2),
    ):

        def call(dtype: torch.dtype = dtype) -> Tensor:
            return MXTensor.to_mx(x, dtype, 32).dequantize(torch.float32)

        yield f"torchao MXTensor {name}", name, call, ANY

    def nvfp4() -> Tensor:
        scale = per_tensor_amax_to_scale(x.abs().amax())
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)

    yield "torchao NVFP4Tensor", "nvfp4/amax", nvfp4, 1 << 24
