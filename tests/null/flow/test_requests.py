"""What q, k and v may be, and tensors as a request sees them."""

import pytest

from flexsdpa.errors import RequestError
from flexsdpa.spec.request import check_tensors
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides, ordered_strides
from null.toy_backend import PLAIN, request


def spec(*shape, dtype="f32"):
    return TensorSpec(dtype, shape)


GOOD = (spec(2, 4, 16, 64), spec(2, 2, 24, 64), spec(2, 2, 24, 32))

BAD = {
    "rank": (
        (spec(4, 16, 64), *GOOD[1:]), "q",
        "q must have 4 dimensions (batch, heads, q_len, head_dim), got shape (4, 16, 64)",
    ),
    "rank of v": (
        (*GOOD[:2], spec(2, 24, 32)), "v",
        "v must have 4 dimensions (batch, kv_heads, kv_len, v_head_dim), got shape (2, 24, 32)",
    ),
    "dtypes differ": (
        (spec(2, 4, 16, 64, dtype="f16"), *GOOD[1:]), "dtype",
        "q, k and v must have one dtype, got f16, f32 and f32: cast them, or run under autocast",
    ),
    "integer": (
        tuple(TensorSpec("i32", x.shape) for x in GOOD), "dtype", "q, k and v must be one of f16, bf16, f32, f64, got i32",
    ),
    "batch": ((spec(3, 4, 16, 64), *GOOD[1:]), "batch", "q, k and v must have one batch size, got 3, 2 and 2"),
    "kv heads": (
        (GOOD[0], GOOD[1], spec(2, 1, 24, 32)), "heads", "k and v must have the same number of heads, got 2 and 1",
    ),
    "groups": (
        (spec(2, 3, 16, 64), *GOOD[1:]), "heads",
        "the number of query heads must be a multiple of the kv heads (GQA), got 3 and 2",
    ),
    "no kv heads": (
        (GOOD[0], spec(2, 0, 24, 64), spec(2, 0, 24, 32)), "heads",
        "the number of query heads must be a multiple of the kv heads (GQA), got 4 and 0",
    ),
    "kv lengths": ((*GOOD[:2], spec(2, 2, 25, 32)), "kv_len", "k and v must have the same length, got 24 and 25"),
    "head dims": ((spec(2, 4, 16, 32), *GOOD[1:]), "head_dim", "q and k must have the same head_dim, got 32 and 64"),
    "no head dim": ((spec(2, 4, 16, 0), spec(2, 2, 24, 0), GOOD[2]), "head_dim", "head_dim must be at least 1, got 0"),
}  # fmt: skip


class TestChecks:
    @pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
    def test_tensors_that_fit_together(self, dtype):
        check_tensors(*(TensorSpec(dtype, x.shape) for x in GOOD))

    @pytest.mark.parametrize(
        "shapes", [((0, 4, 16, 64), (0, 2, 24, 64), (0, 2, 24, 32)), ((2, 4, 0, 64), (2, 2, 0, 64), (2, 2, 0, 32))]
    )
    def test_empty_batches_and_lengths_are_fine(self, shapes):
        check_tensors(*(spec(*shape) for shape in shapes))

    @pytest.mark.parametrize("name", BAD)
    def test_tensors_that_do_not(self, name):
        tensors, field, text = BAD[name]
        with pytest.raises(RequestError) as raised:
            check_tensors(*tensors)
        assert str(raised.value) == text
        assert raised.value.field == field

    def test_a_request_error_is_a_value_error(self):
        assert issubclass(RequestError, ValueError)


class TestSummary:
    def test_grouped_heads_are_mentioned(self):
        assert PLAIN.summary() == "q f32 (2, 4, 16, 64)  k (2, 2, 24, 64)  v (2, 2, 24, 32)  kv heads 2  forward  device cpu"

    def test_equal_heads_are_not(self):
        assert "kv heads" not in request(k=spec(2, 4, 24, 64), v=spec(2, 4, 24, 32)).summary()


class TestStrides:
    @pytest.mark.parametrize(
        ("shape", "strides", "kind"),
        [
            ((4, 5), (), "contiguous"), ((4, 5), (5, 1), "contiguous"), ((4, 5), (1, 4), "strided"), ((4, 5), (10, 2), "strided"),
            ((4, 5), (0, 1), "broadcast"), ((1, 5), (0, 1), "strided"), ((), (), "contiguous"),
        ],
    )  # fmt: skip
    def test_the_class_of_strides(self, shape, strides, kind):
        assert TensorSpec("f32", shape, strides).stride_class == kind

    @pytest.mark.parametrize(("shape", "strides"), [((2, 3, 4), (12, 4, 1)), ((2, 0, 4), (4, 4, 1)), ((), ())])
    def test_row_major_strides(self, shape, strides):
        assert contiguous_strides(shape) == strides

    @pytest.mark.parametrize(
        ("like", "strides"),
        [
            ((4 * 16 * 64, 16 * 64, 64, 1), (4 * 16 * 8, 16 * 8, 8, 1)),  # (B, H, S, D)
            ((4 * 16 * 64, 64, 4 * 64, 1), (4 * 16 * 8, 8, 4 * 8, 1)),  # (B, S, H, D)
            ((4 * 64, 64, 2 * 4 * 64, 1), (4 * 8, 8, 2 * 4 * 8, 1)),  # (S, B, H, D)
        ],
    )
    def test_an_output_follows_the_memory_order_of_q(self, like, strides):
        assert ordered_strides((2, 4, 16, 8), like) == strides
