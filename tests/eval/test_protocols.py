"""Each perplexity protocol against a plain loop after its source, on a tiny model."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lowprec.errors import LowprecError
from lowprec.eval import load_suite, load_text, make_baseline
from lowprec.eval.data import _split
from lowprec.eval.hub import FileText, file_text
from lowprec.eval.perplexity import evaluate_windows, score_windows
from lowprec.eval.protocols import KINDS, Protocol, _rows, windows_of
from lowprec.eval.text import Text
from lowprec.spec.load import cache_dir
from tests.eval.tiny import byte_tokenizer, tiny_llama

ROWS = [
    "",
    " = One =\n",
    "",
    "aqq bcd efg qqh ijk lmn opq rst\n",
    "",
    " = Two =\n",
    "uvw " * 9 + "\n",
]
# Two documents of rows, as WikiText has them; `join` makes a data set's text of rows.
ARTICLES = (
    " \n = One =\n \naqq bcd efg qqh ijk lmn opq rst\n \n",
    " = Two =\n" + "uvw " * 9 + "\n",
)
WIKI = Text("wiki", ARTICLES, separator="", rows=True)
SPEECHES = Text(
    "speeches", tuple("".join(chr(97 + i * k % 26) for i in range(55)) for k in (1, 3, 5))
)


def ppl(text: Text, protocol: Protocol, folder: Path, bos: bool = False) -> float:
    """What we say, through baseline and all."""
    model = tiny_llama()
    windows = windows_of(text, byte_tokenizer(bos), protocol)
    found = evaluate_windows(model, windows, make_baseline(model, windows, folder, "k"))
    assert found["ppl"] == pytest.approx(found["base_ppl"], rel=1e-12)
    return float(found["ppl"])


def losses(ids: torch.Tensor) -> torch.Tensor:
    """Loss of every token of [L] but the first."""
    with torch.no_grad():
        logits = tiny_llama()(input_ids=ids[None]).logits[0]
    return F.cross_entropy(logits[:-1].double(), ids[1:], reduction="none")


def encode(text: str, bos: bool) -> torch.Tensor:
    return torch.tensor(byte_tokenizer(bos)(text).input_ids)


@pytest.mark.parametrize("bos", [False, True])
def test_gptq(tmp_path: Path, bos: bool) -> None:
    """After datautils.get_wikitext2 and the loop of opt.py in IST-DASLab/gptq."""
    testenc = encode("\n\n".join(ROWS), bos)[None]
    seqlen = 24
    nsamples = testenc.numel() // seqlen
    nlls = []
    for i in range(nsamples):
        batch = testenc[0, i * seqlen : (i + 1) * seqlen]
        nlls.append(losses(batch).mean() * seqlen)
    expected = torch.exp(torch.stack(nlls).sum() / (nsamples * seqlen)).item()
    assert nsamples > 3
    got = ppl(WIKI, Protocol(kind="gptq", seqlen=seqlen), tmp_path, bos)
    assert got == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("stride", [5, 16, 31])
def test_strided(tmp_path: Path, stride: int) -> None:
    """After "Perplexity of fixed-length models" in the documentation of transformers."""
    ids = encode("\n\n".join(SPEECHES.documents), True)
    max_length, total, count, previous = 32, 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        target = ids[begin:end].clone()
        target[: len(target) - (end - previous)] = -100
        with torch.no_grad():
            logits = tiny_llama()(input_ids=ids[None, begin:end]).logits[0]
        kept = target[1:] != -100
        total += F.cross_entropy(logits[:-1].double(), target[1:], reduction="sum").item()
        count += int(kept.sum())
        previous = end
        if end == len(ids):
            break
    assert count == len(ids) - 1  # every token but the first, once
    protocol = Protocol(kind="strided", seqlen=max_length, stride=stride)
    assert ppl(SPEECHES, protocol, tmp_path, True) == pytest.approx(
        math.exp(total / count), rel=1e-6
    )


@pytest.mark.parametrize("bos", [False, True])
def test_llama_cpp(tmp_path: Path, bos: bool) -> None:
    """After perplexity() of tools/perplexity/perplexity.cpp in ggml-org/llama.cpp."""
    tokens = encode("".join(ARTICLES), bos).tolist()
    n_ctx, nll, count = 16, 0.0, 0
    for chunk in range(len(tokens) // n_ctx):
        start = chunk * n_ctx
        batch = tokens[start : start + n_ctx]
        if bos:
            batch[0] = 0
        with torch.no_grad():
            logits = tiny_llama()(input_ids=torch.tensor([batch])).logits[0].double()
        first = n_ctx // 2
        for j in range(first, n_ctx - 1):
            nll -= torch.log_softmax(logits[j], -1)[tokens[start + j + 1]].item()
            count += 1
    protocol = Protocol(kind="llama.cpp", seqlen=n_ctx)
    assert ppl(WIKI, protocol, tmp_path, bos) == pytest.approx(math.exp(nll / count), rel=1e-6)
    windows = windows_of(WIKI, byte_tokenizer(bos), protocol)
    assert windows.mask.sum() == count
    assert set(windows.contexts) == set(range(n_ctx // 2 + 1, n_ctx))


def test_c4(tmp_path: Path) -> None:
    """After get_c4_new of IST-DASLab/gptq: joined by spaces, 256 windows at most."""
    valenc = encode(" ".join(SPEECHES.documents[:1100]), True)
    valenc = valenc[: (256 * 20)]
    nlls = [losses(valenc[i * 20 : (i + 1) * 20]).mean() for i in range(len(valenc) // 20)]
    got = ppl(SPEECHES, Protocol(kind="c4", seqlen=20), tmp_path, True)
    assert got == pytest.approx(math.exp(torch.stack(nlls).mean()), rel=1e-6)


@pytest.mark.parametrize("seqlen", [13, 27, 200])
def test_per_document_is_lm_evals_rolling_loglikelihood(tmp_path: Path, seqlen: int) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = tiny_llama(), byte_tokenizer()
    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=seqlen, batch_size=1)
    requests = [
        Instance("loglikelihood_rolling", {}, (document,), i)
        for i, document in enumerate(SPEECHES.documents)
    ]
    theirs = lm.loglikelihood_rolling(requests, disable_tqdm=True)
    windows = windows_of(SPEECHES, tokenizer, Protocol(kind="per-document", seqlen=seqlen))
    scores = score_windows(model, windows, make_baseline(model, windows, tmp_path, "k"))
    ours = -np.bincount(windows.owners, weights=scores.nll)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert len(scores.nll) == sum(len(tokenizer(d).input_ids) for d in SPEECHES.documents)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_windows_are_those_of_the_whole(kind: str) -> None:
    every, first = (
        windows_of(SPEECHES, byte_tokenizer(), Protocol(kind=kind, seqlen=16, windows=count))
        for count in (None, 3)
    )
    assert len(first.ids) == 3
    for i in range(3):
        np.testing.assert_array_equal(first.tokens(i), every.tokens(i))
        np.testing.assert_array_equal(first.places(i), every.places(i))
    assert first.digest != every.digest
    with pytest.raises(LowprecError, match=r"speeches: .*too short for"):
        windows_of(SPEECHES, byte_tokenizer(), Protocol(kind=kind, seqlen=16, windows=99))


@pytest.mark.parametrize("kind", ["gptq", "c4", "llama.cpp", "strided"])
def test_a_token_belongs_to_the_document_that_it_begins_in(kind: str) -> None:
    windows = windows_of(SPEECHES, byte_tokenizer(), Protocol(kind=kind, seqlen=16))
    between = 1 if kind == "c4" else 2
    joined = np.repeat([0, 1, 2], [55 + between, 55 + between, 55])
    for i in range(len(windows.ids) - 1):
        step = 8 if kind == "strided" else 16
        expected = joined[i * step + 1 : i * step + 16]
        np.testing.assert_array_equal(windows.clusters[i], expected)
    alone = Text("one", ("".join(SPEECHES.documents),))
    windows = windows_of(alone, byte_tokenizer(), Protocol(kind=kind, seqlen=16))
    assert windows.clusters.tolist() == [[i] * 15 for i in range(len(windows.ids))]


def test_rows_are_those_of_the_data_set() -> None:
    assert "\n\n".join(_rows(a) for a in ARTICLES) == "\n\n".join([*ROWS[:4], "", *ROWS[5:]])
    assert _split("".join(ARTICLES), "^ = One") == ("".join(ARTICLES),)
    assert _split("".join(ARTICLES), "^ = [A-Z]") == ARTICLES


def _source(text: str) -> FileText:
    words = ("licence", "licence_source", "attribution", "citation", "source")
    return FileText(
        file="own.raw",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        repository="nobody/none",
        member="none.parquet",
        **dict.fromkeys(words, "x"),
    )


def test_a_file_from_the_hub(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offline it is named and where to put it; a hub's Parquet file becomes the text."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = "".join(ARTICLES)
    with pytest.raises(LowprecError, match=r"own.raw: not to be had from the Hugging Face hub"):
        file_text(_source(text), lambda _: None)
    rows = [line + "\n" if line.strip() else "" for line in text.removesuffix("\n").split("\n")]
    parquet.write_table(pa.table({"text": rows}), tmp_path / "rows.parquet")
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda *_, **__: tmp_path / "rows.parquet"
    )
    assert index.is_dir()
    with pytest.raises(LowprecError, match="its rows give another text: expected sha256"):
        file_text(_source("other"), lambda _: None)
    assert file_text(_source(text), lambda _: None) == text
    (cache_dir() / "downloads" / "own.raw").write_text("altered")
    with pytest.raises(LowprecError, match="truncated or altered"):
        file_text(_source(text), lambda _: None)


@pytest.mark.slow
def test_wikitext_is_the_published_one() -> None:
    """Where the file is in the cache or on the hub: both published forms, byte for byte."""
    try:
        text = load_text("wikitext-2")
    except LowprecError as error:
        pytest.skip(str(error))
    assert len(text.documents) == 62
    joined = "\n\n".join(_rows(d) for d in text.documents).encode()
    assert hashlib.sha256(joined).hexdigest().startswith("696cca6b")
    assert load_suite("wikitext-2").protocol.kind == "gptq"


def test_bad_protocols() -> None:
    with pytest.raises(ValueError, match="stride: of kind 'strided' alone"):
        Protocol(stride=3)
    with pytest.raises(ValueError, match="less than seqlen"):
        Protocol(kind="strided", seqlen=8, stride=8)
    assert Protocol(kind="strided", seqlen=8).described() == "strided, 8 tokens, stride 4"
