"""What the field's rows say of flexsdpa's own calls is what its cudnn backend's rules say of them."""

import random

import pytest

from flexsdpa.backends.cudnn.rules import RULES
from flexsdpa.eligibility import FieldCase
from flexsdpa.eligibility.field.decide import decide_case
from flexsdpa.oracle.programs import own_request
from flexsdpa.spec.families import CARDS

MASKS = (
    {}, {"mask": "causal"}, {"mask": "causal", "window": (128, 0)}, {"window": (128, 128)}, {"mask": "causal", "window": (1, 0)},
    {"mask": "causal_bottom_right", "diagonal": "bottom_right"},
)  # fmt: skip
CHOICES = {
    "cc": (*(f"sm_{card.number}" for card in CARDS), "sm_75", "sm_91", "sm_107", "sm_125", "sm_130"),
    "cudnn": (
        "9.7.0",
        "9.10.0",
        "9.10.2",
        "9.11.0",
        "9.13.0",
        "9.14.0",
        "9.18.1",
        "9.19.0",
        "9.20.0",
        "9.23.0",
        "9.23.2",
        "9.28.1",
    ),
    "dtype": ("bf16", "fp16", "fp32"),
    "d_qk": (64, 100, 128, 160, 192, 256, 264),
    "d_v": (64, 128, 192, 256),
    "s_q": (1, 7, 128, 1000, 2048),
    "s_kv": (1, 128, 1000, 2048),
    "h_kv": (1, 4, 16),
    "training": (True, False),
    "deterministic": (True, False),
}


@pytest.mark.parametrize("seed", range(4))
def test_the_two_agree(seed):
    chosen, compared = random.Random(seed), 0
    for _ in range(700):
        asked = {name: chosen.choice(values) for name, values in CHOICES.items()} | chosen.choice(MASKS)
        case = FieldCase.of(framework="flexsdpa", **asked)
        request = own_request(case, "backward" if case.training else "forward")
        if request is None and case.half:
            continue  # not one graph with native flags
        decision = decide_case(case)
        if request is None:
            assert not decision, asked
            continue
        compared += 1
        request_rules = [rule.id for rule in RULES if rule.check(request)]
        if request_rules == ["cudnn.integers"]:
            continue
        said = {row.id for row in decision.declines} - {"FLEXSDPA-CUDNN-QLEN"}
        assert bool(request_rules) == bool(said), (asked, request_rules, said)
    assert compared > 100
