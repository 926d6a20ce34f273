"""Whole models of every family: all of it under a recipe, and nothing else changed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lowprec as lp
from tests.nn.families import FAMILIES, Family

Q = "mxfp8_e4m3/rceil"
FULL = (
    f"*: weight={Q} activation={Q}; *: query={Q} key={Q} probability={Q} value={Q}; "
    f"*: left={Q} right={Q}"
)
GENERATING = [name for name, family in FAMILIES.items() if family.generates]
# One of each kind of module; the others take the same code paths.
COMPILED = ["llama", "mixtral", "unet-block"]

each = pytest.mark.parametrize("name", FAMILIES)


def outputs(model: nn.Module, family: Family) -> list[Tensor]:
    """Every floating-point tensor that a pass returns."""
    with torch.no_grad():
        found = model(**family.inputs())
    return floats(found)


def floats(found: Any) -> list[Tensor]:
    leaves = tree_leaves(dict(found) if isinstance(found, dict) else found)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(a, b, strict=True)
    )


@each
def test_keep_is_bit_identical_and_unwrap_gives_the_model_back(name: str) -> None:
    family = FAMILIES[name]
    model = family.build()
    before = outputs(model, family)
    assert same(outputs(lp.wrap(model, "*: keep", strict=True), family), before)
    assert not same(outputs(lp.wrap(lp.unwrap(model), FULL), family), before)
    assert same(outputs(lp.unwrap(model), family), before)


@each
def test_every_flop_is_emulated(name: str) -> None:
    family = FAMILIES[name]
    model = lp.wrap(family.build(), FULL, strict=True)
    outputs(model, family)
    found = lp.coverage(model, **family.inputs())
    assert found.holes == ()
    assert [entry.path for entry in found.entries if entry.flops and not entry.covered] == []
    assert found.share == pytest.approx(1)


@each
def test_gradients_flow(name: str) -> None:
    family = FAMILIES[name]
    reached = []
    for recipe in (None, FULL):
        model = family.build()
        if recipe:
            lp.wrap(model, recipe)
        sum(
            t.square().mean() for t in floats(model(**family.inputs())) if t.requires_grad
        ).backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert all(grad.isfinite().all() for grad in grads.values())
        reached.append({n for n, grad in grads.items() if grad.any()})
    assert reached[0] == reached[1]


@each
def test_state_dict_and_deepcopy(name: str) -> None:
    family = FAMILIES[name]
    plain, model = family.build(), lp.wrap(family.build(), FULL)
    expected = outputs(model, family)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert same(outputs(copy.deepcopy(model), family), expected)
    other = lp.wrap(family.build(), FULL)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    assert not same(outputs(other, family), expected)
    other.load_state_dict(model.state_dict())
    assert same(outputs(other, family), expected)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama4"])
@pytest.mark.parametrize("first", ["wrap", "offload"])
def test_weights_offloaded_to_disk(name: str, first: str, tmp_path: Path) -> None:
    """All of them; accelerate cannot offload all of a plain Llama 4, whose experts' module hands
    one of its children a parameter of another."""
    family = FAMILIES[name]
    expected = outputs(lp.wrap(family.build(), FULL), family)
    model = family.build()
    if first == "wrap":
        lp.wrap(model, FULL)
    accelerate.disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    if first == "offload":
        lp.wrap(model, FULL)
    assert any(p.device.type == "meta" for p in model.parameters())
    assert same(outputs(model, family), expected)


def test_a_device_map_with_disk(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    plain = family.build()
    plain.save_pretrained(tmp_path / "model")
    expected = outputs(lp.wrap(plain, FULL), family)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.0": "cpu", "model.layers.1": "disk", "lm_head": "disk"}
    model = type(lp.unwrap(plain)).from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offload"
    ).eval()  # fmt: skip
    assert same(outputs(lp.wrap(model, FULL), family), expected)


@pytest.mark.parametrize("name", GENERATING)
def test_generate_gives_the_same_tokens_with_and_without_a_cache(name: str) -> None:
    family = FAMILIES[name]
    model = lp.wrap(family.build(), FULL)
    given = {key: value for key, value in family.inputs().items() if "decoder" not in key}
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    cached = model.generate(**given, use_cache=True, **options)
    whole = model.generate(**given, use_cache=False, **options)
    assert torch.equal(cached, whole)


@pytest.mark.parametrize(
    "name", [n if n in COMPILED else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]
)
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiled(name: str) -> None:
    family = FAMILIES[name]
    model = lp.wrap(family.build(), FULL)
    expected = outputs(model, family)
    torch._dynamo.reset()
    assert same(outputs(torch.compile(model, backend="eager"), family), expected)
