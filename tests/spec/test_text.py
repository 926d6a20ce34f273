"""Quantizers and recipes as text: what is spelled reads back, what is misspelled is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.spec import (
    BlockFormat,
    FloatFormat,
    Projection,
    Quantizer,
    Recipe,
    list_formats,
    load_format,
    load_quantizer,
    load_recipe,
)
from lowprec.spec.projection import ROUNDINGS, SATURATIONS
from lowprec.spec.quantizer import POWER_OF_TWO_RULES


def projections() -> st.SearchStrategy[Projection]:
    rounding = st.sampled_from(ROUNDINGS)
    pairs = st.tuples(rounding, st.sampled_from(SATURATIONS), st.integers(1, 32))
    return pairs.map(
        lambda p: Projection.model_validate(
            {
                "rounding": p[0],
                "saturation": p[1],
                "bits": p[2] if p[0] == "stochastic" else None,
            }
        )
    )


@st.composite
def quantizers(draw: st.DrawFn) -> Quantizer:
    fmt = load_format(draw(st.sampled_from(list_formats())))
    rule = "cast"
    if isinstance(fmt, BlockFormat):
        scale = fmt.scale
        powers = isinstance(scale, FloatFormat) and scale.precision == 1
        rules = [*(POWER_OF_TWO_RULES if powers else ()), "amax"]
        rule = draw(st.sampled_from(["minmax"] if fmt.zero_point or fmt.offset else rules))
    return Quantizer(format=fmt, rule=rule, projection=draw(projections()))


@given(quantizers())
def test_a_spelled_quantizer_reads_back(quantizer: Quantizer) -> None:
    assert load_quantizer(quantizer.spell()) == quantizer
    assert Quantizer.model_validate_json(quantizer.model_dump_json()) == quantizer


@given(st.lists(quantizers(), min_size=1, max_size=3), st.booleans())
def test_a_spelled_recipe_reads_back(quantizers: list[Quantizer], keep_head: bool) -> None:
    rules = [{"match": f"layers.{i}.*", "weight": q} for i, q in enumerate(quantizers)]
    rules += [{"match": "lm_head", "keep": True}] if keep_head else []
    rules += [{"match": "*", "activation": quantizers[0], "weight": quantizers[-1]}]
    recipe = load_recipe({"name": "text", "rules": rules})
    assert load_recipe(recipe.spell()) == recipe


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("float8_e4m3fn", "float8_e4m3fn/cast/nearest-even/SatFinite"),
        ("mxfp4/floor", "mxfp4/floor/nearest-even/SatFinite"),
        ("mxfp4/rceil/OvfInf", "mxfp4/rceil/nearest-even/OvfInf"),
        ("mxfp4/even/to-odd", "mxfp4/even/to-odd/SatFinite"),
        ("nvfp4/amax/stochastic:8", "nvfp4/amax/stochastic:8/SatFinite"),
        ("int8/amax:channel", "int8_channel/amax/nearest-even/SatFinite"),
        ("int8/amax:tensor", "int8_tensor/amax/nearest-even/SatFinite"),
        ("int4/amax:128/up", "int4_g128/amax/up/SatFinite"),
        ("binary8p3se/amax:32", "binary8p3se_g32/amax/nearest-even/SatFinite"),
    ],
)
def test_short_forms(text: str, spelled: str) -> None:
    assert load_quantizer(text).spell() == spelled
    assert load_quantizer(spelled) == load_quantizer(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mxpf4/floor", "unknown format 'mxpf4'; did you mean 'mxfp4'?"),
        ("mxfp4/flor", "unknown scale rule 'flor'; did you mean 'floor'?"),
        ("mxfp4", "'mxfp4' needs a scale rule, as in 'mxfp4/floor'"),
        ("nvfp4", "'nvfp4' needs a scale rule, as in 'nvfp4/amax'"),
        ("nvfp4/floor", "needs the rule 'amax'"),
        ("float8_e4m3fn/floor", "needs the rule 'cast', or a granularity"),
        ("mxfp4/cast", "needs the rule one of"),
        ("int8/amax:chanel", "unknown granularity 'chanel'; did you mean 'channel'?"),
        ("int8/amax:token", "expected 'channel', one scale per row: per token"),
        ("mxfp4/floor/nearest", "unknown rounding or saturation 'nearest'"),
        ("mxfp4/floor/up/down", "unknown rounding or saturation 'down'"),
        ("mxfp4/floor/satfinite", "did you mean 'SatFinite'?"),
        ("mxfp4/floor/stochastic", "needs bits = 1 to 32"),
        ("mxfp4/floor/stochastic:99", "less than or equal to 32"),
        ("mxfp4/floor/stochastic:many", "valid integer"),
        ("mxfp4/floor/up:3", "needs bits = 1 to 32, other roundings none"),
        ("nowhere.toml/floor", "nowhere.toml: no such file"),
    ],
)
def test_misspelled_quantizers(text: str, complaint: str) -> None:
    with pytest.raises(LowprecError) as error:
        load_quantizer(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_quantizer_of_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nelement = "int4"\nscale = "float8_e8m0fnu"\nblock = [8]\n'
        "[facts]\nsource = 'a test of the loader'\n"
    )
    quantizer = load_quantizer(f"{path}/rceil/to-odd")
    assert quantizer.spell() == "mine/rceil/to-odd/SatFinite"
    assert isinstance(quantizer.format, BlockFormat)
    assert quantizer.format.block == (8,)


def test_recipes_take_the_first_rule_that_matches() -> None:
    recipe = load_recipe("lm_head: keep; *.mlp.*: weight=mxfp4/floor; *: activation=int8")
    assert recipe.rule_for("lm_head") is recipe.rules[0]
    assert recipe.rule_for("layers.0.mlp.up_proj") is recipe.rules[1]
    assert recipe.rule_for("layers.0.attn.q_proj") is recipe.rules[2]
    assert recipe.unused(["layers.0.mlp.up_proj"]) == [recipe.rules[0]]
    assert load_recipe("*.mlp.*: weight=int8").rule_for("lm_head") is None


def test_a_quantizer_alone_stands_for_both_operands() -> None:
    recipe = load_recipe("mxfp8_e4m3/rceil")
    (rule,) = recipe.rules
    assert (rule.match, rule.weight) == ("*", rule.activation)
    assert recipe.spell() == (
        "*: weight=mxfp8_e4m3/rceil/nearest-even/SatFinite "
        "activation=mxfp8_e4m3/rceil/nearest-even/SatFinite"
    )
    assert load_recipe(recipe) is recipe


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("*: weight=mxpf4/floor", "did you mean 'mxfp4'?"),
        ("*: wieght=mxfp4/floor", "did you mean 'weight'?"),
        ("*: drop", "'drop': expected keep, or an operand"),
        ("*: keep weight=int8", "keep = true, not both"),
        ("*: ", "rules.0"),
        ({"name": "r", "rules": []}, "rules"),
        ({"name": "r"}, "rules: Field required"),
        ({"name": "r", "ruels": []}, "did you mean 'rules'?"),
        ({"name": "r", "rules": [{"match": "*", "weight": 8}]}, "rules.0: weight"),
        ({"name": "r", "rules": [{"match": "", "keep": True}]}, "rules.0: match"),
        ("nowhere.toml", "nowhere.toml: no such file"),
    ],
)
def test_misspelled_recipes(source: str | dict[str, object], complaint: str) -> None:
    with pytest.raises(LowprecError) as error:
        load_recipe(source)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w4.toml"
    path.write_text('name = "w4"\n[[rules]]\nmatch = "*"\nweight = "mxfp4/floor"\n')
    recipe = load_recipe(path)
    assert isinstance(recipe, Recipe)
    assert recipe.spell() == "*: weight=mxfp4/floor/nearest-even/SatFinite"
    path.write_text('name = "w4"\n[[rules]]\nmatch = "*"\nweight = "mxfp4/flor"\n')
    with pytest.raises(LowprecError, match=r"w4\.toml: rules\.0\.weight: .*'floor'"):
        load_recipe(path)
