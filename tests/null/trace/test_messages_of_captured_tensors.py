"""Captured tensors read the wrong way: pinned texts."""

import numpy as np
import pytest

from flexsdpa import ops
from null.helpers import traced
from null.trace.messages import error_of

CANNOT = "which a traced mod cannot do"
VECTOR, MATRIX = np.zeros(3), np.zeros((2, 3))

READS = {
    "a float index": (
        lambda s, b, h, q, k: s + ops.read(VECTOR, s),
        "a captured tensor was read with a float index",
        "cast it: table[x.long()]",
    ),
    "a bool index": (
        lambda s, b, h, q, k: s + ops.read(VECTOR, q > k),
        "a captured tensor was read with a bool index",
        "cast it: table[x.long()]",
    ),
    "too many indices": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, h, q, k),
        "a captured tensor of shape (2, 3) was read with 3 indices",
        "give 2 indices, one per dimension",
    ),
    "too few indices": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, q),
        "a read of a captured tensor of shape (2, 3) gives a vector of shape (3,)",
        "index every dimension: table[h, q_idx]",
    ),
    "a slice": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, q, slice(None)),
        "a captured tensor was indexed with a slice, None or ...",
        "give one integer per dimension: table[h, q_idx]",
    ),
    "an ellipsis": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, q, ...),
        "a captured tensor was indexed with a slice, None or ...",
        "give one integer per dimension: table[h, q_idx]",
    ),
    "None": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, q, None),
        "a captured tensor was indexed with a slice, None or ...",
        "give one integer per dimension: table[h, q_idx]",
    ),
    "used whole": (
        lambda s, b, h, q, k: s + VECTOR,
        "a captured tensor of shape (3,) was used whole",
        "read one element per position, for example table[h, q_idx - kv_idx]",
    ),
    "used whole on the left": (
        lambda s, b, h, q, k: MATRIX * s,
        "a captured tensor of shape (2, 3) was used whole",
        "read one element per position, for example table[h, q_idx - kv_idx]",
    ),
    "an index that is a tensor": (
        lambda s, b, h, q, k: s + ops.read(MATRIX, q, np.arange(3)),
        "a captured tensor of shape (3,) was used whole",
        "read one element per position, for example table[h, q_idx - kv_idx]",
    ),
}

UNSUPPORTED = ("complex64", "uint16", "uint32", "uint64", "object", "datetime64[s]")


@pytest.mark.parametrize("name", READS)
def test_the_error_says_what_was_read_and_what_works(name):
    mod, what, instead = READS[name]
    headline, rows = error_of(mod)
    assert headline == f"{what}, {CANNOT}"
    assert rows["instead"] == instead


@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_a_dtype_that_is_not_supported(dtype):
    headline, rows = error_of(lambda s, b, h, q, k: s + ops.read(np.zeros(3, dtype), q))
    assert headline == f"a captured tensor has dtype {dtype}, {CANNOT}"
    assert rows["instead"] == "use one of bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64"


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_a_dtype_that_is_supported(dtype):
    found = traced(lambda s, b, h, q, k: ops.where(ops.read(np.zeros(3, dtype), q) != 0, s, 0.0))
    assert len(found.arrays) == 1


@pytest.mark.parametrize("name", ["used whole", "used whole on the left"])
def test_an_error_of_an_operator_names_the_users_line(name):
    assert error_of(READS[name][0])[1]["at"].startswith(f"{__file__}:")


@pytest.mark.parametrize("name", ["a float index", "too many indices", "too few indices", "a slice"])
def test_an_error_inside_a_function_of_ops_names_the_users_line(name):
    assert error_of(READS[name][0])[1]["at"].startswith(f"{__file__}:")


def test_a_whole_tensor_of_an_unsupported_dtype_is_told_its_dtype():
    headline, _ = error_of(lambda s, b, h, q, k: s + np.zeros(3, np.complex64))
    assert headline.startswith("a captured tensor has dtype complex64")


class TestLeakedValues:
    LEFT = "a traced value of another mod was used, which a traced mod cannot do"

    def leaked(self):
        kept = []
        traced(lambda s, b, h, q, k: kept.append(s) or s)
        return kept[0]

    @pytest.mark.parametrize(
        "use",
        [
            lambda s, old: s + old,
            lambda s, old: old + s,
            lambda s, old: old,
            lambda s, old: ops.tanh(old),
            lambda s, old: ops.where(s > old, s, 0),
        ],
    )
    def test_a_value_of_another_trace_is_refused(self, use):
        old = self.leaked()
        headline, rows = error_of(lambda s, b, h, q, k: use(s, old))
        assert headline == self.LEFT
        assert rows["instead"] == "a mod can only use its own arguments"

    def test_a_leaked_index_is_refused(self):
        old = self.leaked()
        assert error_of(lambda s, b, h, q, k: s + ops.read(VECTOR, (old + 0) * 0 + q))[0] == self.LEFT

    def test_the_score_mod_and_the_mask_mod_share_a_trace(self):
        """They are one program, so a value may pass from one to the other."""
        kept = []
        found = traced(lambda s, b, h, q, k: kept.append(q - k) or s, lambda b, h, q, k: kept[0] >= 0)
        assert "sub 3 4" in found.text
