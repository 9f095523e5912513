"""Every row of simplify.RULES: it fires on every op that it names, keeps the meaning bit for bit, and is needed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexsdpa.ir import simplify as module
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.ir.program import ArraySlot
from flexsdpa.ir.rewrite import Rewriter
from flexsdpa.ir.simplify import RULES, simplify
from flexsdpa.ir.verify import verify
from flexsdpa.testing.strategies import FLOATS, INTEGERS, cases, programs
from null.helpers import assert_same_bits, sketch

BY_NAME = {rule.name: rule for rule in RULES}

FIRES = {
    "fold": {
        "abs": [lambda e: e.abs(e.n(-5)), lambda e: e.abs(e.n(-(2**63)))],
        "add": [lambda e: e.add(e.n(2**63 - 1), e.n(1))],
        "and": [lambda e: e.and_(e.n(6), e.n(3)), lambda e: e.and_(e.flag(True), e.flag(False))],
        "eq": [lambda e: e.eq(e.n(3), e.n(3)), lambda e: e.eq(e.flag(True), e.flag(False))],
        "floordiv": [lambda e: e.floordiv(e.n(-7), e.n(2)), lambda e: e.floordiv(e.n(7), e.n(0))],
        "le": [lambda e: e.le(e.n(3), e.n(3))],
        "lt": [lambda e: e.lt(e.n(3), e.n(3))],
        "maximum": [lambda e: e.maximum(e.n(3), e.n(-4))],
        "minimum": [lambda e: e.minimum(e.n(3), e.n(-4))],
        "mod": [lambda e: e.mod(e.n(-7), e.n(4)), lambda e: e.mod(e.n(7), e.n(0))],
        "mul": [lambda e: e.mul(e.n(2**62), e.n(4))],
        "ne": [lambda e: e.ne(e.n(3), e.n(4)), lambda e: e.ne(e.flag(True), e.flag(False))],
        "neg": [lambda e: e.neg(e.n(5)), lambda e: e.neg(e.n(-(2**63)))],
        "not": [lambda e: e.not_(e.n(5)), lambda e: e.not_(e.flag(True))],
        "or": [lambda e: e.or_(e.n(6), e.n(3)), lambda e: e.or_(e.flag(True), e.flag(False))],
        "shl": [lambda e: e.shl(e.n(1), e.n(64)), lambda e: e.shl(e.n(1), e.n(63))],
        "shr": [lambda e: e.shr(e.n(-8), e.n(100)), lambda e: e.shr(e.n(-8), e.n(1))],
        "sign": [lambda e: e.sign(e.n(-5))],
        "sub": [lambda e: e.sub(e.n(-(2**63)), e.n(1))],
        "to_b": [lambda e: e.to_b(e.n(-1)), lambda e: e.to_b(e.n(0))],
        "to_i": [lambda e: e.to_i(e.flag(True))],
        "where": [lambda e: e.where(e.flag(False), e.n(1), e.n(2)), lambda e: e.where(e.flag(True), e.flag(False), e.flag(True))],
        "xor": [lambda e: e.xor(e.n(6), e.n(3)), lambda e: e.xor(e.flag(True), e.flag(True))],
    },
    "fold-to-float": {"to_f": [lambda e: e.to_f(e.n(2**53)), lambda e: e.to_f(e.n(2**24 + 1)), lambda e: e.to_f(e.flag(True))]},
    "identity": {
        "add": [lambda e: e.add(e.x, e.f(-0.0)), lambda e: e.add(e.f(-0.0), e.x), lambda e: e.add(e.i, e.n(0))],
        "sub": [lambda e: e.sub(e.x, e.f(0.0)), lambda e: e.sub(e.i, e.n(0))],
        "mul": [lambda e: e.mul(e.x, e.f(1.0)), lambda e: e.mul(e.f(1.0), e.x), lambda e: e.mul(e.n(1), e.i)],
        "div": [lambda e: e.div(e.x, e.f(1.0))],
        "floordiv": [lambda e: e.floordiv(e.i, e.n(1))],
        "pow": [lambda e: e.pow(e.x, e.f(1.0))],
        "or": [lambda e: e.or_(e.i, e.n(0)), lambda e: e.or_(e.n(0), e.i)],
        "xor": [lambda e: e.xor(e.i, e.n(0))],
        "and": [lambda e: e.and_(e.n(-1), e.i)],
        "shl": [lambda e: e.shl(e.i, e.n(0))],
        "shr": [lambda e: e.shr(e.i, e.n(0))],
    },
    "times-minus-one": {
        "mul": [lambda e: e.mul(e.x, e.f(-1.0)), lambda e: e.mul(e.f(-1.0), e.x)],
        "div": [lambda e: e.div(e.x, e.f(-1.0))],
    },
    "int-zero": {
        "mul": [lambda e: e.mul(e.i, e.n(0)), lambda e: e.mul(e.n(0), e.i)],
        "sub": [lambda e: e.sub(e.i, e.i)],
        "mod": [lambda e: e.mod(e.i, e.n(1))],
    },
    "int-sub-const": {"sub": [lambda e: e.sub(e.i, e.n(5)), lambda e: e.sub(e.i, e.n(2**63 - 1))]},
    "int-add-chain": {
        "add": [
            lambda e: e.add(e.add(e.i, e.n(5)), e.n(-2)),
            lambda e: e.add(e.n(3), e.add(e.n(4), e.j)),
            lambda e: e.add(e.n(-(2**63) + 1), e.add(e.n(2**63 - 1), e.j)),
        ]
    },
    "negated-operand": {
        "add": [lambda e: e.add(e.x, e.neg(e.y)), lambda e: e.add(e.neg(e.x), e.y), lambda e: e.add(e.i, e.neg(e.j))],
        "sub": [lambda e: e.sub(e.x, e.neg(e.y)), lambda e: e.sub(e.i, e.neg(e.j))],
    },
    "unary-twice": {
        "neg": [lambda e: e.neg(e.neg(e.x)), lambda e: e.neg(e.neg(e.i))],
        "not": [lambda e: e.not_(e.not_(e.p)), lambda e: e.not_(e.not_(e.i))],
        "abs": [lambda e: e.abs(e.abs(e.x)), lambda e: e.abs(e.neg(e.x)), lambda e: e.abs(e.neg(e.i))],
        "floor": [lambda e: e.floor(e.floor(e.x))],
        "ceil": [lambda e: e.ceil(e.ceil(e.x))],
        "trunc": [lambda e: e.trunc(e.trunc(e.x))],
        "round": [lambda e: e.round(e.round(e.x))],
        "sign": [lambda e: e.sign(e.sign(e.x)), lambda e: e.sign(e.sign(e.i))],
        "round_f": [
            lambda e: e.round_f(e.round_f(e.x, attr="f16"), attr="f16"),
            lambda e: e.round_f(e.round_f(e.x, attr="bf16"), attr="bf16"),
        ],
        "wrap_i": [
            lambda e: e.wrap_i(e.wrap_i(e.i, attr="i8"), attr="i8"),
            lambda e: e.wrap_i(e.wrap_i(e.i, attr="u8"), attr="u8"),
        ],
    },
    "not-compare": {
        "not": [
            lambda e: e.not_(e.eq(e.x, e.y)),
            lambda e: e.not_(e.ne(e.x, e.y)),
            lambda e: e.not_(e.eq(e.p, e.r)),
            lambda e: e.not_(e.lt(e.i, e.j)),
            lambda e: e.not_(e.le(e.i, e.j)),
        ]
    },
    "logic": {
        "and": [
            lambda e: e.and_(e.p, e.flag(True)), lambda e: e.and_(e.flag(False), e.p), lambda e: e.and_(e.p, e.p),
            lambda e: e.and_(e.i, e.i),
        ],
        "or": [
            lambda e: e.or_(e.p, e.flag(True)), lambda e: e.or_(e.flag(False), e.p), lambda e: e.or_(e.p, e.p),
            lambda e: e.or_(e.i, e.i),
        ],
        "xor": [lambda e: e.xor(e.p, e.flag(True)), lambda e: e.xor(e.flag(False), e.p), lambda e: e.xor(e.p, e.p)],
    },
    "compare-self": {
        "eq": [lambda e: e.eq(e.i, e.i), lambda e: e.eq(e.p, e.p)],
        "ne": [lambda e: e.ne(e.i, e.i), lambda e: e.ne(e.p, e.p)],
        "lt": [lambda e: e.lt(e.i, e.i), lambda e: e.lt(e.x, e.x)],
        "le": [lambda e: e.le(e.i, e.i)],
    },
    "compare-bool": {
        "eq": [lambda e: e.eq(e.p, e.flag(True)), lambda e: e.eq(e.flag(False), e.p)],
        "ne": [lambda e: e.ne(e.p, e.flag(True)), lambda e: e.ne(e.flag(False), e.p)],
    },
    "where": {
        "where": [
            lambda e: e.where(e.flag(True), e.x, e.y),
            lambda e: e.where(e.flag(False), e.x, e.y),
            lambda e: e.where(e.p, e.x, e.x),
            lambda e: e.where(e.not_(e.p), e.x, e.y),
            lambda e: e.where(e.p, e.flag(True), e.r),
            lambda e: e.where(e.p, e.r, e.flag(False)),
            lambda e: e.where(e.p, e.flag(False), e.r),
            lambda e: e.where(e.p, e.r, e.flag(True)),
        ]
    },
    "same-pair": {
        "minimum": [lambda e: e.minimum(e.x, e.x), lambda e: e.minimum(e.i, e.i)],
        "maximum": [lambda e: e.maximum(e.x, e.x), lambda e: e.maximum(e.i, e.i)],
    },
    "cast-back": {"to_b": [lambda e: e.to_b(e.to_i(e.p)), lambda e: e.to_b(e.to_f(e.p))]},
}  # fmt: skip
"""Rule -> op -> programs on which the rule fires at that op."""

EXAMPLES = [(rule, write) for rule, ops in FIRES.items() for writes in ops.values() for write in writes]


def alone(name):
    """The rules of a Rewriter that has one row of the table."""
    return {op: [BY_NAME[name].apply] for op in BY_NAME[name].ops}


def rewritten(program, rules):
    """One pass of ``rules``, and whether one of them fired."""
    fired = []

    def watched(rule):
        def apply(p, op, args, attr):
            found = rule(p, op, args, attr)
            fired.extend([] if found is None else [op])
            return found

        return apply

    p = Rewriter(program, {op: [watched(rule) for rule in rows] for op, rows in rules.items()})
    new = p.copy()
    return p.finish([(name, new[n]) for name, n in program.results]), fired


GRID = [np.array(column) for column in zip(*itertools.product(FLOATS, FLOATS, INTEGERS, INTEGERS, range(4)), strict=True)]


def results_on_the_grid(program, work):
    """The program at every combination of special values."""
    x, y, i, j, flags = GRID
    inputs = {"score": x, "q": i, "kv": j, "b": np.arange(len(x))}
    return evaluate(program, inputs, [y, flags % 2 == 0, flags > 1], work=work)


def test_every_rule_has_examples_for_every_op_that_it_names():
    assert {rule: set(ops) for rule, ops in FIRES.items()} == {rule.name: set(rule.ops) for rule in RULES}


@pytest.mark.parametrize(("rule", "write"), EXAMPLES)
def test_the_rule_fires_on_its_example(rule, write):
    assert rewritten(sketch(value=write), alone(rule))[1]


@pytest.mark.parametrize("work", [np.float64, np.float32])
@pytest.mark.parametrize(("rule", "write"), EXAMPLES)
def test_the_rule_keeps_every_bit_at_special_values(rule, write, work):
    before = sketch(value=write)
    after, _ = rewritten(before, alone(rule))
    verify(after)
    expected, actual = results_on_the_grid(before, work), results_on_the_grid(after, work)
    for name in expected:
        assert_same_bits(actual[name], expected[name], f"{before.text}\n->\n{after.text}")


@pytest.mark.parametrize("rule", FIRES)
def test_the_rule_is_not_dead(rule, monkeypatch):
    """Without the rule, simplify leaves at least one of its examples less simple: no other rule does the same work."""
    writes = [write for name, write in EXAMPLES if name == rule]
    with_rule = [simplify(sketch(value=write)).text for write in writes]
    others = {op: [r.apply for r in RULES if op in r.ops and r.name != rule] for op in module.BY_OP}
    monkeypatch.setattr(module, "BY_OP", others)
    assert [simplify(sketch(value=write)).text for write in writes] != with_rule


NEAR = ("neg", "not(b)", "to_i(b)", "to_f", "eq(ff)", "lt(ii)", "add(ii)")
"""Ops that random programs use besides those of the rule: what rules look for among operands."""


def random_programs_for(rule):
    """Programs with few leaves and the constants that rules know, so that the rule fires often.

    Float extrema are left out: they do not commute at 0.0 and -0.0 (see test_op_edges.py).
    """
    ops = [op if op not in ("minimum", "maximum") else f"{op}(ii)" for op in (*BY_NAME[rule].ops, *NEAR)]
    return programs(
        ops=ops, leaves=("score", "q", "kv"), slots=(ArraySlot("bool", 1),), scalars=0, steps=14,
        integers=(0, 1, -1, 5), floats=(0.0, 1.0, -1.0, -0.0),
    )  # fmt: skip


@pytest.mark.parametrize("rule", FIRES)
def test_the_rule_keeps_every_bit_on_random_programs(rule):
    @given(cases(random_programs_for(rule)), st.sampled_from([np.float64, np.float32]))
    def check(case, work):
        after, _ = rewritten(case.program, alone(rule))
        verify(after)
        expected, actual = case.run(work=work), case.run(after, work=work)
        for name in expected:
            assert_same_bits(actual[name], expected[name], f"{case.program.text}\n->\n{after.text}")

    check()


@pytest.mark.parametrize("rule", [rule.name for rule in RULES if rule.domain == "int"])
def test_a_rule_for_integers_leaves_floats_alone(rule):
    float_only = [op for op in BY_NAME[rule].ops if op in {"add", "sub", "mul", "floordiv", "mod", "neg", "abs", "sign"}] + [
        "neg"
    ]

    @given(programs(ops=float_only, leaves=["score"], slots=(), results=[("score", "f")], integers=()))
    def check(random_program):
        before = random_program
        assert not [n for n, instr in enumerate(before.instrs) if instr.args and instr.kind != "f"]
        assert not rewritten(before, alone(rule))[1]

    check()


@pytest.mark.parametrize(
    "write",
    [
        lambda e: e.add(e.x, e.f(0.0)),  # -0.0 + 0.0 is 0.0
        lambda e: e.sub(e.x, e.f(-0.0)),
        lambda e: e.mul(e.x, e.f(0.0)),  # inf * 0.0 is nan
        lambda e: e.sub(e.x, e.x),
        lambda e: e.div(e.x, e.x),
        lambda e: e.eq(e.x, e.x),
        lambda e: e.le(e.x, e.x),
        lambda e: e.not_(e.lt(e.x, e.y)),  # both are False where one is nan
        lambda e: e.pow(e.x, e.f(0.0)),
        lambda e: e.add(e.add(e.x, e.f(1.0)), e.f(-1.0)),
        lambda e: e.div(e.f(-1.0), e.x),
        lambda e: e.to_f(e.n(2**53 + 1)),
        lambda e: e.where(e.p, e.x, e.y),
        lambda e: e.round_f(e.round_f(e.x, attr="f16"), attr="bf16"),
        lambda e: e.wrap_i(e.wrap_i(e.i, attr="i16"), attr="i8"),
        lambda e: e.to_b(e.to_f(e.i)),
    ],
)
def test_what_floats_would_not_survive_stays(write):
    before = sketch(value=write)
    assert len(simplify(before).instrs) == len(rewritten(before, {})[0].instrs)
