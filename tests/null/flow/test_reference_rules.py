"""The backends that ship, asked without a framework: which rule refuses what."""

import pytest

from flexsdpa import mods
from flexsdpa.backends.catalogue import BACKENDS
from flexsdpa.backends.reference.rules import MAX_INSTRUCTIONS
from flexsdpa.backends.reference.rules import RULES as REFERENCE
from flexsdpa.backends.sdpa.rules import RULES as SDPA
from flexsdpa.eligibility.decide import decide
from flexsdpa.spec.device import Device
from flexsdpa.spec.tensors import TensorSpec
from flexsdpa.testing.fake_devices import CARDS
from null.helpers import traced
from null.toy_backend import PLAIN, request


def refusing(rules, asked):
    """The ids of the rules that refuse a request, and what they got."""
    return {refusal.rule: refusal.got for rule in rules if (refusal := rule.check(asked))}


def tensors(q=(2, 4, 16, 64), k=(2, 2, 16, 64), v=(2, 2, 16, 64), dtype="f32"):
    return {"q": TensorSpec(dtype, q), "k": TensorSpec(dtype, k), "v": TensorSpec(dtype, v)}


def program(score=None, mask=None):
    return {"program": traced(score, mask).text}


class TestReference:
    @pytest.mark.parametrize("device", [Device("cpu"), *CARDS])
    def test_it_serves_the_cpu_and_every_card(self, device):
        assert not refusing(REFERENCE, request(device=device))

    def test_it_serves_no_other_device(self):
        assert refusing(REFERENCE, request(device=Device("mps"))) == {"reference.device": "mps"}

    def test_it_has_a_largest_program(self):
        lines = "\n".join(f"neg {n}" for n in range(MAX_INSTRUCTIONS))
        asked = request(program=f"flexsdpa-ir 1\nscalars 0\nscore\n{lines}\nreturn score {MAX_INSTRUCTIONS}")
        assert list(refusing(REFERENCE, asked)) == ["reference.program-size"]


REFUSED = [
    ("sdpa.device", "cuda", {**tensors(), "device": CARDS[0]}),
    ("sdpa.half", "f16", tensors(dtype="f16")),
    ("sdpa.half", "bf16", tensors(dtype="bf16")),
    ("sdpa.score-mod", "a score_mod", {**tensors(), **program(lambda s, b, h, q, k: s * 2)}),
    ("sdpa.mask", "window: -7 <= kv_idx - q_idx <= 0", {**tensors(), **program(None, mods.sliding_window(8))}),
    ("sdpa.mask", "causal, offset 3", {**tensors(), **program(None, mods.causal(offset=3))}),
    ("sdpa.causal-lengths", "q_len 16, kv_len 24", {
        **tensors(k=(2, 2, 24, 64), v=(2, 2, 24, 64)), **program(None, mods.causal)}),
    ("sdpa.empty", "a dimension of size 0", tensors((0, 4, 16, 64), (0, 2, 16, 64), (0, 2, 16, 64))),
    ("sdpa.head-dims", "64 and 32", tensors(v=(2, 2, 16, 32))),
    ("sdpa.last-stride", "k strided", {**tensors(), "k": TensorSpec("f32", (2, 2, 16, 64), (2048, 1024, 1, 16))}),
    ("sdpa.lse-gradient", "with it", {**tensors(), "lse_gradient": True}),
]  # fmt: skip
"""Rule of the sdpa backend, what it got, and the change to a request that it serves."""


class TestSdpa:
    @pytest.mark.parametrize("mask", [None, mods.causal, lambda b, h, q, k: q - k >= 0])
    def test_it_serves_plain_and_causal_attention(self, mask):
        assert not refusing(SDPA, request(**tensors(), **program(None, mask)))

    @pytest.mark.parametrize(("rule", "got", "changes"), REFUSED)
    def test_it_refuses_exactly(self, rule, got, changes):
        assert refusing(SDPA, request(**changes)) == {rule: got}

    def test_every_rule_is_tested(self):
        assert {rule for rule, _, _ in REFUSED} == {rule.id for rule in SDPA}

    def test_different_lengths_without_a_mask_are_fine(self):
        assert not refusing(SDPA, request(**tensors(k=(2, 2, 24, 64), v=(2, 2, 24, 64))))


class TestTheCatalogue:
    def test_the_last_backend_serves_everything(self):
        assert BACKENDS[-1].universal
        assert not any(backend.universal for backend in BACKENDS[:-1])

    def test_names_are_unique_and_words(self):
        names = [backend.name for backend in BACKENDS]
        assert len(set(names)) == len(names)
        assert all(name.isidentifier() and name != "auto" for name in names)

    def test_every_rule_names_its_backend_its_need_and_its_source(self):
        for backend in BACKENDS:
            for rule in backend.rules:
                assert rule.id.startswith(f"{backend.name}.")
                assert rule.field
                assert rule.need
                assert rule.source

    def test_rule_ids_are_unique(self):
        ids = [rule.id for backend in BACKENDS for rule in backend.rules]
        assert len(set(ids)) == len(ids)

    def test_the_cpu_prefers_the_fused_kernel(self):
        assert decide(request(**tensors()), BACKENDS).backend == "sdpa"
        assert decide(request(**tensors(dtype="bf16")), BACKENDS).backend == "reference"

    def test_a_card_gets_the_reference_as_a_fallback(self):
        decision = decide(request(**tensors(), device=CARDS[0]), BACKENDS)
        assert (decision.backend, decision.fallback) == ("reference", True)

    def test_plain_attention_of_unequal_head_dims_is_served(self):
        assert decide(PLAIN, BACKENDS).backend == "reference"
