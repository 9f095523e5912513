"""What a mod takes and returns: pinned texts."""

import numpy as np
import pytest

from flexsdpa.errors import RequestError
from null.helpers import traced
from null.trace.messages import error_of

SCORE = "expected the new score, a single float"
MASK = "expected a boolean: True where attention is allowed"
ELEMENT = "read one element per position: bias[h, q_idx, kv_idx]"
BOOLEAN = "pass the condition as mask_mod, or return where(cond, score, -float('inf'))"

SCORES = {
    "a tensor": (lambda s, b, h, q, k: np.zeros(3), f"score_mod returned a tensor of shape (3,), {SCORE}", ELEMENT),
    "None": (lambda s, b, h, q, k: None, f"score_mod returned None, {SCORE}", "did it forget to return?"),
    "a bool": (lambda s, b, h, q, k: q >= k, f"score_mod returned a boolean, {SCORE}", BOOLEAN),
    "True": (lambda s, b, h, q, k: True, f"score_mod returned a bool, {SCORE}", None),
    "a string": (lambda s, b, h, q, k: "score", f"score_mod returned a str, {SCORE}", None),
    "a tuple": (lambda s, b, h, q, k: (s,), f"score_mod returned a tuple, {SCORE}", None),
}

MASKS = {
    "a tensor": (lambda b, h, q, k: np.zeros(3, bool), f"mask_mod returned a tensor of shape (3,), {MASK}", ELEMENT),
    "None": (lambda b, h, q, k: None, f"mask_mod returned None, {MASK}", "did it forget to return?"),
    "an integer": (
        lambda b, h, q, k: q - k,
        "mask_mod returned a value that is not boolean (integer), expected True where attention is allowed",
        "compare it (x != 0)",
    ),
    "a float": (
        lambda b, h, q, k: (q - k) * 0.5,
        "mask_mod returned a value that is not boolean (float), expected True where attention is allowed",
        "an additive mask belongs in score_mod: score + bias",
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_mod_that_returns_no_score(name):
    mod, expected, instead = SCORES[name]
    headline, rows = error_of(mod)
    assert headline == expected
    assert rows.get("instead") == instead


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_mod_that_returns_no_mask(name):
    mod, expected, instead = MASKS[name]
    headline, rows = error_of(None, mod)
    assert headline == expected
    assert rows.get("instead") == instead


def test_the_article_fits_the_type():
    headline, _ = error_of(None, lambda b, h, q, k: 1)
    assert headline == f"mask_mod returned an int, {MASK}"


class TestArguments:
    def test_too_few_parameters(self):
        headline, rows = error_of(lambda score, b, h, q_idx: score)
        assert headline == "score_mod does not take 5 arguments"
        assert rows["given"].endswith("<lambda>(score, b, h, q_idx)")
        assert rows["expected"] == "a function (score, b, h, q_idx, kv_idx)"

    def test_too_many_parameters(self):
        def mask(score, b, h, q_idx, kv_idx):
            return q_idx >= kv_idx

        headline, rows = error_of(None, mask)
        assert headline == "mask_mod does not take 4 arguments"
        assert rows["given"].endswith("mask(score, b, h, q_idx, kv_idx)")
        assert rows["expected"] == "a function (b, h, q_idx, kv_idx)"

    def test_a_score_mod_and_a_mask_mod_exchanged(self):
        headline, _ = error_of(lambda b, h, q, k: q >= k, lambda s, b, h, q, k: s)
        assert headline == "score_mod does not take 5 arguments"

    def test_something_that_is_no_function(self):
        assert error_of(np.zeros(3))[0] == "score_mod must be a function (score, b, h, q_idx, kv_idx), not a ndarray"
        assert error_of(None, "causal")[0] == "mask_mod must be a function (b, h, q_idx, kv_idx), not a str"

    def test_any_arguments_are_fine(self):
        assert traced(lambda *args: args[0]).text == traced(lambda s, b, h, q, k: s).text
        assert traced(lambda s, *args, **options: s).text == traced(lambda s, b, h, q, k: s).text


class TestQueryOffset:
    def mask(self, b, h, q, k):
        return k <= q

    @pytest.mark.parametrize(
        ("offset", "lines"),
        [
            (7, ["const_i 7", "add 3 5"]),
            (np.array(7), ["const_i 7", "add 3 5"]),
            (np.array([7, 8]), ["read 0 1", "add 3 5"]),
        ],
    )
    def test_it_is_added_to_the_query_index(self, offset, lines):
        found = traced(None, self.mask, q_offset=offset)
        body = [line for line in found.text.split("\n") if not line.startswith(("array", "scalars", "flexsdpa", "return"))]
        assert body[5:] == [*lines, "le 4 6"]

    @pytest.mark.parametrize("offset", [0.5, np.array([[1]]), np.array([0.5]), True])
    def test_only_integers_will_do(self, offset):
        with pytest.raises(
            RequestError, match=r"^q_offset must be an integer, or an integer tensor of shape \(\) or \(batch,\)$"
        ):
            traced(None, self.mask, q_offset=offset)
