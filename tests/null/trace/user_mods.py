"""Mods with Python control flow, in a module whose asserts pytest leaves alone."""


def an_if(s, b, h, q, k):
    if s > 0:
        return s
    return 0.0


def a_while(s, b, h, q, k):
    while s > 0:
        s = s - 1
    return s


def an_assert(s, b, h, q, k):
    assert q >= 0
    return s


def in_another_function(s, b, h, q, k):
    return helper(helper(s))


def helper(x):
    def inner(y):
        return y if y > 0 else -y

    return inner(x) + 1


def or_statement(s, b, h, q, k):
    if q > k or s > 0:
        return s
    return 0.0


def not_statement(s, b, h, q, k):
    if not q > k:
        return s
    return 0.0
