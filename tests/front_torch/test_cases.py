"""The small cases that ship with the package: what broke others."""

import pytest

import flexsdpa
from flexsdpa.testing import cases
from flexsdpa.torch import attention


@pytest.mark.parametrize("name", cases.CASES)
def test_case(name):
    cases.check(name, attention)


@pytest.mark.parametrize("name", cases.CASES)
def test_case_on_the_reference_with_small_tiles(name):
    with flexsdpa.options(tile_q=5, tile_kv=48, backend="reference"):
        cases.check(name, attention)


def test_a_case_finds_what_is_wrong():
    """An attention that ignores its mods fails every case that has one."""

    def plain(q, k, v, score_mod=None, mask_mod=None, q_offset=None, **options):
        return attention(q, k, v, **options)

    passed = []
    for name in cases.CASES:
        try:
            cases.check(name, plain)
            passed.append(name)
        except (AssertionError, RuntimeError):  # the latter: a gradient that is missing altogether
            pass
    assert passed == ["b19_normalised_q_and_k_under_autocast", "b31_no_keys_and_no_batch"]


def test_there_is_a_case_for_each_class_that_a_cpu_can_show():
    classes = sorted(int(name[1:3]) for name in cases.CASES)
    needs_a_card_or_no_numbers = {2, 4, 18, 23, 24}
    assert classes == [n for n in range(1, 34) if n not in needs_a_card_or_no_numbers]
