"""Digests, records, workloads and the reading of files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lowprec.errors import LowprecError, did_you_mean, unknown
from lowprec.spec import Attention, Embedding, Matmul, Metric, Record, Vector, Workload, digest
from lowprec.spec.load import MAX_FILE_BYTES, build, read_toml


def record(**subject: object) -> Record:
    return Record(
        kind="accuracy",
        subject=subject,
        metrics={"kl": Metric(value=0.1, se=0.01)},
        details={},
        environment={"torch": "2.13.0"},
    )


def test_the_name_is_of_kind_and_subject_alone() -> None:
    one = record(model="m", seed=1)
    other = one.model_copy(update={"environment": {}, "metrics": {}})
    assert one.name == other.name
    assert one.digest != other.digest
    assert one.name == record(seed=1, model="m").name
    assert one.name != record(model="m", seed=2).name
    assert one.name != one.model_copy(update={"kind": "throughput"}).name
    assert Record.model_validate_json(one.model_dump_json()) == one


def test_digest_is_sha256_of_canonical_json() -> None:
    empty_object = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest({}) == empty_object
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"x": math.nan}) != digest({"x": math.inf})


def test_work_of_operations() -> None:
    matmul = Matmul(kind="matmul", path="up", m=4, n=5, k=6, batch=2)
    assert matmul.flops == 2 * 2 * 4 * 5 * 6
    assert matmul.distinct_weights == 1
    attention = Attention(
        kind="attention",
        path="attn",
        batch=2,
        heads=4,
        kv_heads=2,
        queries=3,
        keys=5,
        head_dim=8,
        value_dim=16,
        causal=True,
    )
    # Query i of 3 sees 3, 4, 5 of the 5 keys.
    assert attention.flops == 2 * 2 * 4 * (3 + 4 + 5) * (8 + 16)
    assert attention.kv_elements == 2 * 2 * 5 * 24
    assert attention.q_elements == 2 * 4 * 3 * 24
    vector = Vector(kind="vector", path="norm", name="rms_norm", read=8, written=8)
    rows = Embedding(kind="embedding", path="embed", rows=2, width=8)
    work = Workload(
        model="m",
        phase="prefill",
        batch=2,
        tokens=3,
        context=2,
        dtype="bfloat16",
        ops=(matmul, attention, vector, rows),
    )
    assert work.flops == matmul.flops + attention.flops
    assert work.new_tokens == 6
    assert Workload.model_validate_json(work.model_dump_json()) == work


def test_experts_that_are_read() -> None:
    """2 tokens that choose 1 of 4 each: both the same with probability 1/4."""
    matmul = Matmul(kind="matmul", path="e", m=2, n=1, k=1, experts=4, top_k=1)
    assert matmul.distinct_weights == pytest.approx(2 - 1 / 4)


def test_nearest_names() -> None:
    assert did_you_mean("mxfp5", ["mxfp4", "nvfp4"]) == "; did you mean 'mxfp4'?"
    assert did_you_mean("zzz", ["b", "a"]) == "; expected one of a, b"
    assert did_you_mean("zzz", map(str, range(20))) == ""
    assert str(unknown("rule", "x", ["y"], "f.toml: k")).startswith("f.toml: k: unknown rule 'x'")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good, broken = tmp_path / "study.toml", tmp_path / "broken.toml"
    good.write_text("x = 1\n")
    assert read_toml(good) == {"x": 1}
    broken.write_text("x = \n")
    (tmp_path / "latin.toml").write_bytes(b"x = '\xff'\n")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5000)
    complaints = {
        "studi.toml": "no such file; did you mean 'study.toml'?",
        "broken.toml": "broken.toml: Invalid value",
        "latin.toml": "latin.toml: ",
        "large.toml": "larger than 4 MiB",
        "deep.toml": "deep.toml: ",
        ".": "directory",
    }
    for name, complaint in complaints.items():
        with pytest.raises(LowprecError) as error:
            read_toml(tmp_path / name)
        assert complaint in str(error.value)
        assert "\n" not in str(error.value)


def test_wrong_data_names_its_place_and_key() -> None:
    data = {"kind": "vector", "path": "p", "name": "n", "read": -1, "written": 0}
    with pytest.raises(LowprecError, match=r"^w\.json: read: .*\(got -1\)$"):
        build(Vector, data, "w.json")
    with pytest.raises(LowprecError, match=r"unknown key; did you mean 'written'\?"):
        build(Vector, {**data, "writen": 0}, "w.json")
    with pytest.raises(LowprecError, match="path: Field required"):
        build(Vector, {k: v for k, v in data.items() if k != "path"}, "w.json")
