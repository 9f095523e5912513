"""simplify on random programs: the meaning stays, the result is canonical, and masks end up in ``keep``."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.ops import OPS
from flexsdpa.ir.simplify import simplify
from flexsdpa.ir.verify import verify
from flexsdpa.testing.strategies import COMPUTED_OPS, FLOATS, cases, programs, rebuilt
from null.helpers import assert_same_bits, masked, sketch

NO_EXTREMA = [op for op in COMPUTED_OPS if op not in ("minimum", "maximum")] + ["minimum(ii)", "maximum(ii)"]
"""Float extrema do not commute bit for bit at 0.0 and -0.0 (see test_op_edges.py), so they have a test of their own."""

INF = float("inf")


class TestMeaning:
    @given(cases(programs(ops=NO_EXTREMA)), st.sampled_from([np.float64, np.float32]))
    def test_the_masked_score_keeps_every_bit(self, case, work):
        after = simplify(case.program)
        verify(after)
        assert_same_bits(
            masked(case.run(after, work=work)), masked(case.run(work=work)), f"{case.program.text}\n->\n{after.text}"
        )

    @given(cases(programs(ops=NO_EXTREMA, results=(("a", "f"), ("b", "i"), ("c", "b")))))
    def test_other_results_keep_every_bit(self, case):
        after = simplify(case.program)
        verify(after)
        expected, actual = case.run(), case.run(after)
        for name in "abc":
            assert_same_bits(actual[name], expected[name], f"{case.program.text}\n->\n{after.text}")

    @given(
        cases(
            programs(
                ops=["add(ff)", "minimum", "maximum", "where", "lt", "le", "eq", "abs"], floats=(0.0, 1.0, INF, float("nan"))
            ),
            floats=[x for x in FLOATS if str(x) != "-0.0"],
        )
    )
    def test_float_extrema_keep_every_bit_where_no_zero_is_negative(self, case):
        after = simplify(case.program)
        assert_same_bits(masked(case.run(after)), masked(case.run()), f"{case.program.text}\n->\n{after.text}")

    @pytest.mark.parametrize("op", ["minimum", "maximum"])
    def test_float_extrema_keep_every_bit_at_zeros(self, op):
        x, y = np.array([0.0, -0.0]), np.array([-0.0, 0.0])
        for write in (lambda e: getattr(e, op)(e.x, e.y), lambda e: getattr(e, op)(e.y, e.x)):
            before = sketch(score=write)
            operands = {"score": x, "b": np.arange(2), "q": 0, "kv": 0}, [y, y == 0, y == 0]
            assert_same_bits(evaluate(simplify(before), *operands)["score"], evaluate(before, *operands)["score"])


class TestTheResultIsCanonical:
    @given(programs())
    def test_simplify_is_idempotent(self, random_program):
        once = simplify(random_program)
        assert simplify(once).text == once.text

    @given(programs(), st.randoms(use_true_random=False))
    def test_commuted_operands_give_equal_text(self, random_program, random):
        def commute(op, operands):
            return operands[::-1] if OPS[op].commutative and random.random() < 0.5 else operands

        assert simplify(rebuilt(random_program, commute)).text == simplify(random_program).text

    @given(programs())
    def test_nothing_is_computed_in_vain(self, random_program):
        after = simplify(random_program)
        assert after.reachable([n for _, n in after.results]) == set(range(len(after.instrs)))

    @given(programs())
    def test_operands_stay_where_they_were(self, random_program):
        """Slots and scalars are the caller's: a plan is run with all of them, used or not."""
        after = simplify(random_program)
        assert (after.arrays, after.scalars) == (random_program.arrays, random_program.scalars)

    def test_results_come_in_one_order(self):
        one = sketch(keep=lambda e: e.p, extra=lambda e: e.i, score=lambda e: e.x)
        two = sketch(extra=lambda e: e.i, score=lambda e: e.x, keep=lambda e: e.p)
        assert simplify(one).text == simplify(two).text
        assert [name for name, _ in simplify(one).results] == ["score", "keep", "extra"]


class TestMasksInTheScore:
    def both(self, one, two):
        assert simplify(sketch(**one)).text == simplify(sketch(**two)).text

    def test_minus_infinity_where_a_condition_fails_is_a_mask(self):
        self.both(
            {"score": lambda e: e.where(e.le(e.j, e.i), e.x, e.f(-INF))},
            {"score": lambda e: e.x, "keep": lambda e: e.le(e.j, e.i)},
        )

    def test_minus_infinity_where_a_condition_holds_is_its_opposite(self):
        self.both(
            {"score": lambda e: e.where(e.lt(e.i, e.j), e.f(-INF), e.x)},
            {"score": lambda e: e.x, "keep": lambda e: e.le(e.j, e.i)},
        )

    def test_nested_masks_are_all_found(self):
        self.both(
            {"score": lambda e: e.where(e.p, e.where(e.r, e.f(-INF), e.neg(e.x)), e.f(-INF))},
            {"score": lambda e: e.neg(e.x), "keep": lambda e: e.and_(e.p, e.not_(e.r))},
        )

    def test_a_mask_in_the_score_joins_the_mask_beside_it(self):
        self.both(
            {"score": lambda e: e.where(e.p, e.x, e.f(-INF)), "keep": lambda e: e.r},
            {"score": lambda e: e.x, "keep": lambda e: e.and_(e.r, e.p)},
        )

    def test_plus_infinity_is_no_mask(self):
        after = simplify(sketch(score=lambda e: e.where(e.p, e.x, e.f(INF))))
        assert after.result("keep") is None

    def test_minus_infinity_below_the_root_stays(self):
        after = simplify(sketch(score=lambda e: e.add(e.x, e.where(e.p, e.f(0.0), e.f(-INF)))))
        assert after.result("keep") is None

    def test_a_mask_that_is_true_is_dropped(self):
        after = simplify(sketch(score=lambda e: e.x, keep=lambda e: e.or_(e.p, e.not_(e.not_(e.flag(True))))))
        assert after.result("keep") is None

    def test_a_mask_that_is_false_stays(self):
        after = simplify(sketch(score=lambda e: e.x, keep=lambda e: e.flag(False)))
        assert after.instrs[after.result("keep")].attr == "False"

    def test_a_program_with_a_true_mask_alone_stays_a_program(self):
        simplify(sketch(keep=lambda e: e.flag(True)))
