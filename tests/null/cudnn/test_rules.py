"""cuDNN's limits, asked of described cards: no GPU, no cuDNN."""

from dataclasses import replace

import pytest

from flexsdpa import mods, ops
from flexsdpa.backends.catalogue import BACKENDS
from flexsdpa.backends.cudnn.rules import RULES
from flexsdpa.eligibility.decide import decide
from flexsdpa.spec.device import CPU, Device
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.spec.tensors import TensorSpec, contiguous_strides
from flexsdpa.testing.fake_devices import CARDS, H100, H100_SECOND
from null.helpers import traced

LIBRARIES = (("cudnn", "9.19.0"), ("cudnn-frontend", "1.32.0"))
CARD = replace(H100, libraries=LIBRARIES)
SHORT = {"float16": "f16", "float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "bool"}


def spec(dtype, *shape):
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def request(score_mod=None, mask_mod=None, arrays=(), **changes):
    found = traced(score_mod, mask_mod)
    asked = AttentionRequest(
        "forward", CARD, spec("bf16", 2, 8, 256, 64), spec("bf16", 2, 2, 256, 64), spec("bf16", 2, 2, 256, 64), found.text,
        tuple(arrays), len(found.scalars),
    )  # fmt: skip
    return replace(asked, **changes)


def refusals(asked):
    return {r.rule.removeprefix("cudnn."): r.got for rule in RULES if (r := rule.check(asked))}


def with_version(cudnn="9.19.0", frontend="1.32.0", torchs=""):
    libraries = [("cudnn", cudnn), ("cudnn-frontend", frontend)] + ([("cudnn of torch", torchs)] if torchs else [])
    return replace(CARD, libraries=tuple(libraries))


def lengths(q_len, kv_len=256, head_dim=64):
    return {
        "q": spec("bf16", 2, 8, q_len, head_dim),
        "k": spec("bf16", 2, 2, kv_len, head_dim),
        "v": spec("bf16", 2, 2, kv_len, head_dim),
    }


table = ops.read


class Table:
    """A captured tensor by shape alone."""

    def __init__(self, dtype, *shape):
        self.dtype, self.shape, self.ndim = dtype, shape, len(shape)


COLUMN, SQUARE, IDS = Table("float32", 256), Table("float32", 8, 511), Table("int64", 256)
CASES = {
    "plain": (request(), {}),
    "causal": (request(None, mods.causal), {}),
    "soft-cap": (request(mods.softcap(30.0), mods.causal), {}),
    "backward": (request(mods.softcap(30.0), direction="backward", needs=(True,) * 3), {}),
    "cpu": (request(device=CPU), {"device": "cpu"}),
    "an old card": (request(device=replace(CARD, capability=(7, 5))), {"family": "cuda:0 sm_75"}),
    "a card of no known family": (request(device=replace(CARD, capability=(13, 0))), {"family": "cuda:0 sm_130"}),
    "no frontend": (request(device=replace(H100, libraries=())), {"frontend": "not installed"}),
    "an old frontend": (request(device=with_version(frontend="1.14.1")), {"frontend": "1.14.1"}),
    "a bad cuDNN": (
        request(device=with_version("9.10.1")),
        {"version": "9.10.1", "known-bad": "9.10.1, which gets wrong: fp16 and bf16 attention, forward and backward "
         "(TransformerEngine, fused_attn.cpp; cudnn-frontend, sdpa_support_surface.h)"}),
    "the next one": (request(device=with_version("9.10.2")), {}),
    "two cuDNNs": (request(device=with_version(torchs="9.10.2")), {"two-copies": "9.19.0 beside torch's 9.10.2"}),
    "fp32": (request(q=spec("f32", 2, 8, 256, 64)), {"dtype": "f32"}),
    "head dim": (request(**lengths(256, head_dim=68)),
                 {"head-dims": "68 and 68"}),
    "large head dim": (request(**lengths(256, head_dim=264)), {"head-dims": "264 and 264"}),
    "no queries": (request(**lengths(0)), {"empty": "a dimension of size 0", "decoding": "q_len 0"}),
    "strided": (
        request(q=TensorSpec("bf16", (2, 8, 256, 64), (131072, 16384, 1, 256))),
        {"strides": "q with strides (131072, 16384, 1, 256)"}),
    "decoding": (request(**lengths(1)), {"decoding": "q_len 1"}),
    "decoding on request": (request(**lengths(1), backend="cudnn"), {}),
    "a gradient of the LSE": (request(direction="backward", needs=(True,) * 3, lse_gradient=True), {"lse-gradient": "with it"}),
    "a learned bias": (
        request(lambda s, b, h, i, j: s + table(COLUMN, j), arrays=[spec("f32", 256)], direction="backward", needs=(True,) * 4),
        {"captured-gradient": "of captured tensor 0"}),
    "an op without a row": (request(lambda s, b, h, i, j: s.erfc()), {"ops": "erfc of floats"}),
    "bits": (
        request(None, lambda b, h, i, j: ((i ^ j) & 3) == 0),
        {"ops": "and of integers, xor of integers", "integers": "xor beyond 32 bits"}),
    "a table by distance": (
        request(lambda s, b, h, i, j: s + table(SQUARE, h, i - j + 255), arrays=[spec("f32", 8, 511)]),
        {"reads": "captured tensor 0 read at computed positions"}),
    "a short table": (
        request(lambda s, b, h, i, j: s + table(COLUMN, j), arrays=[spec("f32", 100)]),
        {"reads": "captured tensor 0 of shape (100,), shorter than kv"}),
    "a constant index": (request(lambda s, b, h, i, j: s + table(SQUARE, 3, j), arrays=[spec("f32", 8, 511)]), {}),
    "a constant index beyond the end": (
        request(lambda s, b, h, i, j: s + table(SQUARE, 9, j), arrays=[spec("f32", 8, 511)]),
        {"reads": "captured tensor 0 of shape (8, 511) read at 9"}),
    "documents": (request(None, lambda b, h, i, j: table(IDS, i) == table(IDS, j), arrays=[spec("i64", 256)]), {}),
    "documents plus one": (
        request(None, lambda b, h, i, j: table(IDS, i) + 1 == table(IDS, j), arrays=[spec("i64", 256)]),
        {"integers": "add beyond 32 bits"}),
    "large integers": (request(None, lambda b, h, i, j: i * 2**40 < j), {"integers": "const_i beyond 32 bits"}),
    "a divisor that varies": (
        request(lambda s, b, h, i, j: s + i // (h + 1)),
        {"integers": "floordiv of integers that may be large, or by a divisor that is not a positive constant"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_refuses_what_it_names_and_nothing_else(name):
    asked, expected = CASES[name]
    assert refusals(asked) == expected


def test_every_rule_refuses_something_here():
    seen = {rule for asked, _ in (*CASES.values(), *FAMILIES.values()) for rule in refusals(asked)}
    assert seen | {"rank"} == {rule.id.removeprefix("cudnn.") for rule in RULES}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"{card.name} {card.index}")
def test_every_card_of_a_known_family_is_served(card):
    assert refusals(request(mods.softcap(30.0), device=replace(card, libraries=LIBRARIES))) == {}


def test_the_next_card_of_a_family_is_served_before_anybody_has_seen_it():
    for capability in ((8, 7), (9, 1), (10, 7), (11, 1), (12, 3)):
        assert refusals(request(device=replace(CARD, capability=capability))) == {}


WINDOW = lambda b, h, i, j: i - j < 40
LONG = lengths(2048, 2048)
BAD = {
    "a window in 9.14.0": (request(None, WINDOW, device=with_version("9.14.0"), **LONG), True),
    "repaired in 9.14.1": (request(None, WINDOW, device=with_version("9.14.1"), **LONG), False),
    "a causal window": (request(None, mods.sliding_window(40), device=with_version("9.14.0"), **LONG), False),
    "few keys": (request(None, WINDOW, device=with_version("9.14.0")), False),
    "under a mod it is no native flag": (request(mods.softcap(2.0), WINDOW, device=with_version("9.14.0"), **LONG), False),
}


def with_dims(d, dv, direction="backward", **changes):
    return request(
        q=spec("bf16", 2, 8, 256, d), k=spec("bf16", 2, 2, 256, d), v=spec("bf16", 2, 2, 256, dv), direction=direction,
        needs=(True,) * 3, **changes,
    )  # fmt: skip


BAD |= {
    "unequal dims on Hopper": (with_dims(256, 128), True),
    "their forward": (with_dims(256, 128, "forward"), False),
    "192 and 128": (with_dims(192, 128), False),
    "one of them small": (with_dims(256, 64), False),
    "on Blackwell": (with_dims(256, 128, device=replace(CARD, capability=(10, 0))), False),
}


def on(*capability, cudnn="9.19.0"):
    return replace(with_version(cudnn), capability=capability)


BACKWARD = {"direction": "backward", "needs": (True,) * 3}
ROWS = Table("float32", 256)


def floats_by(index, device):
    def added(s, b, h, i, j):
        return s + table(ROWS, i if index == "q" else j)

    return request(added, arrays=[spec("f32", 256)], device=device, **BACKWARD)


def deterministic(device):
    return request(mods.softcap(2.0), device=device, deterministic=True, **BACKWARD)


FAMILIES = {
    "softcap on Ampere": (request(mods.softcap(2.0), device=on(8, 0), **BACKWARD), ""),
    "softcap on Ada": (request(mods.softcap(2.0), device=on(8, 9, cudnn="9.28.1"), **BACKWARD), ""),
    "softcap on Blackwell": (request(mods.softcap(2.0), device=on(10, 3), **BACKWARD), ""),
    "softcap on Thor": (request(mods.softcap(2.0), device=on(11, 0), **BACKWARD), ""),
    "softcap on GB10": (request(mods.softcap(2.0), device=on(12, 1), **BACKWARD), ""),
    "floats by query on GB10": (floats_by("q", on(12, 1, cudnn="9.28.1")), "backward-rows"),
    "floats by query on GB10 before 9.24": (floats_by("q", on(12, 1, cudnn="9.23.2")), ""),
    "floats by query on Blackwell": (floats_by("q", on(10, 0, cudnn="9.28.1")), ""),
    "floats by key on GB10": (floats_by("kv", on(12, 1, cudnn="9.28.1")), ""),
    "its forward": (request(mods.softcap(2.0), device=on(12, 1)), ""),
    "causal on GB10": (request(None, mods.causal, device=on(12, 1), **BACKWARD), ""),
    "documents on Ampere": (
        request(None, lambda b, h, i, j: table(IDS, i) == table(IDS, j), arrays=[spec("i64", 256)],
                device=on(8, 0, cudnn="9.28.1"), **BACKWARD), ""),
    "256 on Hopper": (with_dims(256, 256, device=on(9, 0)), ""),
    "256 on B200 before 9.23": (with_dims(256, 256, device=on(10, 0)), "backward-head-dims"),
    "256 on B200": (with_dims(256, 256, device=on(10, 0, cudnn="9.23.2")), ""),
    "192 on B200": (with_dims(192, 192, device=on(10, 0, cudnn="9.28.1")), "backward-head-dims"),
    "256 on Thor": (with_dims(256, 256, device=on(11, 0, cudnn="9.28.1")), "backward-head-dims"),
    "192 and 128 on B300": (with_dims(192, 128, device=on(10, 3)), ""),
    "192 and 128 on Ampere": (with_dims(192, 128, device=on(8, 0)), "backward-head-dims"),
    "192 and 128 on B200 before 9.11": (with_dims(192, 128, device=on(10, 0, cudnn="9.10.2")), "backward-head-dims"),
    "256 and 128 forward on B200 with 9.23": (
        with_dims(256, 128, "forward", device=on(10, 0, cudnn="9.23.2")), "forward-head-dims"),
    "256 and 128 forward on B200 with 9.28": (with_dims(256, 128, "forward", device=on(10, 0, cudnn="9.28.1")), ""),
    "256 and 128 forward on Hopper with 9.23": (with_dims(256, 128, "forward", device=on(9, 0, cudnn="9.23.2")), ""),
    "192 and 128 forward on B200 with 9.23": (with_dims(192, 128, "forward", device=on(10, 0, cudnn="9.23.2")), ""),
    "deterministic softcap on B200 with 9.19": (deterministic(on(10, 0)), "deterministic"),
    "deterministic softcap on B200 with 9.23": (deterministic(on(10, 0, cudnn="9.23.2")), ""),
    "deterministic softcap on Hopper with 9.19": (deterministic(on(9, 0)), ""),
    "deterministic causal on B200 with 9.19": (request(None, mods.causal, device=on(10, 0), deterministic=True, **BACKWARD), ""),
    "one by one": (request(**lengths(1, 1), backend="cudnn", **BACKWARD), "one-by-one"),
    "one by one, forward": (request(**lengths(1, 1), backend="cudnn"), ""),
    "one by two": (request(**lengths(1, 2), backend="cudnn", **BACKWARD), ""),
    "256 forward on Ampere": (with_dims(256, 256, "forward", device=on(8, 0)), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_differ_where_cudnn_itself_says_so(name):
    asked, rule = FAMILIES[name]
    assert set(refusals(asked)) == ({rule} if rule else set())


@pytest.mark.parametrize("name", BAD)
def test_releases_known_to_be_bad_do_not_serve_what_they_get_wrong(name):
    asked, bad = BAD[name]
    assert ("known-bad" in refusals(asked)) == bad


def test_auto_prefers_cudnn_on_a_card_and_never_elsewhere():
    assert decide(request(mods.softcap(2.0)), BACKENDS).backend == "cudnn"
    assert decide(request(device=replace(H100_SECOND, libraries=())), BACKENDS).backend == "reference"
    assert decide(request(device=CPU), BACKENDS).backend == "reference"


def test_a_described_card_is_taken_to_have_the_libraries_that_the_rules_were_checked_with():
    assert refusals(request(device=Device.parse("sm_120"))) == {}
