"""Datapaths against mmasim, the published models of units of which no recording is at hand.

mmasim 2.1.1 (PyPI, MIT) comes with the extra `test`; without it these tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lowprec.kernels.dot import dot
from lowprec.spec import (
    Aligned,
    Datapath,
    Tree,
    TwoStage,
    list_datapaths,
    load_datapath,
    load_datapath_facts,
)
from lowprec.spec.format import FloatFormat
from tests.exact.test_dot import CORNERS

fdpa: Any = pytest.importorskip("mmasim.arithmetic.fdpa", reason="mmasim is not installed")
ftz: Any = pytest.importorskip("mmasim.arithmetic.ftz_mul_add")

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tfloat32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
ROWS = 200


def modelled() -> list[str]:
    """Units that mmasim models as we do: promotion is ours, integers and the ideal are nobody's."""
    evidence = {name: load_datapath_facts(name).evidence for name in list_datapaths()}
    return [
        name
        for name, kind in evidence.items()
        if kind in ("simulated", "recorded") and not load_datapath(name).promotion
    ]


def peer(path: Datapath) -> Any:
    """mmasim's operation with the parameters of the file."""
    match path.addition:
        case Tree():
            return ftz.MMA_FTZ_MUL_ADD(path.step)
        case TwoStage(groups=1):
            return fdpa.MMA_TR_FDPA(
                path.addition.term_bits, path.addition.sum_bits, "RNE-FP32", path.step
            )
        case TwoStage():
            return fdpa.MMA_GTR_FDPA(
                path.addition.term_bits, path.addition.sum_bits, "RNE-FP32", path.step
            )
        case Aligned(fraction_bits=None):
            return fdpa.MMA_E_FDPA(path.step)
    bits, low, rounding = path.addition.fraction_bits, path.addition.min_exponent, "RZ-FP32"
    if path.accumulator.name == "float16":
        rounding = "RNE-FP16"
    elif path.result:
        rounding = "RZ-E8M13"
    if path.scaling and path.scaling.group:
        return fdpa.MMA_GST_FDPA(path.scaling.group, bits, rounding, path.step, low)
    kind = fdpa.MMA_ST_FDPA if path.scaling else fdpa.MMA_T_FDPA
    return kind(bits, rounding, path.step, low, "e4m3", "e4m3")


def draw(
    name: str, shape: tuple[int, int], spread: int, g: torch.Generator, centre: int = 0
) -> Tensor:
    """Finite values of a format about 2^centre, in mmasim's dtype."""
    if name == "float4_e2m1fn":
        return E2M1[torch.randint(0, 16, shape, generator=g)].to(torch.float16)
    exponent = centre + torch.randint(-spread, spread + 1, shape, generator=g)
    x = torch.randn(shape, generator=g) * torch.exp2(exponent.float())
    x = torch.where(torch.rand(shape, generator=g) < 0.1, 0.0, x)
    if name == "tfloat32":
        return (x.view(torch.int32) >> 13 << 13).view(torch.float32)
    y = x.to(DTYPES[name])
    return torch.where(y.float().isfinite(), y.float(), 0.0).to(DTYPES[name])


def draw_scales(name: str, shape: tuple[int, int], spread: int, g: torch.Generator) -> Tensor:
    if name == "float8_e8m0fnu":
        exponent = torch.randint(-spread, spread + 1, shape, generator=g)
        return torch.exp2(exponent.float()).to(torch.float8_e8m0fnu)
    return draw(name, shape, min(spread, 8), g).float().abs().to(torch.float8_e4m3fn)


@pytest.mark.parametrize(("spread", "tiny"), [(1, False), (6, False), (40, False), (2, True)])
@pytest.mark.parametrize("name", modelled())
def test_agrees_with_mmasim(name: str, spread: int, tiny: bool) -> None:
    path = load_datapath(name)
    g = torch.Generator().manual_seed(spread)
    assert path.step is not None
    assert isinstance(path.output, FloatFormat)
    size = path.step if path.scaling else 2 * path.step  # scales: one instruction's
    low = path.output.emin // 2 - 3 if tiny else 0
    for fmt in path.inputs:
        if fmt.name.startswith("float6") or (fmt.name[:6] == "float4" and not path.scaling):
            continue  # mmasim reads these as packed bytes; the float8 formats take the same way
        a, b = (draw(fmt.name, (ROWS, size), spread, g, low) for _ in "ab")
        scales: tuple[Tensor, ...] | None = None
        if path.scaling:
            shape = (ROWS, size // path.scaling.block)
            scales = tuple(
                draw_scales(path.scaling.formats[0].name, shape, spread, g) for _ in "ab"
            )
        c = draw_c(a.double() * b.double(), path, scales, g)
        want = peer(path).dpa(a, b, c, *(scales or ())).float()
        pair = None if scales is None else (scales[0].float(), scales[1].float())
        got = dot(a.float(), b.float(), c.float(), datapath=path, formats=(fmt, fmt), scales=pair)
        same = (got.view(torch.int32) == want.view(torch.int32)) | (got.isnan() & want.isnan())
        assert same.all(), f"{fmt.name}: {int((~same).sum())} of {ROWS} differ"


def draw_c(
    products: Tensor, path: Datapath, scales: tuple[Tensor, ...] | None, g: torch.Generator
) -> Tensor:
    """A third of zeros, a third of the size of a product; a third cancels the sum, which shows the
    bits that a result of 24 bits hides."""
    if scales is not None and path.scaling is not None:
        each = (scales[0].double() * scales[1].double()).repeat_interleave(path.scaling.block, -1)
        products = products * each
    c = products[:, 0] * torch.randn(ROWS, generator=g)
    c[::3] = 0
    c[1::3] = -products.sum(-1)[1::3]
    return c.to(DTYPES.get(path.accumulator.name, torch.float32)).nan_to_num(0.0, 0.0, 0.0)


@pytest.mark.parametrize(("name", "a", "b", "c", "d"), CORNERS)
def test_mmasim_knows_the_corners(
    name: str, a: list[float], b: list[float], c: float, d: float
) -> None:
    path = load_datapath(name)
    assert path.step is not None
    row = torch.zeros(2, 1, path.step)
    row[0, 0, : len(a)], row[1, 0, : len(b)] = torch.tensor(a), torch.tensor(b)
    x, y = row.to(DTYPES[path.inputs[0].name])
    got = peer(path).dpa(x, y, torch.tensor([c]))
    want = torch.tensor([d])
    assert (got.signbit() == want.signbit()) | got.isnan()
    assert (got == want) | (got.isnan() & want.isnan())
