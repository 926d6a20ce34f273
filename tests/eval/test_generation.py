from __future__ import annotations

import numpy as np
import pytest
import torch

from lowprec.errors import LowprecError
from lowprec.eval.generation import agreement, continuations, prompts_of
from lowprec.eval.text import Text
from lowprec.nn import unwrap, wrap
from tests.eval.tiny import byte_tokenizer, tiny_llama

TEXT = Text("t", ("short", "a longer document", "another one, longer yet", "and the last of them"))


def test_divergence_by_hand() -> None:
    found = agreement(
        [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [1, 9, 3, 4], [0, 6, 7, 8]]
    )
    assert found.divergence == (4, 1, 0)
    assert found.exact.value == pytest.approx(1 / 3)
    assert found.agreeing.value == pytest.approx((1 + 0.25 + 0) / 3)
    with pytest.raises(LowprecError, match="expected the same prompts"):
        agreement([[1, 2]], [[1, 2], [3, 4]])


def test_prompts() -> None:
    found = prompts_of(TEXT, byte_tokenizer(), 2, 10)
    assert [byte_tokenizer().decode(p) for p in found] == ["a longer d", "another on"]
    with pytest.raises(LowprecError, match="t: 3 documents of 10 tokens or more; asked for 4"):
        prompts_of(TEXT, byte_tokenizer(), 4, 10)
    one = prompts_of(Text("one", ("abcdefghij",)), byte_tokenizer(), 2, 4)
    assert [byte_tokenizer().decode(p) for p in one] == ["abcd", "efgh"]


def test_greedy_is_the_likeliest_token_each_time() -> None:
    model, prompts = tiny_llama(), prompts_of(TEXT, byte_tokenizer(), 3, 8)
    found = continuations(model, prompts, 6)
    for prompt, said in zip(prompts, found, strict=True):
        ids = torch.from_numpy(prompt)
        for token in said:
            with torch.inference_mode():
                logits = model(input_ids=ids[None]).logits[0, -1].clone()
                logits[1] = -torch.inf  # </s>
            assert logits.argmax() == token
            ids = torch.cat([ids, torch.tensor([token])])
    assert agreement(found, continuations(model, prompts, 6)).exact.value == 1
    wrap(model, "lm_head: keep; *: weight=mxfp4/floor activation=mxfp4/floor")
    other = agreement(found, continuations(model, prompts, 6))
    assert min(other.divergence) < 6
    unwrap(model)
    assert continuations(model, prompts, 6) == found
    assert np.array(found).shape == (3, 6)
