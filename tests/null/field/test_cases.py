"""cuDNN's rules by family, against calls with known answers, and each row on both of its sides."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from flexsdpa.eligibility import check
from flexsdpa.eligibility.field.case import FieldCase
from flexsdpa.eligibility.field.decide import ROWS, decide_case
from flexsdpa.errors import RequestError

FILE = Path(__file__).parents[2] / "data" / "eligibility_cases.csv"
CASES = {row["case_id"]: row for row in csv.DictReader(FILE.read_text(encoding="utf-8").splitlines())}


def case(**changes):
    plain = FieldCase(
        framework="torch", cc=(9, 0), cudnn=(9, 28, 1), dtype="bf16", layout="bshd_bshd_bshd", b=2, h_q=16, h_kv=16, s_q=2048,
        s_kv=2048, d_qk=128, d_v=128, mask="causal", window=(-1, 0), diagonal="top_left", bias="no_bias", bias_shape="-",
        bias_grad=False, alibi_slopes=False, dropout=0.0, softmax="vanilla", score_mod="no", deterministic=False, training=True,
        page=0, kv_cache="none", cp="none", cp_size=1, cuda_graph=False, max_logit=False, fp8_mha=False, num_splits=1,
        pad_between_seqs=False,
    )  # fmt: skip
    return replace(plain, **changes)


def ids(asked):
    decision = decide_case(asked)
    return {row.id for row in (*decision.declines, *decision.opens)}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_files(name):
    decision = decide_case(FieldCase.parse(CASES[name]))
    assert decision.answer == CASES[name]["expected"], decision.reasons()


OTHERS = {
    "CUDNN-BAD-02": {"dtype": "fp8_delayed", "cudnn": (9, 10, 0)},
    "CUDNN-BAD-08": {"cc": (8, 9), "kv_cache": "nonpaged", "training": False, "mask": "padding_causal_bottom_right"},
    "CUDNN-12X-07": {"cc": (12, 1), "d_qk": 192},
    "CUDNN-F16-SEQLEN-01": {"cudnn": (8, 9, 7), "s_q": 2000, "s_kv": 2000},
    "CUDNN-F16-GQA-01": {"cudnn": (8, 9, 6), "h_kv": 4},
    "CUDNN-FE-BIAS-02": {"cudnn": (9, 4, 0), "bias": "post_scale_bias", "bias_shape": "1hss", "bias_grad": True, "s_q": 2000},
    "CUDNN-F16-WIN-10": {"mask": "no_mask", "window": (128, -1)},
    "CUDNN-FE-WIN-02": {"cudnn": (9, 8, 0), "mask": "padding_causal_bottom_right", "window": (128, 0)},
    "CUDNN-DET-02b": {"cudnn": (8, 9, 4), "deterministic": True},
    "CUDNN-THD-03": {"cudnn": (9, 1, 0), "layout": "thd_thd_thd", "mask": "padding_causal", "s_q": 1 << 21, "s_kv": 1 << 21},
    "CUDNN-MLA-04": {"cudnn": (9, 11, 0), "d_qk": 160, "d_v": 96},
    "CUDNN-FP8-07": {"dtype": "fp8_delayed", "softmax": "learnable"},
    "CUDNN-FP8-10": {"dtype": "fp8_current"},
    "CUDNN-FP8-12": {"dtype": "mxfp8", "fp8_mha": True, "cc": (10, 0)},
    "CUDNN-KV-05": {"dtype": "fp8_delayed", "kv_cache": "nonpaged", "training": False},
    "CUDNN-KV-07": {"kv_cache": "nonpaged", "layout": "thd_bshd_bshd", "pad_between_seqs": True, "training": False},
    "CUDNN-KV-08": {"cudnn": (9, 6, 0), "kv_cache": "paged", "page": 64, "layout": "paged_kv_thd_bshd_bshd", "training": False},
    "CUDNN-SCOREMOD-08": {"score_mod": "yes", "kv_cache": "nonpaged", "training": False},
    "CUDNN-SCOREMOD-13": {"score_mod": "bprop-only"},
    "CUDNN-SCOREMOD-15": {"score_mod": "yes", "mask": "no_mask", "window": (-1, -1), "cc": (8, 6)},
    "CUDNN-CP-16": {"cp": "p2p", "cp_size": 2, "layout": "bhsd_bhsd_bhsd"},
    "CUDNN-CP-20": {"cp": "p2p", "cp_size": 2, "d_qk": 256, "d_v": 256},
    "CUDNN-FE-DECODE-01": {"cudnn": (9, 7, 0), "s_q": 1, "training": False},
    "CUDNN-FE-WIN-04": {"s_q": 4096, "window": (128, 0)},
    "CUDNN-FE-DET-01": {"cc": (10, 0), "deterministic": True, "dropout": 0.1},
    "CUDNN-FE-FP8-04": {"dtype": "fp8_delayed", "layout": "thd_thd_thd", "mask": "padding_causal"},
    "CUDNN-FE-MXFP8-01": {"cc": (10, 0), "dtype": "mxfp8", "cudnn": (9, 20, 0)},
    "CUDNN-PLAN-03": {"cc": (11, 0), "dtype": "fp8_delayed", "d_qk": 192, "d_v": 128},
    "CUDNN-PLAN-04": {"cc": (11, 0), "layout": "thd_thd_thd", "mask": "padding_causal", "deterministic": True},
    "CUDNN-PLAN-05": {"cc": (10, 0), "cudnn": (9, 19, 0), "deterministic": True, "bias": "post_scale_bias"},
    "CUDNN-PLAN-06": {"cc": (12, 0), "layout": "t3hd", "mask": "padding_causal"},
    "CUDNN-PLAN-07": {"cc": (12, 0), "dtype": "fp8_delayed"},
    "CUDNN-PLAN-08": {"dtype": "fp8_delayed", "softmax": "learnable"},
    "CUDNN-PLAN-09": {"cc": (10, 0), "cudnn": (9, 23, 2), "d_qk": 256, "training": False},
    "CUDNN-PLAN-10": {
        "cc": (10, 0),
        "cudnn": (9, 23, 2),
        "d_qk": 256,
        "d_v": 256,
        "layout": "thd_thd_thd",
        "mask": "padding_causal",
    },
    "CUDNN-PLAN-11": {"cc": (10, 0), "dtype": "mxfp8", "d_qk": 256, "d_v": 256},
    "CUDNN-PLAN-13": {"cc": (8, 0), "bias": "post_scale_bias", "s_kv": 1},
    "CUDNN-BAD-13": {"cc": (10, 7), "dtype": "mxfp8", "s_q": 1, "training": False},
    "CUDNN-CP-17": {"cp": "all_gather", "cp_size": 2, "dropout": 0.1},
    "CUDNN-PLAN-12": {"cc": (12, 1), "dtype": "fp8_delayed", "training": False},
    "CUDNN-JAX-01": {"framework": "jax", "dtype": "fp8_delayed"},
    "CUDNN-JAX-CP-04": {"framework": "jax", "cp": "ring", "cp_size": 2, "bias": "post_scale_bias"},
    "CUDNN-JAX-CP-05": {"framework": "jax", "cp": "ring", "cp_size": 2, "softmax": "learnable"},
    "CUDNN-JAX-CP-06": {"framework": "jax", "cp": "all_gather", "cp_size": 2, "layout": "thd_thd_thd", "mask": "padding"},
    "CUDNN-JAX-CP-10": {"framework": "jax", "cp": "ring", "cp_size": 2, "s_q": 2046, "s_kv": 2046},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_that_no_case_of_the_file_meets(name):
    assert name in ids(case(**OTHERS[name]))


def test_every_row_is_met_on_both_of_its_sides():
    seen = set().union(*(ids(FieldCase.parse(row)) for row in CASES.values())) | set(OTHERS)
    assert seen == {row.id for row in ROWS}
    assert ids(case()) == set()


def test_ids_are_unique_and_rows_say_why():
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert all(row.reason and row.source for row in ROWS)


PAIRS = sorted({row["sm12x_pair"] for row in CASES.values()} - {"-"})


@pytest.mark.parametrize("pair", PAIRS)
def test_two_cards_of_sm_12x_differ_only_by_the_row_that_has_evidence(pair):
    first, second = (FieldCase.parse(row) for row in CASES.values() if row["sm12x_pair"] == pair)
    assert ids(first) ^ ids(second) <= {"CUDNN-PLAN-02", "CUDNN-PLAN-12"}


@pytest.mark.parametrize("cc", [(12, 2), (12, 9)])
def test_a_card_of_sm_12x_that_nobody_has_seen_is_judged_as_its_family(cc):
    for row in CASES.values():
        if row["cc"] == "12.0":
            asked = FieldCase.parse(row)
            assert ids(replace(asked, cc=cc)) == ids(asked)


NONSENSE = {
    "dtype": ("bf17", "dtype: unknown 'bf17' (did you mean 'bf16'?)"),
    "mask": ("casual", "mask: unknown 'casual' (did you mean 'causal'?)"),
    "cc": ("9", "cc: expected a compute capability such as 12.1 or sm_121, got '9'"),
    "cudnn": ("9.28", "cudnn: expected three numbers with points such as 9.28.1, got '9.28'"),
    "window": ("-2:0", "window: bounds are -1 (open) or at least 0, got -2:0"),
    "layout": ("hbsd_bshd_bshd", "layout: unknown 'hbsd_bshd_bshd'"),
    "training": ("maybe", "training: expected yes or no (True or False), got 'maybe'"),
    "h_q": ("0", "h_q: expected at least 1, got 0"),
    "s_kv": ("long", "s_kv: expected a number, got 'long'"),
    "dropout": ("some", "dropout: expected a probability, got 'some'"),
}


@pytest.mark.parametrize("column", NONSENSE)
def test_nonsense_names_its_column(column):
    value, text = NONSENSE[column]
    with pytest.raises(RequestError) as caught:
        FieldCase.parse({**CASES["C002"], column: value})
    assert str(caught.value).startswith(text)
    assert caught.value.field == column


def test_a_missing_column_is_named():
    row = dict(CASES["C002"])
    del row["softmax"]
    with pytest.raises(RequestError, match="column 'softmax' is missing"):
        FieldCase.parse(row)


def test_plain_arguments_make_the_same_case():
    asked = FieldCase.of(cc="sm_90", mask="causal", window=(-1, 0), training=True)
    assert asked == case()
    assert FieldCase.of(cc=(12, 1), cudnn=(9, 28, 1), h_q=32).h_kv == 32


def test_check_answers_with_records():
    decision = check(cc="12.1", mask="causal", training=True, deterministic=True)
    assert decision.answer == "declined"
    assert [row.id for row in decision.declines] == ["CUDNN-12X-04"]
    assert decision.reasons() == ["CUDNN-12X-04: no deterministic training on this family (GATE)"]
    assert check(mask="causal").answer == "eligible"
    assert check(score_mod="yes", cudnn="9.20.0").answer == "unsure"


MISTAKEN = {
    "unknown": ({"head_dim": 128}, "unknown argument 'head_dim'"),
    "heads": ({"h_q": 16, "h_kv": 5}, "h_q 16 is no multiple of h_kv 5"),
    "paged alone": ({"paged": 64}, "paged, kv_cache='paged' and a layout paged_kv_... go together"),
    "card": ({"cc": "h200"}, "cc: expected a compute capability such as 12.1 or sm_121, got 'h200'"),
    "a minor of ten": ({"cc": "9.10"}, "cc: expected a compute capability"),
    "a release of four": ({"cudnn": "9.28.1.4"}, "cudnn: expected three numbers with points such as 9.28.1"),
    "a leading zero": ({"cudnn": "9.28.01"}, "cudnn: expected three numbers with points"),
    "a raised digit": ({"cudnn": "9.²8.1"}, "cudnn: expected three numbers with points"),
    "no probability": ({"dropout": -0.5}, "dropout: expected a probability from 0 to 1, got '-0.5'"),
    "nan": ({"dropout": float("nan")}, "dropout: expected a probability from 0 to 1, got 'nan'"),
    "more than one": ({"dropout": 1.5}, "dropout: expected a probability from 0 to 1, got '1.5'"),
    "a shape": ({"bias": "post_scale_bias", "bias_shape": "bbss"}, "bias_shape: unknown 'bbss'"),
    "a gradient of nothing": ({"bias_grad": True}, "bias_grad without such a bias"),
    "slopes of nothing": ({"alibi_slopes": True}, "alibi_slopes without such a bias"),
    "a number in words": ({"h_q": "16_0"}, "h_q: expected a number, got '16_0'"),
    "a packed letter": ({"layout": "b9shd"}, "layout: unknown 'b9shd'; formats are bshd, sbhd, bhsd, thd, as in"),
    "two formats of k and v": ({"layout": "bshd_bshd_sbhd"}, "layout: unknown 'bshd_bshd_sbhd'"),
    "packed beside three": ({"layout": "t3hd_thd_thd"}, "layout: unknown 't3hd_thd_thd'"),
    "ring in torch": ({"cp": "ring", "cp_size": 2}, "cp: torch has no 'ring'; known: none, p2p, a2a, a2a+p2p, all_gather"),
    "a2a in JAX": (
        {"framework": "jax", "cp": "a2a", "cp_size": 2},
        "cp: jax has no 'a2a'; known: none, ring, p2p, all_gather, default",
    ),
    "alone in parallel": ({"cp": "p2p"}, "cp and a cp_size of 2 or more go together"),
    "parallel alone": ({"cp_size": 4}, "cp and a cp_size of 2 or more go together"),
    "a dtype": (
        {"dtype": "fp8"},
        "dtype: unknown 'fp8' (did you mean 'mxfp8'?); known: bf16, fp16, fp32, fp8_delayed",
    ),
    "window": ({"window": (-2, 0)}, "window: bounds are -1 (open) or at least 0"),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_mistaken_arguments_are_named(name):
    arguments, text = MISTAKEN[name]
    with pytest.raises(RequestError) as caught:
        check(**arguments)
    assert str(caught.value).startswith(text)


SAME = {
    "one format for three": ({"layout": "sbhd"}, {"layout": "sbhd_sbhd_sbhd"}),
    "torch's name of a dtype": ({"dtype": "torch.float16"}, {"dtype": "fp16"}),
    "another name of a dtype": ({"dtype": "bfloat16"}, {"dtype": "bf16"}),
    "JAX's default exchange": (
        {"framework": "jax", "cp": "default", "cp_size": 2}, {"framework": "jax", "cp": "all_gather", "cp_size": 2}),
    "no window": ({"window": None}, {"window": (-1, -1)}),
    "torch's mask beside a cache": (
        {"kv_cache": "nonpaged", "mask": "padding_causal"},
        {"kv_cache": "nonpaged", "mask": "padding_causal_bottom_right", "diagonal": "bottom_right"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_what_means_the_same_is_the_same_call(name):
    given, meant = SAME[name]
    assert FieldCase.of(**given) == FieldCase.of(**meant)


def test_jax_hands_a_mask_beside_a_cache_on_as_it_is():
    assert FieldCase.of(framework="jax", kv_cache="nonpaged", mask="padding_causal").mask == "padding_causal"


NARROW = {
    "causal with a right bound alone, torch": ({"mask": "causal", "window": (-1, 64)}, {"CUDNN-F16-WIN-10"}),
    "the same, JAX": ({"mask": "causal", "window": (-1, 64), "framework": "jax"}, {"CUDNN-F16-WIN-01"}),
    "a right bound after a left one is reset": ({"mask": "causal", "window": (128, 64)}, set()),
    "a sink with one query in fp8": (
        {"cc": "10.0", "dtype": "fp8_delayed", "softmax": "learnable", "s_q": 1, "s_kv": 2048}, set()),
    "a sink with one query": ({"softmax": "learnable", "s_q": 1, "s_kv": 2048}, {"CUDNN-FE-SINK-01"}),
    "an fp8 window from the end, odd lengths": (
        {"cc": "10.0", "dtype": "fp8_current", "training": True, "s_q": 1000, "window": (128, 64), "diagonal": "bottom_right"},
        {"CUDNN-FE-FP8-05"}),
    "an fp8 window from the end": (
        {"cc": "10.0", "dtype": "fp8_current", "training": True, "window": (128, 64), "diagonal": "bottom_right"}, set()),
    "an fp8 window from the start, odd lengths": (
        {"cc": "10.0", "dtype": "fp8_current", "training": True, "s_q": 1000, "window": (128, 64)}, set()),
    "a gradient of a bias over keys, JAX": (
        {"framework": "jax", "training": True, "bias": "post_scale_bias", "bias_shape": "111s", "bias_grad": True},
        {"CUDNN-F16-BIAS-05"}),
    "graph capture in JAX": ({"framework": "jax", "cuda_graph": True, "training": True, "cudnn": "9.15.0", "s_kv": 2000}, set()),
    "graph capture in torch": ({"cuda_graph": True, "training": True, "cudnn": "9.15.0", "s_kv": 2000}, {"CUDNN-BAD-04"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_rows_go_as_far_as_their_source_and_no_further(name):
    arguments, expected = NARROW[name]
    decision = check(**arguments)
    assert {row.id for row in (*decision.declines, *decision.opens)} == expected


def test_the_library_alone():
    """Without callers' choices: what the library refuses, and what it is known to compute wrongly."""
    deterministic = {"cc": "12.1", "mask": "causal", "training": True, "deterministic": True}
    assert not check(**deterministic)
    assert check(**deterministic, framework="library").eligible
    assert not check(**deterministic, framework="library", layout="thd_thd_thd")
    assert [row.id for row in check(framework="library", cudnn="9.10.1").declines] == ["CUDNN-BAD-01"]


def test_a_release_that_nobody_has_asked_is_noted():
    assert check(cudnn="99.0.0").notes == ("cuDNN 99.0.0 is newer than any release that the rules were checked with (9.28.1)",)
    assert check(cc="12.5").notes == (
        "sm_125 is not a known card; it is judged as its family, sm_12x (RTX 50, RTX PRO 6000, GB10)",
    )
    assert check().notes == ()
