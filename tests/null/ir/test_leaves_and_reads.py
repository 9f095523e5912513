"""Leaves, constants and reads of captured tensors, as the interpreter defines them."""

import numpy as np
import pytest

from flexsdpa.errors import ReadError
from flexsdpa.ir.builder import const_text
from flexsdpa.ir.evaluate import evaluate
from null.helpers import assert_same_bits, program

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.1, 5e-324]


class TestLeaves:
    @pytest.mark.parametrize("work", [np.float64, np.float32])
    def test_score_is_in_the_working_precision(self, work):
        result = evaluate(program("score", score=0), {"score": np.array([0.1])}, work=work)["score"]
        assert_same_bits(result, np.array([work(0.1)]))

    @pytest.mark.parametrize("name", ["b", "h", "q", "kv"])
    def test_indices_are_64_bit_integers(self, name):
        result = evaluate(program(name, value=0), {name: np.array([3], np.int32)})["value"]
        assert_same_bits(result, np.array([3], np.int64))

    @pytest.mark.parametrize("value", SPECIAL)
    def test_a_float_constant_keeps_its_exact_bits(self, value):
        result = evaluate(program(f"const_f {const_text(value)}", score=0), {})["score"]
        assert_same_bits(result, np.float64(value))

    @pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0, 2**53 + 1])
    def test_an_integer_constant_keeps_64_bits(self, value):
        assert_same_bits(evaluate(program(f"const_i {value}", value=0), {})["value"], np.int64(value))

    @pytest.mark.parametrize("value", [True, False])
    def test_a_bool_constant_is_a_bool(self, value):
        assert_same_bits(evaluate(program(f"const_b {value}", keep=0), {})["keep"], np.bool_(value))

    @pytest.mark.parametrize("work", [np.float64, np.float32])
    def test_a_scalar_is_rounded_to_the_working_precision(self, work):
        result = evaluate(program("scalar 1", scalars=2, score=0), {}, scalars=[5.0, 0.1], work=work)["score"]
        assert_same_bits(result, work(0.1))


class TestReads:
    TABLE = np.array([10, 11, 12])

    def read(self, table, index, dtype="i64", **options):
        return evaluate(program("q", "read 0 0", arrays=[f"{dtype} 1"], value=1), {"q": np.array(index)}, [table], **options)[
            "value"
        ]

    def test_a_negative_index_counts_from_the_end(self):
        assert self.read(self.TABLE, [0, 2, -1, -3]).tolist() == [10, 12, 12, 10]

    def test_an_index_out_of_range_is_clamped(self):
        assert self.read(self.TABLE, [3, 100, -4, -100, 2**62, -(2**63)]).tolist() == [12, 12, 10, 10, 12, 10]

    @pytest.mark.parametrize("index", [3, -4])
    def test_an_index_out_of_range_is_an_error_where_strict(self, index):
        with pytest.raises(ReadError, match=rf"^index {index} of a dimension of size 3$"):
            self.read(self.TABLE, [0, index], strict=True)

    def test_a_read_error_is_an_index_error(self):
        assert issubclass(ReadError, IndexError)

    def test_the_ends_are_in_range_where_strict(self):
        assert self.read(self.TABLE, [2, -3], strict=True).tolist() == [12, 10]

    def test_an_empty_tensor_reads_as_zero(self):
        assert self.read(np.zeros(0, np.int64), [0, 5]).tolist() == [0, 0]

    @pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
    def test_integers_are_promoted_to_64_bits(self, dtype):
        kind = np.dtype(dtype.replace("i", "int").replace("u", "uint")) if dtype not in ("u8", "i8") else np.dtype(dtype[0] + "1")
        assert_same_bits(self.read(np.array([100], kind), [0], dtype), np.array([100], np.int64))

    @pytest.mark.parametrize("work", [np.float64, np.float32])
    @pytest.mark.parametrize(("dtype", "numpy"), [("f16", np.float16), ("f32", np.float32), ("f64", np.float64)])
    def test_floats_are_promoted_to_the_working_precision(self, dtype, numpy, work):
        table = np.array([0.1, np.inf, np.nan, -0.0], numpy)
        assert_same_bits(self.read(table, [0, 1, 2, 3], dtype, work=work), table.astype(work))

    def test_bools_stay_bools(self):
        assert_same_bits(self.read(np.array([True, False]), [1, 0], "bool"), np.array([False, True]))

    def test_a_rank_0_tensor_is_read_without_indices(self):
        result = evaluate(program("read 0", arrays=["f32 0"], score=0), {}, [np.float32(2.5)])["score"]
        assert_same_bits(result, np.float64(2.5))

    def test_indices_of_a_rank_2_tensor_broadcast(self):
        table = np.arange(6).reshape(2, 3)
        rows = program("q", "kv", "read 0 0 1", arrays=["i64 2"], value=2)
        result = evaluate(rows, {"q": np.array([[0], [1]]), "kv": np.array([[2, 0, -1]])}, [table])["value"]
        assert result.tolist() == [[2, 0, 2], [5, 3, 5]]
