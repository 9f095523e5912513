"""FlashAttention, the interval kernels, FlexAttention, and what flexsdpa does not run: each row on both of its sides."""

import pytest

from flexsdpa.eligibility import check, check_all
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import BACKENDS
from flexsdpa.eligibility.field.ours import NOT_YET
from flexsdpa.eligibility.field.row import SOURCES
from flexsdpa.eligibility.preference import BOTH, CPU, EVERY, FIELD, RUN, order_of
from flexsdpa.errors import RequestError

HOME = {"fa2": "8.0", "fa3": "9.0", "fa4": "10.0", "interval": "9.0", "flex": "8.0", "reference": "9.0"}
"""A card on which the backend is at home."""
CAUSAL = {"mask": "causal", "window": (-1, 0)}
BROKEN = {
    "fa2": {
        "FA-COMMON-01a": {"bias": "post_scale_bias", "bias_shape": "1hss"},
        "FA-COMMON-01b": {"softmax": "learnable"},
        "FA-COMMON-01c": {"max_logit": True},
        "FA-COMMON-01d": {"mask": "arbitrary"},
        "FA-COMMON-02": {**CAUSAL, "s_q": 1024, "s_kv": 2048},
        "FA-COMMON-03": {"cc": "12.1", "kv_cache": "nonpaged", "mask": "padding"},
        "FA-COMMON-04": {"cp": "p2p", "cp_size": 2, "layout": "sbhd_sbhd_sbhd"},
        "FA-COMMON-05": {"kv_cache": "nonpaged", "mask": "padding", "layout": "thd_bshd_bshd", "pad_between_seqs": True},
        "FA-COMMON-06": {"cp": "p2p", "cp_size": 2, "mask": "causal", "window": (128, 0)},
        "FA-COMMON-06b": {"cp": "a2a", "cp_size": 2, "d_v": 64},
        "FA-DTYPE-01": {"dtype": "fp32"},
        "FA2-ARCH-01": {"cc": "7.5"},
        "FA2-VER-01": {"cc": "10.0", "flash": "2.6.3"},
        "FA2-DTYPE-01": {"dtype": "fp8_delayed"},
        "FA2-SCOREMOD-01": {"score_mod": "yes"},
        "FA2-HEADDIM-01": {"d_qk": 264},
        "FA2-HEADDIM-02": {"cc": "12.1", "d_qk": 256},
        "FA2-WIN-01": {"window": (128, 128), "s_q": 1024, "s_kv": 2048},
        "FA2-ALIBI-01": {**CAUSAL, "bias": "alibi", "flash": "2.3.6"},
        "FA2-DET-01": {"deterministic": True, "flash": "2.4.0"},
        "FA2-KV-01": {"kv_cache": "paged", "paged": 64, "layout": "paged_kv_bshd_bshd_bshd", "mask": "padding"},
        "FA2-THD-01": {"layout": "thd_thd_thd", "mask": "padding", "pad_between_seqs": True},
        "FA2-SPLIT-01": {"num_splits": 4},
    },
    "fa3": {
        "FA3-ARCH-01": {"cc": "12.0"},
        "FA3-DTYPE-01": {"dtype": "fp8_delayed", "training": True},
        "FA3-SCOREMOD-01": {"score_mod": "yes"},
        "FA3-HEADDIM-01": {"d_qk": 264},
        "FA3-HEADDIM-02": {"d_qk": 128, "d_v": 64},
        "FA3-DROPOUT-01": {"dropout": 0.1},
        "FA3-DET-01": {"deterministic": True, "training": True, "d_qk": 256},
        "FA3-KV-01": {"dtype": "fp8_current", "kv_cache": "nonpaged", "mask": "padding"},
    },
    "fa4": {
        "FA4-ARCH-01": {"cc": "8.9"},
        "FA4-SCOREMOD-02": {"score_mod": "yes"},
        "FA4-DTYPE-01": {"dtype": "mxfp8"},
        "FA4-HEADDIM-01": {"cc": "9.0", "d_qk": 100},
        "FA4-HEADDIM-02": {"d_qk": 160},
        "FA4-HEADDIM-03": {"cc": "12.0", "d_qk": 256},
        "FA4-HEADDIM-04": {"d_qk": 256, "window": (128, 128)},
        "FA4-HEADDIM-05": {"d_qk": 128, "d_v": 96, "training": True},
        "FA4-DROPOUT-01": {"dropout": 0.1},
        "FA4-SPLIT-01": {"cc": "12.0", "num_splits": 2},
        "FA4-SM12X-02": {"cc": "12.1", "training": True, "deterministic": True},
        "FA4-SCOREMOD-01": {"score_mod": "bprop-only"},
    },
    "interval": {
        "CUDNN-FLEX-01": {"cc": "12.0"},
        "CUDNN-FLEX-02": {"dtype": "fp8_delayed"},
        "CUDNN-FLEX-03": {"d_qk": 160},
        "CUDNN-FLEX-08": {"score_mod": "yes"},
        "CUDNN-FLEX-09": {"softmax": "learnable"},
    },
    "flex": {
        "FLEX-ARCH-01": {"cc": "7.0"},
        "FLEX-DTYPE-01": {"dtype": "fp8_current"},
        "FLEX-DROPOUT-01": {"dropout": 0.1, "training": True},
        "FLEX-SINK-01": {"softmax": "off-by-one"},
        "FLEX-LAYOUT-01": {"layout": "thd_thd_thd", "mask": "padding"},
        "FLEX-KV-01": {"kv_cache": "nonpaged", "mask": "padding"},
        "FLEX-CP-01": {"cp": "a2a", "cp_size": 2},
        "FLEX-DET-01": {
            "deterministic": True,
            "training": True,
            "bias": "post_scale_bias",
            "bias_shape": "1hss",
            "bias_grad": True,
        },
    },
    "reference": {
        "FLEXSDPA-FP8": {"dtype": "fp8_delayed"},
        "FLEXSDPA-DROPOUT": {"dropout": 0.1, "training": True},
        "FLEXSDPA-CACHE": {"kv_cache": "paged", "paged": 64, "layout": "paged_kv_bshd_bshd_bshd", "mask": "padding"},
        "FLEXSDPA-CP": {"cp": "p2p", "cp_size": 2},
        "FLEXSDPA-MAX": {"max_logit": True},
        "FLEXSDPA-SPLIT": {"num_splits": 2},
        "FLEXSDPA-GAPS": {"layout": "thd_thd_thd", "mask": "padding", "pad_between_seqs": True},
        "FLEXSDPA-LAYOUT": {"layout": "bs3hd"},
    },
}


def ids(backend, **changes):
    decision = check(backend, **{"cc": HOME[backend], **changes})
    return {row.id for row in (*decision.declines, *decision.opens)}


@pytest.mark.parametrize(("backend", "row"), [(backend, row) for backend, rows in BROKEN.items() for row in rows])
def test_a_row_applies(backend, row):
    assert row in ids(backend, **BROKEN[backend][row])


@pytest.mark.parametrize("backend", BROKEN)
def test_no_row_applies_to_a_plain_call(backend):
    assert ids(backend) == set()


IN_JAX = {"FA-JAX-01", "CUDNN-FLEX-JAX", "FLEX-JAX-01"}
NEVER_MET = {"CUDNN-FLEX-04"}
"""Heads that do not divide are nonsense before any row is asked, except in a file of cases."""


def test_every_row_is_met():
    rows = {row.id for backend in BROKEN for row in BACKENDS[backend]}
    assert {row for name in HOME for row in ids(name, framework="jax") if "JAX" in row} == IN_JAX
    assert rows == IN_JAX | {row for found in BROKEN.values() for row in found} | NEVER_MET


def test_rows_name_the_arguments_that_they_look_at():
    for rows in BACKENDS.values():
        for row in rows:
            assert row.fields, row.id
    fields = {row.id: row.fields for row in BACKENDS["cudnn"]}
    assert fields["CUDNN-12X-01"] == ("cc", "cudnn", "dtype")
    assert fields["CUDNN-THD-03"] == ("cudnn", "dtype", "layout", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v")


def test_a_refusal_is_a_record():
    refusal = check("fa4", cc="9.0", d_qk=100).refusals[0]
    assert (refusal.rule, refusal.field, refusal.got) == ("FA4-HEADDIM-01", "cc, d_qk, d_v", "cc 9.0, d_qk 100, d_v 100")
    assert (refusal.reason, refusal.source, refusal.kind) == ("head dims of 8 to 256 in 8s", "FA4", "limit")
    assert str(refusal) == "head dims of 8 to 256 in 8s (cc 9.0, d_qk 100, d_v 100)"
    window = check(cc="9.0", window=(128, 0), mask="causal", s_q=4096, s_kv=2048).refusals
    assert {one.got.split(", window ")[1].split(",")[0] for one in window if "window" in one.field} == {"128:0"}
    pages = check(kv_cache="paged", paged=48, s_kv=1920, layout="paged_kv_bshd_bshd_bshd", mask="padding_causal").refusals
    assert ("CUDNN-KV-16", "paged", "paged 48") in {(one.rule, one.field, one.got) for one in pages}
    assert {one.kind for one in check(cc="13.0").refusals} == {"open"}


def test_every_source_is_told():
    for rows in (*BACKENDS.values(), NOT_YET):
        for row in rows:
            for source in row.source.split("; "):
                assert source.split()[0] in SOURCES or source.startswith(("torch 2.13", "jax")), row.id


def test_all_backends_are_asked_the_preferred_one_first():
    asked = check_all(cc="sm_90", mask="causal")
    assert list(asked) == ["cudnn", "fa3", "fa4", "fa2", "interval", "flex", "reference"]
    assert next(iter(check_all(cc="8.6", cudnn="9.28.1"))) == "fa2"
    assert {name for name, decision in check_all(cc="12.1", score_mod="yes").items() if decision.answer == "declined"} >= {
        "fa2",
        "fa3",
    }


def test_an_unknown_backend_is_named():
    with pytest.raises(RequestError, match="unknown backend 'fa5'"):
        check("fa5")


def test_flexsdpas_own_calls_are_judged_by_the_library_and_by_what_it_runs():
    mine = check(framework="flexsdpa", cc="12.1", mask="causal", training=True, deterministic=True)
    assert mine.answer == "eligible"  # TransformerEngine's table refuses it; the library plans it
    dropped = check(framework="flexsdpa", mask="causal", dropout=0.1, training=True)
    assert [row.id for row in dropped.declines] == ["FLEXSDPA-DROPOUT"]
    assert {row.kind for row in dropped.declines} == {"not yet"}
    assert {row.kind for row in BACKENDS["cudnn"]} == {"limit"}


def test_flexsdpas_own_calls_keep_what_holds_whoever_calls():
    old = check_all(framework="flexsdpa", cc="7.0", dtype="fp32")
    assert {name for name, decision in old.items() if decision.answer == "eligible"} == {"reference"}
    assert {"CUDNN-ARCH-01", "CUDNN-DTYPE-01"} <= {row.id for row in old["cudnn"].declines}
    wrong = check(framework="flexsdpa", cc="sm_90", d_qk=256, d_v=128, training=True)
    assert [row.id for row in wrong.declines] == ["CUDNN-BAD-07"]
    assert [one.rule for one in check("fa2", framework="flexsdpa").refusals] == ["FLEXSDPA-BACKEND"]
    assert [one.rule for one in check("reference", framework="flexsdpa", dtype="fp8_delayed").refusals] == ["FLEXSDPA-FP8"]


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("family", EVERY)
def test_every_family_and_direction_has_a_preference_with_evidence(family, direction):
    rows = [row for row in RUN if family in row.families and direction in row.directions]
    assert len(rows) == 1
    assert rows[0].evidence
    names = ("reference", "toy", "sdpa", "cudnn")
    assert order_of(RUN, family, direction, names)[0] == ("sdpa" if family in ("sm_7x", CPU) else "cudnn")
    assert order_of(RUN, family, direction, names)[-1] == "toy"  # who is not named comes last


def test_the_fields_order_names_backends_that_exist():
    assert {name for row in FIELD for name in row.order} == set(BACKENDS)


def test_a_case_keeps_what_is_given():
    assert FieldCase.of(flash="2.7.3").flash == (2, 7, 3)
    assert FieldCase.of().flash == ()
