"""Calibration: what is measured, kept, saved and refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from lowprec import Calibration, LowprecError, calibrate, cast, fake_quantize, unwrap, wrap
from lowprec.nn.emulation import sites_of

FP8 = "*: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/static:tensor"
EVERYTHING = (
    "lm_head: keep; *.mlp.*: weight=int8/amax:channel activation=int8/static:tensor "
    "transform.smooth=0.5 transform.outliers=3 transform.rotation=32 transform.gptq; "
    "*: weight=nvfp4/static activation=nvfp4/static"
)


def model_and_input(recipe: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(96, 48)), torch.randn(16, 96)
    return wrap(model, recipe), x


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize(
    "text", ["float8_e4m3fn/{}:tensor", "nvfp4/{}", "int8/{}:tensor", "nvint4/{}"]
)
def test_calibrated_on_one_batch_it_equals_the_dynamic_scale_of_that_batch(text):
    static, dynamic = text.format("static"), text.format("amax")
    model, x = model_and_input(f"*: weight={static} activation={static}")
    calibrate(model, [x])
    linear = model[0]
    expected = F.linear(
        fake_quantize(x, dynamic), fake_quantize(linear.weight, dynamic), linear.bias
    )
    assert torch.equal(model(x), expected)


def test_weights_have_a_scale_for_each_block_and_activations_for_each_along_k():
    text = "mxfp8_e4m3/static"
    model, x = model_and_input(f"*: weight={text} activation={text}")
    found = calibrate(model, [x, 3 * x]).tensors
    amax = model[0].weight.abs().view(48, 3, 32).amax(-1)
    assert torch.equal(found["0 linear.weight"], cast(amax / 448, "float8_e8m0fnu"))
    amax = 3 * x.abs().view(16, 3, 32).amax((0, 2))
    assert torch.equal(found["0 linear.activation"], cast(amax / 448, "float8_e8m0fnu"))


def test_per_token_scales_become_one():
    model, x = model_and_input("*: activation=int8/static:channel")
    found = calibrate(model, [x]).tensors["0 linear.activation"]
    assert found == x.abs().max() / 128 or found == x.abs().max() / 127
    expected = fake_quantize(x, "int8/static:channel", scale=found.expand(16, 1))
    assert torch.equal(model(x), F.linear(expected, model[0].weight, model[0].bias))


@pytest.mark.parametrize("percent", [50, 99, 99.9, 100])
def test_percentiles_are_of_all_batches_on_bfloat16s_grid(percent):
    model, x = model_and_input(FP8)
    y = torch.randn(40, 96) * 3
    found = calibrate(model, [x, y], method=f"percentile:{percent}")
    magnitudes = torch.cat([x, y]).abs().flatten().sort().values
    exact = magnitudes[math.ceil(len(magnitudes) * percent / 100) - 1]
    up = cast(exact, "bfloat16", rounding="up")
    assert found.tensors["0 linear.activation"] == up / 448


def test_percentiles_of_weights_are_exact():
    model, x = model_and_input("*: weight=int8/static:channel")
    found = calibrate(model, [x], method="percentile:90").tensors["0 linear.weight"]
    exact = model[0].weight.detach().abs().sort(-1).values[:, math.ceil(96 * 0.9) - 1]
    scales = calibrate(model, [x]).tensors["0 linear.weight"]
    ratio = exact / model[0].weight.detach().abs().amax(-1)
    torch.testing.assert_close(found[:, 0], scales[:, 0] * ratio)


@pytest.mark.parametrize("text", ["int4/static:tensor", "float8_e5m2/static:tensor"])
def test_mse_is_the_best_of_its_candidates(text):
    model, _ = model_and_input(f"*: weight={text} activation={text}")
    x = torch.randn(64, 96).bfloat16().float()
    x[0, 0] = 20.0
    found = calibrate(model, [x], method="mse").tensors
    largest = calibrate(model, [x]).tensors

    def error(t: Tensor, scale: Tensor) -> float:
        y = fake_quantize(t, text, scale=scale.view(1, 1))
        return float((t.double() - y.double()).square().sum())

    for name, t in (("activation", x), ("weight", model[0].weight.detach())):
        key = f"0 linear.{name}"
        best = min(error(t, largest[key] * (j / 64)) for j in range(16, 65))
        assert error(t, found[key]) <= best * (1 + 1e-6)
    if text.startswith("int4"):
        assert found["0 linear.activation"] < largest["0 linear.activation"]


def test_mse_cannot_foresee_inner_scales():
    model, x = model_and_input("*: activation=nvfp4/static")
    with pytest.raises(LowprecError, match=r"^0 activation: nvfp4/static.* expected method max"):
        calibrate(model, [x], method="mse")


@pytest.mark.parametrize("method", ["mean", "percentile", "percentile:0", "max:3", "percentile:x"])
def test_methods_that_are_none(method):
    model, x = model_and_input(FP8)
    with pytest.raises(LowprecError, match=r"expected max, mse or percentile:99\.9"):
        calibrate(model, [x], method=method)


def test_the_model_runs_unquantized(build, ids):
    plain, model, largest = build("llama"), build("llama"), {}
    for path, module in plain.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(
                lambda _, args, path=path: largest.__setitem__(path, args[0].abs().max())
            )
    logits(plain, ids)
    wrap(model, "*: weight=int4/amax:channel activation=float8_e4m3fn/static:tensor")
    model.train()
    found = calibrate(model, [ids])
    assert model.training
    assert model.model.layers[0].training
    for path, amax in largest.items():
        assert found.tensors[f"{path} linear.activation"] == amax / 448


def test_batches_are_tensors_tuples_or_named_inputs(build, ids):
    seen = []
    model = wrap(build("llama"), FP8)
    found = [
        calibrate(model, batches, progress=lambda *n: seen.append(n)).tensors
        for batches in ([ids, ids], iter([(ids,)]), [{"input_ids": ids, "use_cache": False}])
    ]
    assert seen == [(1, 2), (2, 2), (1, 1), (1, 1)]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[key], found[0][key]) for key in other)


def test_saved_loaded_and_used_by_another_model(build, ids, tmp_path):
    model, path = wrap(build("llama"), EVERYTHING), tmp_path / "smol.safetensors"
    found = calibrate(model, [ids])
    expected = logits(model, ids)
    found.save(path)
    loaded = Calibration.load(path)
    assert loaded.notes == found.notes
    assert loaded.tensors.keys() == found.tensors.keys()
    names = {key.rpartition(" ")[2] for key in found.tensors}
    assert names == {
        "linear.activation", "linear.weight", "linear.smooth", "linear.outliers", "linear.gptq.0",
    }  # fmt: skip
    for calibration in (loaded, path, str(path)):
        twin = wrap(build("llama"), EVERYTHING, calibration=calibration)
        assert torch.equal(logits(twin, ids), expected)
    twin = wrap(build("llama"), EVERYTHING)
    calibrate(twin, loaded)
    assert torch.equal(logits(twin, ids), expected)


def test_hessians_that_do_not_fit_are_left_to_another_pass(build, ids):
    recipe, passes = "*.mlp.*: weight=int4/amax:32 transform.gptq", []
    found = []
    for memory in (1 << 30, 2 * 4 * 64 * 64, 1):
        model = wrap(build("llama"), recipe)
        passes.append(0)

        def count(done: int, _: int) -> None:
            passes[-1] += done == 1

        found.append(calibrate(model, [ids, ids], memory=memory, progress=count).tensors)
    # Two layers, each with two weights of K = 64 and one of K = 128.
    assert passes == [1, 4, 6]
    for other in found[1:]:
        assert all(torch.equal(other[key], found[0][key]) for key in found[0])


def test_calibrating_again_forgets_what_was_before():
    model, x = model_and_input(FP8)
    first = calibrate(model, [100 * x]).tensors["0 linear.activation"]
    second = calibrate(model, [x]).tensors["0 linear.activation"]
    assert first > 90 * second


def test_what_no_batch_reached_says_so_when_it_is_used():
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, other: bool = False) -> Tensor:
            return self.b(x) if other else self.a(x)

    model = wrap(Sometimes(), FP8)
    assert list(calibrate(model, [torch.randn(2, 8)]).tensors) == ["a linear.activation"]
    model(torch.randn(2, 8))
    with pytest.raises(LowprecError, match=r"^b: activation=.* lowprec\.calibrate\(model, batches"):
        model(torch.randn(2, 8), other=True)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_activations_that_are_not_finite_name_their_site(bad):
    for recipe in (FP8, "*: weight=float32 transform.smooth=0.5"):
        model, x = model_and_input(recipe)
        x[3, 4] = bad
        with pytest.raises(LowprecError, match=r"^0.*: NaN or Inf in what it was calibrated on"):
            calibrate(model, [x])


def test_after_a_failed_pass_the_model_is_not_calibrated_and_can_be():
    model, x = model_and_input(FP8)
    calibrate(model, [x])
    expected = model(x)
    with pytest.raises(RuntimeError):
        calibrate(model, [torch.randn(2, 5)])
    with pytest.raises(LowprecError, match="no scale yet"):
        model(x)
    calibrate(model, [x])
    assert torch.equal(model(x), expected)


def test_a_recipe_that_needs_nothing_runs_nothing():
    model, _ = model_and_input("*: weight=int8/amax:channel")
    assert calibrate(model, ["not an input"]).tensors == {}


def test_models_that_cannot_be_calibrated():
    x = torch.randn(2, 96)
    with pytest.raises(LowprecError, match=r"not wrapped; lowprec\.wrap\(model, recipe\) first"):
        calibrate(nn.Linear(96, 48), [x])
    with pytest.raises(LowprecError, match="no batches"):
        calibrate(model_and_input(FP8)[0], [])


@pytest.mark.parametrize(
    ("key", "tensor", "note", "message"),
    [
        ("1 linear.activation", torch.ones(()), "", "no such site; did you mean '0 linear'"),
        ("0 linear.weight", torch.ones(()), "", "no static quantizer there"),
        ("0 linear.activation", torch.ones(()), "int8", "is for int8, and the recipe says float8"),
        ("0 linear.activation", torch.ones(2, 2), "", r"has the shape \(2, 2\); expected rank"),
        ("0 linear.smooth", torch.ones(96), "smooth=0.5", "the recipe's rule asks for no such"),
        ("0 linear.nonsense", torch.ones(96), "", "the recipe's rule asks for no such"),
    ],
)
def test_calibrations_that_do_not_fit(key, tensor, note, message):
    model, x = model_and_input(FP8)
    calibrate(model, [x])
    expected = model(x)
    with pytest.raises(LowprecError, match=f"^calibration: {key}.*{message}"):
        calibrate(model, Calibration({key: tensor}, {key: note}))
    assert torch.equal(model(x), expected)  # as it was before


@pytest.mark.parametrize(
    ("transform", "key", "tensor"),
    [
        ("smooth=0.5", "smooth", torch.ones(95)),
        ("outliers=3", "outliers", torch.arange(4)),
        ("gptq", "gptq.0", torch.zeros(48, 95, dtype=torch.uint8)),
    ],
)
def test_transforms_of_another_size(transform, key, tensor):
    model, _ = model_and_input(f"*: weight=mxfp4/floor transform.{transform}")
    with pytest.raises(LowprecError, match=rf"^calibration: 0 linear\.{key} has the shape"):
        calibrate(model, Calibration({f"0 linear.{key}": tensor}, {f"0 linear.{key}": ""}))


def test_a_wrong_calibration_leaves_the_model_unwrapped():
    model = nn.Sequential(nn.Linear(96, 48))
    with pytest.raises(LowprecError, match="no such site"):
        wrap(model, FP8, calibration=Calibration({"7 linear.activation": torch.ones(())}, {}))
    assert type(model[0]) is nn.Linear


def test_files_that_are_no_calibration(tmp_path):
    with pytest.raises(LowprecError, match=r"missing\.safetensors"):
        Calibration.load(tmp_path / "missing.safetensors")
    (tmp_path / "a").write_bytes(b"nonsense")
    with pytest.raises(LowprecError, match="/a: "):
        Calibration.load(tmp_path / "a")
    save_file({"x": torch.ones(2)}, tmp_path / "b")
    with pytest.raises(LowprecError, match="no calibration"):
        Calibration.load(tmp_path / "b")


def test_unwrap_takes_it_all_away():
    model, x = model_and_input(FP8)
    calibrate(model, [x])
    attributes = set(vars(nn.Linear(2, 2)))
    assert set(vars(unwrap(model)[0])) == attributes


def test_statistics_are_gone_after_a_pass():
    model, x = model_and_input(FP8)
    calibrate(model, [x])
    assert all(site.statistics is None for site in sites_of(model[0]))
