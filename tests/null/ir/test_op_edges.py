"""Every op of the table at its special values, against the interpreter, as the ``edge`` texts say."""

import numpy as np
import pytest

from flexsdpa.dtypes import DTYPES
from flexsdpa.ir.builder import Builder
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import GROUPS, OPS, RESULT_KIND
from flexsdpa.ir.text import parse
from null.helpers import assert_same_bits

INF, NAN = float("inf"), float("nan")
BIG, SMALL = 2**63 - 1, -(2**63)
T, F = True, False

EDGES = {
    "add(ff)": [(INF, -INF, NAN), (INF, 1.0, INF), (0.0, -0.0, 0.0), (-0.0, -0.0, -0.0), (NAN, 1.0, NAN)],
    "add(ii)": [(BIG, 1, SMALL), (SMALL, -1, BIG), (2, -5, -3)],
    "mul(ff)": [(0.0, INF, NAN), (-0.0, -INF, NAN), (-0.0, 1.0, -0.0), (-2.0, INF, -INF), (NAN, 0.0, NAN)],
    "mul(ii)": [(2**62, 4, 0), (BIG, 2, -2), (-3, 5, -15)],
    "minimum(ff)": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, -INF, -INF), (2.0, 3.0, 2.0)],
    "minimum(ii)": [(SMALL, BIG, SMALL), (3, -3, -3)],
    "maximum(ff)": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, -INF, INF), (2.0, 3.0, 3.0)],
    "maximum(ii)": [(SMALL, BIG, BIG), (3, -3, 3)],
    "sub(ff)": [(INF, INF, NAN), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (1.0, INF, -INF)],
    "sub(ii)": [(SMALL, 1, BIG), (BIG, -1, SMALL), (2, 5, -3)],
    "floordiv(ff)": [
        (-7.0, 2.0, -4.0), (7.0, -2.0, -4.0), (7.0, 2.0, 3.0), (1.0, 0.0, INF), (-1.0, 0.0, -INF), (1.0, -0.0, -INF),
        (0.0, 0.0, NAN), (INF, 2.0, NAN), (INF, INF, NAN), (NAN, 2.0, NAN), (-0.0, 2.0, -0.0), (-5.0, INF, -1.0), (5.0, INF, 0.0),
    ],
    "floordiv(ii)": [(-7, 2, -4), (7, -2, -4), (-7, -2, 3), (5, 0, 0), (-5, 0, 0), (0, 0, 0), (SMALL, 1, SMALL)],
    "mod(ff)": [
        (-7.0, 2.0, 1.0), (7.0, -2.0, -1.0), (5.5, 2.0, 1.5), (1.0, 0.0, NAN), (-1.0, -0.0, NAN), (0.0, 0.0, NAN),
        (INF, 2.0, NAN), (NAN, 2.0, NAN), (1.0, NAN, NAN),
    ],
    "mod(ii)": [(-7, 2, 1), (7, -2, -1), (-7, -2, -1), (5, 0, 0), (-5, 0, 0), (0, 0, 0), (SMALL, 7, SMALL % 7)],
    "div(ff)": [
        (1.0, 0.0, INF), (-1.0, 0.0, -INF), (1.0, -0.0, -INF), (0.0, 0.0, NAN), (INF, INF, NAN), (1.0, -INF, -0.0),
    ],
    "pow(ff)": [
        (0.0, 0.0, 1.0), (NAN, 0.0, 1.0), (INF, -0.0, 1.0), (1.0, NAN, 1.0), (-8.0, 0.5, NAN), (-2.0, 3.0, -8.0),
        (0.0, -1.0, INF), (2.0, -INF, 0.0),
    ],
    "neg(f)": [(0.0, -0.0), (-0.0, 0.0), (INF, -INF), (NAN, NAN)],
    "neg(i)": [(5, -5), (0, 0), (SMALL, SMALL)],
    "abs(f)": [(-INF, INF), (-0.0, 0.0), (NAN, NAN), (-2.5, 2.5)],
    "abs(i)": [(-5, 5), (0, 0), (SMALL, SMALL)],
    "sign(f)": [(-INF, -1.0), (INF, 1.0), (0.0, 0.0), (-0.0, 0.0), (NAN, 0.0), (-3.5, -1.0)],
    "sign(i)": [(-5, -1), (0, 0), (BIG, 1)],
    "floor(f)": [(-0.5, -1.0), (1.5, 1.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "ceil(f)": [(-0.5, -0.0), (1.5, 2.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "trunc(f)": [(-1.5, -1.0), (1.5, 1.0), (-0.5, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "round(f)": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-1.5, -2.0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "exp(f)": [(-INF, 0.0), (0.0, 1.0), (1e4, INF), (INF, INF), (NAN, NAN)],
    "exp2(f)": [(-INF, 0.0), (0.0, 1.0), (1e4, INF), (-1.0, 0.5), (NAN, NAN)],
    "expm1(f)": [(-INF, -1.0), (-0.0, -0.0), (1e4, INF), (NAN, NAN)],
    "log(f)": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "log2(f)": [(0.0, -INF), (-0.0, -INF), (8.0, 3.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "log1p(f)": [(-1.0, -INF), (-0.0, -0.0), (-1.5, NAN), (INF, INF), (NAN, NAN)],
    "sqrt(f)": [(4.0, 2.0), (-0.0, -0.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "rsqrt(f)": [(4.0, 0.5), (0.0, INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN)],
    "tanh(f)": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0), (NAN, NAN)],
    "sigmoid(f)": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5), (1e4, 1.0), (-1e4, 0.0), (NAN, NAN)],
    "erf(f)": [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (NAN, NAN)],
    "erfc(f)": [(INF, 0.0), (-INF, 2.0), (0.0, 1.0), (NAN, NAN)],
    "sin(f)": [(INF, NAN), (-INF, NAN), (-0.0, -0.0), (NAN, NAN)],
    "cos(f)": [(INF, NAN), (-INF, NAN), (0.0, 1.0), (NAN, NAN)],
    "and(bb)": [(T, T, T), (T, F, F), (F, T, F), (F, F, F)],
    "and(ii)": [(6, 3, 2), (-1, 5, 5), (SMALL, -1, SMALL)],
    "or(bb)": [(T, T, T), (T, F, T), (F, T, T), (F, F, F)],
    "or(ii)": [(6, 3, 7), (-8, 1, -7)],
    "xor(bb)": [(T, T, F), (T, F, T), (F, T, T), (F, F, F)],
    "xor(ii)": [(6, 3, 5), (-1, 5, -6)],
    "not(b)": [(T, F), (F, T)],
    "not(i)": [(0, -1), (BIG, SMALL), (-6, 5)],
    "shl(ii)": [(1, 3, 8), (1, 63, SMALL), (1, 64, 0), (1, -1, 0), (-3, 1, -6), (1, BIG, 0), (1, SMALL, 0)],
    "shr(ii)": [(-8, 1, -4), (8, 2, 2), (-8, 63, -1), (-8, 64, -1), (8, 64, 0), (-8, -1, -1), (8, SMALL, 0)],
    "eq(ff)": [(NAN, NAN, F), (0.0, -0.0, T), (INF, INF, T), (1.0, NAN, F)],
    "eq(ii)": [(SMALL, SMALL, T), (1, 2, F)],
    "eq(bb)": [(T, T, T), (F, F, T), (T, F, F)],
    "ne(ff)": [(NAN, NAN, T), (0.0, -0.0, F), (INF, INF, F), (1.0, NAN, T)],
    "ne(ii)": [(SMALL, SMALL, F), (1, 2, T)],
    "ne(bb)": [(T, T, F), (F, F, F), (T, F, T)],
    "lt(ff)": [(NAN, 1.0, F), (1.0, NAN, F), (-0.0, 0.0, F), (-INF, INF, T), (INF, INF, F)],
    "lt(ii)": [(SMALL, BIG, T), (3, 3, F)],
    "le(ff)": [(NAN, NAN, F), (0.0, -0.0, T), (INF, INF, T), (INF, 1.0, F)],
    "le(ii)": [(SMALL, BIG, T), (3, 3, T), (4, 3, F)],
    "where(bff)": [(T, 1.0, NAN, 1.0), (F, NAN, -0.0, -0.0), (T, NAN, 1.0, NAN), (F, INF, -INF, -INF)],
    "where(bii)": [(T, SMALL, 1, SMALL), (F, 1, BIG, BIG)],
    "where(bbb)": [(T, F, T, F), (F, F, T, T)],
    "to_f(i)": [(-3, -3.0), (0, 0.0), (SMALL, -(2.0**63)), (2**24 + 1, None)],
    "to_f(b)": [(T, 1.0), (F, 0.0)],
    "to_i(f)": [(1.9, 1), (-1.9, -1), (-0.5, 0), (-0.0, 0), (2.0**40, 2**40)],
    "to_i(b)": [(T, 1), (F, 0)],
    "to_b(f)": [(0.0, F), (-0.0, F), (NAN, T), (INF, T), (0.5, T)],
    "to_b(i)": [(0, F), (-1, T), (SMALL, T)],
    "round_f(f) f16": [(65520.0, INF), (-65504.0, -65504.0), (1 + 2.0**-11, 1.0), (1 + 3 * 2.0**-11, 1 + 2.0**-9), (1e-9, 0.0),
                       (-0.0, -0.0), (INF, INF), (NAN, NAN)],
    "round_f(f) bf16": [(1 + 2.0**-8, 1.0), (1 + 3 * 2.0**-8, 1 + 2.0**-6), (65520.0, 65536.0), (3.3961776e38, INF),
                        (-0.0, -0.0), (-INF, -INF), (NAN, NAN)],
    "round_f(f) f32": [(1 + 2.0**-24, 1.0), (0.5, 0.5), (INF, INF), (NAN, NAN)],
    "round_f(f) f64": [(0.5, 0.5), (-0.0, -0.0), (NAN, NAN)],
    "wrap_i(i) u8": [(-1, 255), (256, 0), (127, 127)],
    "wrap_i(i) i8": [(200, -56), (-129, 127), (-1, -1)],
    "wrap_i(i) i16": [(2**15, -(2**15)), (-1, -1)],
    "wrap_i(i) i32": [(2**31, -(2**31)), (SMALL, 0)],
    "wrap_i(i) i64": [(SMALL, SMALL), (BIG, BIG)],
}  # fmt: skip
"""Call -> rows of operands and result. None: what NumPy's rounding to the working precision gives."""

DTYPE_OF = {"f": "f64", "i": "i64", "b": "bool"}
NUMPY_OF = {"f": np.float64, "i": np.int64, "b": np.bool_}


def columns(call, rows):
    """The operands and the result of ``rows`` as arrays."""
    kinds = call.partition("(")[2].partition(")")[0]
    operands = [np.array([row[n] for row in rows], NUMPY_OF[kind]) for n, kind in enumerate(kinds)]
    return kinds, operands


def run(call, kinds, operands, work):
    """One op applied to columns: every operand is a captured tensor, read at q."""
    name, _, rest = call.partition("(")
    builder = Builder()
    for kind in kinds:
        builder.array(DTYPE_OF[kind], 1)
    at = builder.op("q")
    args = [builder.read(slot, kind, [at]) for slot, kind in enumerate(kinds)]
    n = builder.op(name, *args, attr=rest.partition(") ")[2])
    program = parse(builder.text([("value", n)]))
    return evaluate(program, {"q": np.arange(len(operands[0]))}, operands, work=work)["value"]


@pytest.mark.parametrize("work", [np.float64, np.float32])
@pytest.mark.parametrize("call", EDGES)
def test_an_op_does_at_its_edges_what_the_table_says(call, work):
    kinds, operands = columns(call, EDGES[call])
    actual = run(call, kinds, operands, work)
    given = RESULT_KIND[call.partition(" ")[0]]
    dtype = work if given == "f" else NUMPY_OF[given]
    with np.errstate(over="ignore"):
        expected = [dtype(row[0]) if row[-1] is None else dtype(row[-1]) for row in EDGES[call]]
    for row, got, want in zip(EDGES[call], actual, expected, strict=True):
        assert_same_bits(got, want, f"{call} of {row[:-1]}: {OPS[call.partition('(')[0]].edge}")


class TestTheTableIsComplete:
    def test_every_signature_of_every_op_has_edges(self):
        leaves = {op.name for op in GROUPS["leaves"]}
        assert {call.partition(" ")[0] for call in EDGES} == {c for c in RESULT_KIND if c.partition("(")[0] not in leaves}

    def test_every_dtype_that_a_cast_may_name_has_edges(self):
        casts = {call for call in EDGES if " " in call}
        wanted = {f"round_f(f) {d.name}" for d in DTYPES.values() if d.kind == "f"}
        assert casts == wanted | {f"wrap_i(i) {d.name}" for d in DTYPES.values() if d.kind == "i"}

    @pytest.mark.parametrize("name", OPS)
    def test_every_op_has_an_edge_text(self, name):
        assert OPS[name].edge.strip()

    def test_no_op_is_in_two_groups(self):
        assert len(OPS) == sum(len(group) for group in GROUPS.values())


class TestTextAndDefinitionAgree:
    def test_round_f_to_bf16_rounds_once_in_float64(self):
        just_above_a_tie = 1 + 2.0**-8 + 2.0**-40
        assert run("round_f(f) bf16", "f", [np.array([just_above_a_tie])], np.float64)[0] == 1 + 2.0**-7

    def test_float_mod_by_infinity_is_one_of_its_operands(self):
        x, y = np.array([5.0, -5.0, 5.0]), np.array([np.inf, np.inf, -np.inf])
        assert_same_bits(run("mod(ff)", "ff", [x, y], np.float64), np.array([5.0, np.inf, -np.inf]))

    @pytest.mark.parametrize("op", ["minimum", "maximum"])
    def test_extrema_commute_bit_for_bit(self, op):
        x, y = np.array([0.0, -0.0]), np.array([-0.0, 0.0])
        assert_same_bits(run(f"{op}(ff)", "ff", [x, y], np.float64), run(f"{op}(ff)", "ff", [y, x], np.float64))

    @pytest.mark.parametrize("call", [c for c in EDGES if OPS[c.partition("(")[0]].commutative])
    def test_ops_that_are_declared_commutative_commute_at_their_edges(self, call):
        kinds, operands = columns(call, EDGES[call])
        assert_same_bits(run(call, kinds, operands, np.float64), run(call, kinds, operands[::-1], np.float64))
