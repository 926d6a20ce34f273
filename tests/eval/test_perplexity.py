"""Whole evaluations of a tiny model, against a loop that shares no code with them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lowprec.errors import LowprecError
from lowprec.eval import cut, evaluate_windows, make_baseline
from lowprec.eval.perplexity import open_baseline, score_windows
from lowprec.eval.protocols import Windows
from lowprec.eval.text import Text
from tests.eval.tiny import byte_tokenizer, tiny_llama

DOCUMENTS = tuple("".join(chr(97 + (i * k) % 26) for i in range(40)) for k in range(1, 8))


@pytest.fixture(scope="module")
def windows() -> Windows:
    return cut(Text("letters", DOCUMENTS), byte_tokenizer(), 48, 5)


def naive(model: Any, base: Any, windows: Windows) -> dict[str, float]:
    """One token at a time, one forward pass per prefix, in float64."""
    nll, base_nll, kl, top1 = [], [], [], []
    with torch.no_grad():
        for window in torch.from_numpy(windows.ids):
            for end in range(1, len(window)):
                prefix, right = window[None, :end], window[end : end + 1]
                q = model(input_ids=prefix).logits[0, -1:].double()
                p = base(input_ids=prefix).logits[0, -1:].double()
                nll.append(F.cross_entropy(q, right).item())
                base_nll.append(F.cross_entropy(p, right).item())
                log_p, log_q = (torch.log_softmax(x, -1) for x in (p, q))
                kl.append(F.kl_div(log_q, log_p, log_target=True, reduction="sum").item())
                top1.append(float(p.argmax() == q.argmax()))
    dp = np.exp(-np.array(nll)) - np.exp(-np.array(base_nll))
    result = {"ppl": math.exp(np.mean(nll)), "base_ppl": math.exp(np.mean(base_nll))}
    result |= {"kl": np.mean(kl), "top1": np.mean(top1), "kl_max": max(kl)}
    return result | {"rms_dp": math.sqrt(np.mean(dp**2)), "dnll": np.mean(nll) - np.mean(base_nll)}


def test_a_brief_baseline_gives_all_but_the_divergence(windows: Windows, tmp_path: Path) -> None:
    base, model = tiny_llama(0), tiny_llama(1)
    whole = make_baseline(base, windows, tmp_path / "whole", "tiny")
    brief = make_baseline(base, windows, tmp_path / "brief", "tiny", brief=True)
    assert brief.path.stat().st_size == brief.nbytes == 16 * windows.owners.size
    full, some = (evaluate_windows(model, windows, b) for b in (whole, brief))
    assert some == {k: v for k, v in full.items() if not k.startswith("kl")}
    assert open_baseline(tmp_path / "brief", windows, "tiny") is None
    assert open_baseline(tmp_path / "brief", windows, "tiny", brief=True) == brief


def test_evaluation_equals_the_naive_loop(windows: Windows, tmp_path: Path) -> None:
    base, model = tiny_llama(0).double(), tiny_llama(0).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(7))
    baseline = make_baseline(base, windows, tmp_path, "tiny")
    got = evaluate_windows(model, windows, baseline)
    for name, expected in naive(model, base, windows).items():
        # dnll is a small difference of logarithms that are rounded to float32.
        close = pytest.approx(expected, rel=1e-5, abs=3e-7 if name == "dnll" else 0)
        assert got[name] == close, name
    assert got["n_tokens"] == 5 * 47
    assert got["n_clusters"] == 6
    assert got["ppl"] != pytest.approx(got["base_ppl"], rel=1e-3)


def test_same_model_same_bits_and_no_difference(windows: Windows, tmp_path: Path) -> None:
    model = tiny_llama()
    baseline = make_baseline(model, windows, tmp_path, "tiny")
    first, second = (evaluate_windows(model, windows, baseline) for _ in range(2))
    assert first == second
    assert (first["kl"], first["dnll"], first["top1"], first["rms_dp"]) == (0.0, 0.0, 1.0, 0.0)


def test_bfloat16_models(windows: Windows, tmp_path: Path) -> None:
    baseline = make_baseline(tiny_llama(), windows, tmp_path, "tiny")
    got = evaluate_windows(tiny_llama().bfloat16(), windows, baseline)
    assert 0 < got["kl"] < 0.05
    assert got["ppl"] == pytest.approx(got["base_ppl"], rel=0.1)


def test_windows_do_not_influence_each_other(windows: Windows, tmp_path: Path) -> None:
    model, other = tiny_llama(0), tiny_llama(1)
    scores = score_windows(other, windows, make_baseline(model, windows, tmp_path / "all", "k"))
    alone = Windows(windows.ids[3:4], windows.clusters[3:4], None)
    one = score_windows(other, alone, make_baseline(model, alone, tmp_path / "one", "k"))
    np.testing.assert_array_equal(scores.kl[3 * 47 : 4 * 47], one.kl)


def test_progress(windows: Windows, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_baseline(tiny_llama(), windows, tmp_path, "tiny", lambda *at: seen.append(at))
    assert seen == [(i, 5) for i in range(1, 6)]


def test_baseline_is_reused_only_when_whole_and_fitting(windows: Windows, tmp_path: Path) -> None:
    def unwanted(**_: Any) -> Any:
        raise AssertionError("the baseline was computed again")

    made = make_baseline(tiny_llama(), windows, tmp_path, "a")
    assert made.path.stat().st_size == 5 * 47 * 259 * 4
    assert make_baseline(unwanted, windows, tmp_path, "a") == made
    assert sorted(p.name for p in tmp_path.glob("*.*[!k]")) == ["baseline.f32", "baseline.json"]
    assert open_baseline(tmp_path, windows, "b") is None
    shorter = Windows(windows.ids[:4], windows.clusters[:4], None)
    assert open_baseline(tmp_path, shorter, "a") is None
    with pytest.raises(LowprecError, match="of other windows"):
        evaluate_windows(tiny_llama(), shorter, made)
    with made.path.open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    assert open_baseline(tmp_path, windows, "a") is None
    assert make_baseline(tiny_llama(), windows, tmp_path, "a") == made
    with made.path.open("r+b") as file:
        file.truncate(1000)
    assert open_baseline(tmp_path, windows, "a") is None


def test_an_interrupted_baseline_is_none(windows: Windows, tmp_path: Path) -> None:
    model = tiny_llama()
    calls = []

    def failing(**inputs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return model(**inputs)

    with pytest.raises(KeyboardInterrupt):
        make_baseline(failing, windows, tmp_path, "a")
    assert not (tmp_path / "baseline.f32").exists()
    assert open_baseline(tmp_path, windows, "a") is None
    make_baseline(model, windows, tmp_path, "a")
    assert not list(tmp_path.glob("*.partial"))
    assert open_baseline(tmp_path, windows, "a") is not None


def test_bad_models(windows: Windows, tmp_path: Path) -> None:
    baseline = make_baseline(tiny_llama(), windows, tmp_path, "a")

    def infinite(**inputs: Any) -> Any:
        logits = tiny_llama()(**inputs).logits.detach()
        logits[0, 5, 7] = float("inf")
        return SimpleNamespace(logits=logits)

    with pytest.raises(LowprecError, match="window 0: the model's logits are not finite"):
        evaluate_windows(infinite, windows, baseline)
    with pytest.raises(LowprecError, match="300 logits per token, 259 in the baseline"):
        evaluate_windows(tiny_llama(vocab_size=300), windows, baseline)
    with pytest.raises(LowprecError, match="training mode"):
        evaluate_windows(tiny_llama().train(), windows, baseline)
