"""Python's own control flow on traced values: the error names the construct, the user's line and the rewrite."""

import inspect

import pytest

from flexsdpa.errors import FlexSDPAError, TraceError
from null.trace import user_mods
from null.trace.messages import error_of
from null.trace.user_mods import a_while, an_assert, an_if, helper, in_another_function, not_statement, or_statement

NEEDS = "needs to know the value of a traced expression, and there is none: the mod runs once, for all positions"

BRANCHES = {
    "if statement": (an_if, "`if`", "use where(cond, a, b)"),
    "if expression": (lambda s, b, h, q, k: s if q > k else 0.0, "`if`", "use where(cond, a, b)"),
    "and": (lambda s, b, h, q, k: s * (q >= k and k > 0), "`and`", "use `&` with parentheses: (a >= b) & (c == d)"),
    "or": (lambda s, b, h, q, k: s * (q >= k or k > 0), "`or`", "use `|` with parentheses: (a >= b) | (c == d)"),
    "not": (lambda s, b, h, q, k: s * (not q >= k), "`not`", "use `~`: ~(a >= b)"),
    "chained": (lambda s, b, h, q, k: s * (0 <= k < q), "a chained comparison", "write it as two: (a <= b) & (b < c)"),
    "while": (a_while, "`while`", "a mod is one expression per position: no loops over traced values"),
    "assert": (an_assert, "`assert`", "check sizes before the call; a mod cannot test positions"),
    "in": (lambda s, b, h, q, k: s * (q in (1, 2)), "`in`", "use == and `|`: (x == 1) | (x == 2)"),
    "not in": (lambda s, b, h, q, k: s * (q not in [1, 2]), "`in`", "use == and `|`: (x == 1) | (x == 2)"),
    "min": (lambda s, b, h, q, k: min(s, 1.0), "min()", "use minimum(a, b)"),
    "max": (lambda s, b, h, q, k: max(s, 1.0), "max()", "use maximum(a, b)"),
    "any": (lambda s, b, h, q, k: s * any([q > k, k > q]), "any()", "use `|`"),
    "all": (lambda s, b, h, q, k: s * all([q > k, k > q]), "all()", "use `&`"),
    "bool": (lambda s, b, h, q, k: s * bool(q), "bool()", "use `!= 0`, or .bool()"),
    "sorted": (
        lambda s, b, h, q, k: sorted([s, 1.0])[0],
        "a branch",
        "use `&`, `|`, `~`, where(cond, a, b), minimum and maximum",
    ),
    "filter": (
        lambda s, b, h, q, k: sum(x for x in [s] if x > 0),
        "a branch",
        "use `&`, `|`, `~`, where(cond, a, b), minimum and maximum",
    ),
    "and inside if": (
        lambda s, b, h, q, k: s if q > k and s > 0 else 0.0,
        "`and`",
        "use `&` with parentheses: (a >= b) & (c == d)",
    ),
    "if beside and": (lambda s, b, h, q, k: (1 and 2) * s if q > k else 0.0, "`if`", "use where(cond, a, b)"),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_the_error_names_the_construct_and_the_rewrite(name):
    mod, construct, instead = BRANCHES[name]
    headline, rows = error_of(mod)
    assert headline == f"{construct} {NEEDS}"
    assert rows["instead"] == instead


@pytest.mark.parametrize(
    ("mod", "line", "name", "code"),
    [
        (an_if, 1, "an_if", "if s > 0:"),
        (a_while, 1, "a_while", "while s > 0:"),
        (an_assert, 1, "an_assert", "assert q >= 0"),
    ],
)
def test_the_error_names_the_line(mod, line, name, code):
    _, rows = error_of(mod)
    assert rows["at"] == f"{user_mods.__file__}:{inspect.getsourcelines(mod)[1] + line}, in {name}:  {code}"


def test_a_branch_in_a_helper_names_the_helper():
    _, rows = error_of(in_another_function)
    assert rows["at"] == f"{user_mods.__file__}:{inspect.getsourcelines(helper)[1] + 2}, in inner:  return y if y > 0 else -y"


def test_a_lambda_names_its_line():
    mod = lambda s, b, h, q, k: s if s > 0 else -s
    _, rows = error_of(mod)
    assert (
        rows["at"] == f"{__file__}:{inspect.getsourcelines(mod)[1]}, in <lambda>:  mod = lambda s, b, h, q, k: s if s > 0 else -s"
    )


def test_code_without_a_file_still_gets_advice():
    scope = {}
    exec("mod = lambda s, b, h, q, k: s if s > 0 else -s", scope)
    headline, rows = error_of(scope["mod"])
    assert headline == f"a branch {NEEDS}"
    assert rows["at"] == "<string>:1, in <lambda>"
    assert rows["instead"] == "use `&`, `|`, `~`, where(cond, a, b), minimum and maximum"


def test_a_trace_error_is_a_type_error_and_one_of_ours():
    assert issubclass(TraceError, TypeError)
    assert issubclass(TraceError, FlexSDPAError)


@pytest.mark.parametrize(
    ("mod", "construct"),
    [
        (lambda s, b, h, q, k: s if (q > k or s > 0) else 0.0, "`or`"),
        (lambda s, b, h, q, k: s if not q > k else 0.0, "`not`"),
    ],
)
def test_the_innermost_construct_of_an_if_expression_is_named(mod, construct):
    assert error_of(mod)[0] == f"{construct} {NEEDS}"


@pytest.mark.parametrize(("mod", "construct"), [(or_statement, "`or`"), (not_statement, "`not`")])
def test_the_innermost_construct_of_an_if_statement_is_named(mod, construct):
    assert error_of(mod)[0] == f"{construct} {NEEDS}"
