"""Training runs: reproducible, resumable bit for bit, and compared by paired differences."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.eval.text import Text
from lowprec.eval.training import Corpus, Plan, score, start, train
from lowprec.eval.training_recipe import (
    LossScaling,
    TrainingRecipe,
    list_training_recipes,
    load_training_recipe,
)
from lowprec.eval.training_report import points, summarize
from lowprec.eval.training_runs import finish, read, write_summary
from lowprec.nn.wrap import check
from lowprec.spec import data_dir
from lowprec.spec.record import Metric, Record

PLAN = Plan(
    layers=2, hidden=32, intermediate=48, heads=2, seqlen=24, batch=4, steps=6, warmup=2, every=2,
    windows=3,
)  # fmt: skip
WORDS = [
    "the",
    "right",
    "honourable",
    "gentleman",
    "has",
    "said",
    "that",
    "she",
    "would",
    "not",
    "wish",
    "to",
    "see",
    "it",
    "done",
    "so",
]
EVERYTHING = """
name = "everything"
[[rules]]
match = "lm_head"
keep = true
[[rules]]
match = "*.0.*"
weight = "float8_e4m3fn_tensor/static"
activation = "float8_e4m3fn_tensor/static"
input_gradient.gradient = "float8_e5m2_tensor/static"
weight_gradient.gradient = "float8_e5m2_tensor/static"
delayed = { history = 3 }
[[rules]]
match = "*"
weight = "nvfp4_16x16/amax"
activation = "nvfp4/amax"
input_gradient.gradient = "nvfp4/amax/stochastic:16"
weight_gradient.gradient = "nvfp4/amax/stochastic:16"
weight_gradient.activation = "nvfp4/amax"
weight_gradient.rotation = 16
[optimizer]
states = { exp_avg = "float8_e4m3fn/amax:16/stochastic:8", exp_avg_sq = "bfloat16/cast" }
weight = "bfloat16/cast/stochastic:16"
[loss_scaling]
init_scale = 1024.0
growth_interval = 2
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    documents = tuple(" ".join(rng.choice(WORDS, 30)) for _ in range(20))
    return Corpus.of(Text("speeches", documents), PLAN)


@pytest.fixture
def everything(tmp_path: Path) -> TrainingRecipe:
    (tmp_path / "everything.toml").write_text(EVERYTHING)
    return load_training_recipe(tmp_path / "everything.toml")


def test_a_killed_run_goes_on_bit_for_bit(
    corpus: Corpus, everything: TrainingRecipe, tmp_path: Path
) -> None:
    whole = train(PLAN, everything, corpus, 3)
    assert whole is not None
    checkpoint = tmp_path / "run.safetensors"
    # Killed between two checkpoints, and once more.
    assert train(PLAN, everything, corpus, 3, checkpoint, stop_after=3) is None
    assert train(PLAN, everything, corpus, 3, checkpoint, stop_after=5) is None
    assert train(PLAN, everything, corpus, 3, checkpoint) == whole
    assert whole.details["loss_scale"] == 1024.0 * 8
    assert len(whole.details["losses"]) == PLAN.steps
    other = train(PLAN, everything, corpus, 4)
    assert other is not None
    assert other.details["weights_sha256"] != whole.details["weights_sha256"]


def test_what_a_checkpoint_holds_matters(
    corpus: Corpus, everything: TrainingRecipe, tmp_path: Path
) -> None:
    """Without its part of the state, a run goes on otherwise: each part is needed."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    path, plan = tmp_path / "run.safetensors", PLAN
    whole = train(plan, everything, corpus, 3)
    train(plan, everything, corpus, 3, path, stop_after=3)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    for part in ("sites/", "/draws", "/amaxes", "optimizer/0/exp_avg_sq"):
        assert any(part in name for name in tensors), part
    for part in ("/draws", "/scale"):
        kept = {n: t for n, t in tensors.items() if not n.endswith(part)}
        assert len(kept) < len(tensors)
        save_file(kept, path, metadata)
        assert train(plan, everything, corpus, 3, path) != whole


def test_a_foreign_checkpoint_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    recipe, path = load_training_recipe("bf16"), tmp_path / "run.safetensors"
    train(PLAN, recipe, corpus, 0, path, stop_after=2)
    train(PLAN, recipe, corpus, 0, path, stop_after=3)
    with pytest.raises(LowprecError, match="checkpoint of another run"):
        train(PLAN, recipe, corpus, 1, path)
    torch.set_num_threads(2)
    with pytest.raises(LowprecError, match="written with threads 1, and this is 2"):
        train(PLAN, recipe, corpus, 0, path)
    path.write_bytes(b"no such thing")
    with pytest.raises(LowprecError, match="no checkpoint of a training run"):
        train(PLAN, recipe, corpus, 0, path)


def test_float32_is_plain_training(corpus: Corpus) -> None:
    """The loop against one written out, without this package's wrappers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    record = train(PLAN, load_training_recipe("float32"), corpus, 5)
    assert record is not None
    torch.manual_seed(5)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=24,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    for step in range(6):
        done = (step - 2) / 4
        rate = 3e-3 * ((step + 1) / 2 if step < 2 else 0.55 + 0.45 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = corpus.batch(PLAN, 5, step)
        logits = model(ids[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, 256), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert record.details["losses"][step] == pytest.approx(loss.item(), rel=1e-5)
    assert record.metrics["nll"].value == pytest.approx(np.mean(score(model, corpus)), rel=1e-5)


def test_data_and_weights_at_first_are_the_same_under_every_recipe(corpus: Corpus) -> None:
    assert torch.equal(corpus.batch(PLAN, 0, 3), corpus.batch(PLAN, 0, 3))
    assert not torch.equal(corpus.batch(PLAN, 0, 3), corpus.batch(PLAN, 0, 4))
    assert not torch.equal(corpus.batch(PLAN, 0, 3), corpus.batch(PLAN, 1, 3))
    models = [start(PLAN, load_training_recipe(n), 0).model for n in ("bf16", "mxfp8")]
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(a, b)
    assert "\n\n" in bytes(corpus.train).decode()


def test_a_loss_that_is_not_finite_ends_the_run(corpus: Corpus) -> None:
    recipe = load_training_recipe("float32")
    record = train(PLAN.model_copy(update={"lr": 1e30}), recipe, corpus, 0)
    assert record is not None
    assert 1 < record.details["diverged_at_step"] < PLAN.steps + 1
    assert record.metrics == {}
    Record.model_validate_json(record.model_dump_json())


@pytest.mark.parametrize("name", list_training_recipes())
def test_shipped_recipes_fit_the_default_model_and_learn(name: str, corpus: Corpus) -> None:
    recipe = load_training_recipe(name)
    assert recipe.name == name
    assert lp.recipe(recipe.model.spell()).rules == recipe.model.rules
    with torch.device("meta"):
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=48,
            num_hidden_layers=Plan().layers, num_attention_heads=2))  # fmt: skip
    check(model, recipe.model)
    plan = PLAN.model_copy(update={"layers": 6 if name == "nvfp4" else 1, "steps": 3})
    record = train(plan, recipe, corpus, 0)
    assert record is not None
    assert record.metrics["nll"].value < math.log(256) - 0.05


def test_every_file_cites_its_source() -> None:
    for path in (data_dir("evals") / "recipes" / "train").glob("*.toml"):
        comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
        text = " ".join(comment)
        assert path.stem == "float32" or "arXiv" in text or "Transformer Engine" in text, path


def test_mistakes_in_a_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    rules = 'name = "x"\n[[rules]]\nmatch = "*"\nkeep = true\n'
    for text, match in (
        ('[optimizer]\nstates = { exp_avg = "bfloat61" }', "unknown format 'bfloat61'"),
        ("[optimizer]\nstate = { }", "optimizer: state: unknown key"),
        ("[loss_scaling]\ngrowth_factor = 0.5", "loss_scaling: growth_factor"),
        ("[optimizer]\nweight = 3", "optimizer.weight: expected a quantizer"),
    ):
        path.write_text(rules + text)
        with pytest.raises(LowprecError, match=match):
            load_training_recipe(path)
    with pytest.raises(LowprecError, match=r"unknown training recipe 'mxpf8'.*mxfp8"):
        load_training_recipe("mxpf8")
    assert LossScaling().init_scale == torch.amp.GradScaler("cpu").get_scale()


def run_of(name: str, seed: int, scores: dict[int, float], diverged: bool = False) -> Record:
    last = scores[max(scores)]
    return Record(
        kind="training",
        subject={"name": name, "seed": seed},
        metrics={} if diverged else {"nll": Metric(value=last, se=0.1)},
        details={"scores": {str(step): value for step, value in scores.items()}},
        environment={},
    )


def test_differences_are_paired_by_seed() -> None:
    records = [run_of("bf16", s, {1: 3.0, 2: 2.0 + s}) for s in range(3)]
    records += [run_of("x", s, {1: 3.0, 2: 2.0 + s + d}) for s, d in enumerate((0.1, 0.2, 0.3))]
    records += [run_of("y", 0, {1: 3.0}, diverged=True)]
    base, x, y = summarize(records, "bf16")
    assert (base.difference, base.interval) == (0.0, (0.0, 0.0))
    assert x.difference == pytest.approx(0.2)
    # Student's t of two degrees of freedom: 4.30265 standard errors.
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    assert x.interval == pytest.approx((0.2 - half, 0.2 + half))
    assert (y.diverged, y.nll, y.difference, y.interval) == (1, None, None, None)
    at = {(p["recipe"], p["step"]): p for p in points(records, "bf16")}
    assert at["x", 2]["low"] == pytest.approx(0.2 - half)
    assert at["y", 1]["low"] is None
    with pytest.raises(LowprecError, match="no run of the baseline 'float32'"):
        summarize(records, "float32")


def test_a_folder_is_finished_once(corpus: Corpus, tmp_path: Path) -> None:
    from contextlib import contextmanager

    steps: list[int] = []

    @contextmanager
    def task() -> Any:
        yield lambda done, _total: steps.append(done)

    recipe = load_training_recipe("bf16")
    records = [finish(PLAN, recipe, corpus, s, tmp_path, False, task) for s in (0, 1)]
    assert steps == [1, 2, 3, 4, 5, 6] * 2
    assert [finish(PLAN, recipe, corpus, s, tmp_path, False, task) for s in (0, 1)] == records
    assert len(steps) == 12
    assert not list(tmp_path.glob("*.safetensors"))
    write_summary(records, "bf16", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())[0]["seeds"] == [0, 1]
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert 'src="http' not in (tmp_path / "curves.html").read_text()
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(LowprecError, match=r"x\.json: no record"):
        read(tmp_path / "x.json")


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(LowprecError, match="speech: 92 bytes to train on"):
        Corpus.of(Text("speech", ("0123456789" * 10,)), PLAN)


@pytest.mark.slow
def test_the_script_goes_on_after_a_kill(tmp_path: Path) -> None:
    import subprocess

    text = tmp_path / "text.txt"
    text.write_text(" ".join(np.random.default_rng(0).choice(WORDS, 3000)))
    script = Path(__file__).parents[2] / "evals" / "pretrain.py"
    sizes = "--layers 2 --hidden 32 --intermediate 48 --heads 2 --seqlen 24 --batch 4 --every 2 "
    sizes += "--windows 3 --threads 1 --seeds 1 --recipes bf16,mxfp8"

    def command(folder: str, steps: int) -> list[str]:
        rest = f"--steps {steps} --text {text} --out {tmp_path / folder}".split()
        return [sys.executable, str(script), *sizes.split(), *rest]

    subprocess.run(command("whole", 60), check=True, capture_output=True)
    child = subprocess.Popen(command("killed", 60), stdout=subprocess.DEVNULL)
    while not list((tmp_path / "killed").glob("*.safetensors")):
        assert child.poll() is None
    child.kill()
    child.wait()
    assert not (tmp_path / "killed" / "summary.json").exists()
    subprocess.run(command("killed", 60), check=True, capture_output=True)
    for path in (tmp_path / "whole").glob("*.json"):
        assert path.read_text() == (tmp_path / "killed" / path.name).read_text()
