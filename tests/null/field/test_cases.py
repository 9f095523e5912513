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
    "cc": ("9", "cc: expected 2 numbers with points, got '9'"),
    "cudnn": ("9.28", "cudnn: expected 3 numbers with points, got '9.28'"),
    "window": ("-2:0", "window: bounds are -1 (open) or at least 0, got -2:0"),
    "layout": ("hbsd_bshd_bshd", "layout: unknown 'hbsd_bshd_bshd'"),
    "training": ("maybe", "training: expected yes or no, got 'maybe'"),
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
    "card": ({"cc": "h200"}, "cc: expected 2 numbers with points"),
    "window": ({"window": (-2, 0)}, "window: bounds are -1 (open) or at least 0"),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_mistaken_arguments_are_named(name):
    arguments, text = MISTAKEN[name]
    with pytest.raises(RequestError) as caught:
        check(**arguments)
    assert str(caught.value).startswith(text)
