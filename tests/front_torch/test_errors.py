"""Errors of the call: their types and their texts."""

import numpy as np
import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.torch import attention, varlen_attention

T = torch.zeros
DTYPES = "q, k and v must be one of f16, bf16, f32, f64, got "
CAST = ": cast them, or run under autocast"
GROUPS = "the number of query heads must be a multiple of the kv heads (GQA), got "
RANK = " must have 4 dimensions (batch, heads, length, head_dim) in layout 'bhsd', got shape "
CANNOT = ", which a traced mod cannot do"
NO_VALUE = " needs to know the value of a traced expression, and there is none: the mod runs once, for all positions"
ONE_SCORE = ", expected the new score, a single float"
NOT_BOOLEAN = "mask_mod returned a value that is not boolean "
EXPECTED_TRUE = ", expected True where attention is allowed"
BOUNDS = "offsets must start at 0, not decrease and end at most at the number of rows (10), got "
LENGTHS = "lengths must give one length per sequence, none longer than its rows [4, 6], got "
Q = T(2, 4, 5, 8)


def told(error, *args, call=attention, **options):
    """The first line of the text of the error that the call raises."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert isinstance(caught.value, flexsdpa.FlexSDPAError)
    return str(caught.value).splitlines()[0]


BAD_TENSORS = {
    "rank of q": ((T(4, 5, 8), Q, Q), "q" + RANK + "(4, 5, 8)"),
    "rank of v": ((Q, Q, T(2, 4, 5)), "v" + RANK + "(2, 4, 5)"),
    "rank of k": ((Q, T(1, 2, 4, 5, 8), Q), "k" + RANK + "(1, 2, 4, 5, 8)"),
    "no tensor": (([[1.0]], Q, Q), "q must be a torch tensor, got list"),
    "batch": ((Q, T(1, 4, 5, 8), T(1, 4, 5, 8)), "q, k and v must have one batch size, got 2, 1 and 1"),
    "batch of v": ((Q, Q, T(3, 4, 5, 8)), "q, k and v must have one batch size, got 2, 2 and 3"),
    "kv heads": ((Q, T(2, 3, 5, 8), T(2, 3, 5, 8)), GROUPS + "4 and 3"),
    "more kv heads": ((Q, T(2, 8, 5, 8), T(2, 8, 5, 8)), GROUPS + "4 and 8"),
    "no kv heads": ((Q, T(2, 0, 5, 8), T(2, 0, 5, 8)), GROUPS + "4 and 0"),
    "heads of v": ((Q, T(2, 2, 5, 8), Q), "k and v must have the same number of heads, got 2 and 4"),
    "lengths": ((Q, T(2, 4, 6, 8), T(2, 4, 7, 8)), "k and v must have the same length, got 6 and 7"),
    "head_dim": ((Q, T(2, 4, 5, 16), Q), "q and k must have the same head_dim, got 8 and 16"),
    "no head_dim": ((T(2, 4, 5, 0), T(2, 4, 5, 0), Q), "head_dim must be at least 1, got 0"),
    "one of integers": ((Q.int(), Q, Q), "q, k and v must have one dtype, got i32, f32 and f32" + CAST),
    "integers": ((Q.long(), Q.long(), Q.long()), DTYPES + "i64"),
    "complex": ((Q, Q.to(torch.complex64), Q), DTYPES + "k torch.complex64"),
    "fp8": ((Q.to(torch.float8_e4m3fn),) * 3, DTYPES + "q torch.float8_e4m3fn"),
    "mixed dtypes": ((Q, Q, Q.bfloat16()), "q, k and v must have one dtype, got f32, f32 and bf16" + CAST),
    "half and single": ((Q.half(), Q, Q), "q, k and v must have one dtype, got f16, f32 and f32" + CAST),
    "device of k": ((Q, Q.to("meta"), Q), "q, k and v must be on one device, got q on cpu and k on meta"),
    "device of q": ((Q.to("meta"), Q, Q), "q, k and v must be on one device, got q on meta and k on cpu"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused(name):
    tensors, text = BAD_TENSORS[name]
    assert told(flexsdpa.RequestError, *tensors) == text
    assert told(ValueError, *tensors) == text


@pytest.mark.parametrize("position", [1, 2], ids=["k", "v"])
def test_what_is_no_tensor_is_refused(position):
    tensors = [Q, Q, Q]
    tensors[position] = None
    assert told(flexsdpa.RequestError, *tensors) == f"{'qkv'[position]} must be a torch tensor, got NoneType"


@pytest.mark.parametrize("layout", ["bshd", "sbhd"])
def test_sizes_are_checked_in_the_layout_given(layout):
    assert told(flexsdpa.RequestError, Q, Q, T(2, 4, 8), layout=layout) == (
        "v must have 4 dimensions (batch, length, heads, head_dim) in layout 'bshd', got shape (2, 4, 8)" if layout == "bshd"
        else "v must have 4 dimensions (length, batch, heads, head_dim) in layout 'sbhd', got shape (2, 4, 8)"
    )  # fmt: skip
    given = T(2, 5, 4, 8), T(2, 6, 4, 8), T(2, 7, 4, 8)
    given = given if layout == "bshd" else tuple(x.transpose(0, 1) for x in given)
    assert told(flexsdpa.RequestError, *given, layout=layout) == "k and v must have the same length, got 6 and 7"


OPTIONS = {
    "layout": ({"layout": "bdsh"}, "unknown layout 'bdsh' (did you mean 'bshd'?); known: bhsd, bshd, sbhd"),
    "unlike any layout": ({"layout": "thd"}, "unknown layout 'thd'"),
    "backend": ({"backend": "referense"}, "unknown backend 'referense' (did you mean 'reference'?); known: auto,"),
    "scale nan": ({"scale": float("nan")}, "scale must be finite, got nan"),
    "scale inf": ({"scale": float("inf")}, "scale must be finite, got inf"),
    "scale text": ({"scale": "0.5"}, "scale must be a number, got str"),
    "scale bool": ({"scale": True}, "scale must be a number, got bool"),
    "scale tensor": (
        {"scale": torch.tensor(0.5)},
        "scale must be a Python number, got a tensor: a learned temperature belongs in score_mod (score * temperature), "
        "where it receives a gradient",
    ),
    "sink size": ({"sink": T(3)}, "sink must be a float tensor of shape (heads,) = (4,), got (3,)"),
    "sink rank": ({"sink": T(1, 4)}, "sink must be a float tensor of shape (heads,) = (4,), got (1, 4)"),
    "sink dtype": ({"sink": T(4).long()}, "sink must be a float tensor of shape (heads,) = (4,), got (4,)"),
    "sink number": ({"sink": 0.5}, "sink must be a float tensor of shape (heads,) = (4,), got float"),
    "q_offset float": (
        {"q_offset": 1.5, "mask_mod": mods.causal},
        "q_offset must be an integer, or an integer tensor of shape () or (batch,); got float",
    ),
    "q_offset bool": (
        {"q_offset": True, "mask_mod": mods.causal},
        "q_offset must be an integer, or an integer tensor of shape () or (batch,); got bool",
    ),
    "q_offset float tensor": (
        {"q_offset": T(2), "mask_mod": mods.causal},
        "q_offset must be an integer, or an integer tensor of shape () or (batch,)",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_make_no_sense_are_refused(name):
    options, text = OPTIONS[name]
    assert told(flexsdpa.RequestError, Q, Q, Q, **options).startswith(text)


OFFSET_TEXT = "q_offset must be an integer, or an integer tensor of shape () or (batch,)"


def test_an_offset_of_rank_2_is_refused():
    assert told(flexsdpa.RequestError, Q, Q, Q, q_offset=T(2, 1).long(), mask_mod=mods.causal).startswith(OFFSET_TEXT)


@pytest.mark.parametrize("size", [
    1,
    3,
], ids=["too short", "too long"])  # fmt: skip
def test_an_offset_per_batch_of_another_size_is_refused(size):
    offset = torch.zeros(size, dtype=torch.int64)
    assert told(flexsdpa.RequestError, Q, Q, Q, mask_mod=mods.causal, q_offset=offset).startswith("q_offset must be an integer")


def test_an_offset_is_checked_without_mods_too():
    assert told(flexsdpa.RequestError, Q, Q, Q, q_offset=1.5).startswith("q_offset must be an integer")


def test_an_error_carries_what_was_asked():
    with pytest.raises(flexsdpa.RequestError) as caught:
        attention(Q, T(2, 3, 5, 8), T(2, 3, 5, 8))
    assert (caught.value.field, caught.value.got) == ("heads", (4, 3))


# Captured tensors.


def test_a_captured_tensor_on_another_device_is_named():
    bias = torch.zeros(4, device="meta")
    assert told(flexsdpa.RequestError, Q, Q, Q, score_mod=lambda s, b, h, i, j: s + bias[h]) == (
        "captured tensor bias of shape (4,) is on meta, but q is on cpu: move it before the call (bias.to('cpu'))"
    )


def test_a_captured_number_on_the_cpu_goes_along():
    temperature = torch.tensor(0.5)
    q = torch.zeros(2, 4, 5, 8, device="meta")
    assert attention(q, q, q, score_mod=lambda s, b, h, i, j: s * temperature).device.type == "meta"


MISTAKES = {
    "if": (lambda s, b, h, i, j: s if i >= j else -1.0, "`if`" + NO_VALUE),
    "and": (lambda s, b, h, i, j: (i >= j) and s, "`and`" + NO_VALUE),
    "not": (lambda s, b, h, i, j: s * (not (i >= j)), "`not`" + NO_VALUE),
    "min": (lambda s, b, h, i, j: min(s, 1.0), "min()" + NO_VALUE),
    "whole tensor": (lambda s, b, h, i, j: s + torch.zeros(5), "a captured tensor of shape (5,) was used whole" + CANNOT),
    "too few indices": (
        lambda s, b, h, i, j: s + torch.zeros(5, 5)[i],
        "a read of a captured tensor of shape (5, 5) gives a vector of shape (5,)" + CANNOT,
    ),
    "too many indices": (
        lambda s, b, h, i, j: s + torch.zeros(5)[i, j],
        "a captured tensor of shape (5,) was read with 2 indices" + CANNOT,
    ),
    "float index": (lambda s, b, h, i, j: s + torch.zeros(5)[i / 2], "a captured tensor was read with a float index" + CANNOT),
    "slice": (
        lambda s, b, h, i, j: s + torch.zeros(5, 5)[i, :],
        "a captured tensor was indexed with a slice, None or ..." + CANNOT,
    ),
    "item": (lambda s, b, h, i, j: s * i.item(), "item() of a traced value" + CANNOT),
    "sum": (lambda s, b, h, i, j: s - s.sum(), "sum() of a traced value" + CANNOT),
    "softmax": (lambda s, b, h, i, j: torch.softmax(s, -1), "softmax() of a traced value" + CANNOT),
    "random": (lambda s, b, h, i, j: s + torch.rand_like(s), "rand_like() of a traced value" + CANNOT),
    "int": (lambda s, b, h, i, j: s + int(i), "int() of a traced value" + CANNOT),
    "list": (
        lambda s, b, h, i, j: s + [1.0, 2.0][i],
        "indexing a list, tuple or NumPy array, or range(), of a traced value" + CANNOT,
    ),
    "returns none": (lambda s, b, h, i, j: None, "score_mod returned None" + ONE_SCORE),
    "returns a bool": (lambda s, b, h, i, j: i >= j, "score_mod returned a boolean" + ONE_SCORE),
    "returns a tuple": (lambda s, b, h, i, j: (s, s), "score_mod returned a tuple" + ONE_SCORE),
    "four arguments": (lambda s, b, h, i: s, "score_mod does not take 5 arguments"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_score_mod_that_cannot_be_traced_says_why(name):
    mod, text = MISTAKES[name]
    assert told(flexsdpa.TraceError, Q, Q, Q, score_mod=mod).startswith(text)


def test_the_text_of_a_trace_error_names_the_line_and_the_rewrite():
    with pytest.raises(flexsdpa.TraceError) as caught:
        attention(Q, Q, Q, mask_mod=lambda b, h, i, j: i >= j and i - j < 3)
    first, at, instead = str(caught.value).splitlines()
    assert first == "`and`" + NO_VALUE
    assert at.startswith("  at       ")
    assert "test_errors.py" in at
    assert "i >= j and i - j < 3" in at
    assert instead == "  instead  use `&` with parentheses: (a >= b) & (c == d)"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16], ids=str)
def test_a_captured_tensor_of_a_strange_dtype_is_refused(dtype):
    table = torch.zeros(5, dtype=dtype)
    text = told(flexsdpa.TraceError, Q, Q, Q, score_mod=lambda s, b, h, i, j: s + table[i])
    assert text == f"a captured tensor has dtype {dtype}" + CANNOT


def test_an_indexed_numpy_array_is_refused_with_a_hint():
    table = np.zeros(5)
    text = told(flexsdpa.TraceError, Q, Q, Q, score_mod=lambda s, b, h, i, j: s + table[i])
    assert text.startswith("indexing a list, tuple or NumPy array")


MASK_MISTAKES = {
    "float": (lambda b, h, i, j: (i - j) * 0.5, NOT_BOOLEAN + "(float)" + EXPECTED_TRUE),
    "int": (lambda b, h, i, j: i - j, NOT_BOOLEAN + "(integer)" + EXPECTED_TRUE),
    "none": (lambda b, h, i, j: None, "mask_mod returned None, expected a boolean: True where attention is allowed"),
    "five arguments": (lambda s, b, h, i, j: i >= j, "mask_mod does not take 4 arguments"),
    "tensor": (torch.ones(5, 5, dtype=torch.bool), "mask_mod must be a function (b, h, q_idx, kv_idx), not a Tensor"),
}


@pytest.mark.parametrize("name", MASK_MISTAKES)
def test_a_mask_mod_that_cannot_be_traced_says_why(name):
    mod, text = MASK_MISTAKES[name]
    assert told(flexsdpa.TraceError, Q, Q, Q, mask_mod=mod) == text
    assert isinstance(flexsdpa.TraceError(""), TypeError)


def test_an_error_of_the_mod_itself_comes_through():
    def mod(score, b, h, q_idx, kv_idx):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        attention(Q, Q, Q, score_mod=mod)


# Backends.


def test_a_named_backend_lists_every_reason():
    q, k, v = (x.bfloat16() for x in random_qkv(1, 2, 6, 8, Skv=9, Dv=4))
    with pytest.raises(flexsdpa.UnsupportedError) as caught:
        attention(q, k, v, score_mod=mods.softcap(2.0), mask_mod=mods.sliding_window(3), backend="sdpa")
    lines = str(caught.value).splitlines()
    assert lines[0] == "backend 'sdpa' cannot serve this attention request, and a named backend never falls back"
    assert lines[1].startswith("  request  q bf16 (1, 2, 6, 8)")
    assert lines[2:] == [
        "  sdpa     dtype: bf16 asked, f32 and f64 (its LSE of half inputs is off by up to 6e-5) served",
        "  sdpa     score_mod: a score_mod asked, none served",
        "  sdpa     mask_mod: window: -2 <= kv_idx - q_idx <= 0 asked, none or causal served",
        "  sdpa     head_dim: 8 and 4 asked, one head_dim for q, k and v served",
        "  try      flexsdpa explain, or backend='auto'",
    ]
    refusals = [r.rule for v in caught.value.decision.verdicts for r in v.refusals]
    assert refusals == ["sdpa.half", "sdpa.score-mod", "sdpa.mask", "sdpa.head-dims"]


def test_a_backend_that_refuses_counts_as_a_refusal(empty_cache):
    with pytest.raises(NotImplementedError):
        attention(Q, Q, Q, score_mod=mods.softcap(2.0), backend="sdpa")
    assert empty_cache().refusals == 1


def test_an_unknown_option_names_the_nearest():
    with (
        pytest.raises(flexsdpa.RequestError, match="unknown option 'tile_k' \\(did you mean 'tile_kv'\\?\\)"),
        flexsdpa.options(tile_k=3),
    ):
        pass
    with (
        pytest.raises(flexsdpa.RequestError, match=r"tile_q=0 is not valid: expected an integer >= 1"),
        flexsdpa.options(tile_q=0),
    ):
        pass


def test_an_option_may_come_from_the_environment(fresh_process):
    script = """
        import os
        os.environ["FLEXSDPA_BACKEND"] = "sdpa"
        import torch, flexsdpa
        from flexsdpa.torch import attention
        q = torch.zeros(1, 1, 4, 8)
        attention(q, q, q)
        with flexsdpa.options(backend="reference"):
            attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 2)
        try:
            attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 2)
        except flexsdpa.UnsupportedError as error:
            print(str(error).splitlines()[0])
    """
    assert fresh_process(script) == "backend 'sdpa' cannot serve this attention request, and a named backend never falls back"


def test_a_bad_value_in_the_environment_is_an_error_at_every_call(fresh_process):
    script = """
        import os
        os.environ["FLEXSDPA_PLAN_CACHE_SIZE"] = "many"
        import torch, flexsdpa
        from flexsdpa.torch import attention
        q = torch.zeros(1, 1, 4, 8)
        for _ in range(2):
            try:
                attention(q, q, q)
            except flexsdpa.RequestError as error:
                print(error)
    """
    text = "FLEXSDPA_PLAN_CACHE_SIZE='many' is not valid: expected an integer >= 1"
    assert fresh_process(script).splitlines() == [text] * 2


# Packed and nested sequences.

PACKED = T(10, 2, 8)
OFFSETS = torch.tensor([0, 4, 10])
VARLEN = {
    "rank": (
        (T(1, 10, 2, 8), PACKED, PACKED, OFFSETS),
        {},
        "q must be packed as (tokens, heads, head_dim), got shape (1, 10, 2, 8)",
    ),
    "does not start at 0": ((PACKED, PACKED, PACKED, torch.tensor([1, 10])), {}, BOUNDS + "[1, 10]"),
    "decreases": ((PACKED, PACKED, PACKED, torch.tensor([0, 6, 4, 10])), {}, BOUNDS + "[0, 6, 4, 10]"),
    "too long": ((PACKED, PACKED, PACKED, torch.tensor([0, 11])), {}, BOUNDS + "[0, 11]"),
    "floats": ((PACKED, PACKED, PACKED, torch.tensor([0.0, 10.0])), {}, "offsets must be a 1-D integer tensor"),
    "one entry": ((PACKED, PACKED, PACKED, torch.tensor([0])), {}, BOUNDS + "[0]"),
    "lists": ((PACKED, PACKED, PACKED, [0, 10]), {}, "offsets must be a 1-D integer tensor"),
    "lengths too long": ((PACKED, PACKED, PACKED, OFFSETS), {"lengths": torch.tensor([5, 6])}, LENGTHS + "[5, 6]"),
    "lengths negative": ((PACKED, PACKED, PACKED, OFFSETS), {"lengths": torch.tensor([-1, 6])}, LENGTHS + "[-1, 6]"),
    "too many lengths": ((PACKED, PACKED, PACKED, OFFSETS), {"lengths": torch.tensor([1, 2, 3])}, LENGTHS + "[1, 2, 3]"),
    "other rows of k": ((PACKED, T(9, 2, 8), T(9, 2, 8), OFFSETS), {}, "k has 9 rows and q has 10: give kv_offsets"),
    "kv sequences": (
        (PACKED, PACKED, PACKED, OFFSETS),
        {"kv_offsets": torch.tensor([0, 3, 4, 10])},
        "offsets and kv_offsets must describe the same number of sequences",
    ),
    "kv offsets too long": (
        (PACKED, PACKED, PACKED, OFFSETS),
        {"kv_offsets": torch.tensor([0, 3, 11])},
        "kv_" + BOUNDS + "[0, 3, 11]",
    ),
}


@pytest.mark.parametrize("name", VARLEN)
def test_offsets_that_do_not_fit_are_refused(name):
    args, options, text = VARLEN[name]
    assert told(flexsdpa.RequestError, *args, call=varlen_attention, **options) == text


def test_a_wrong_number_of_kv_lengths_names_kv_lengths():
    text = told(
        flexsdpa.RequestError,
        PACKED,
        PACKED,
        PACKED,
        OFFSETS,
        call=varlen_attention,
        kv_offsets=OFFSETS,
        kv_lengths=torch.tensor([9, 9]),
    )
    assert text.startswith("kv_lengths must give one length per sequence")


def test_kv_lengths_without_kv_offsets_are_not_ignored():
    q, k, v = (x[0].transpose(0, 1) for x in random_qkv(1, 2, 10, 8))
    seen = varlen_attention(q, k, v, OFFSETS, kv_lengths=torch.tensor([1, 2]))
    expected = varlen_attention(q, k, v, OFFSETS, kv_offsets=OFFSETS, kv_lengths=torch.tensor([1, 2]))
    torch.testing.assert_close(seen, expected)


def jagged(*lengths, heads=2):
    return torch.nested.nested_tensor([random_tensor(n, heads, 8) for n in lengths], layout=torch.jagged)


NESTED_TEXT = (
    "nested attention needs q, k and v as jagged nested tensors whose lengths are dimension 2 of layout 'bhsd'; {} is not"
)


def test_nested_tensors_that_do_not_fit_are_refused():
    x = jagged(3, 5)
    bhsd = x.transpose(1, 2)
    assert told(flexsdpa.RequestError, x, x, x) == NESTED_TEXT.format("q")
    assert told(flexsdpa.RequestError, bhsd, T(2, 2, 5, 8), bhsd) == NESTED_TEXT.format("k")
    assert (
        told(flexsdpa.RequestError, bhsd, bhsd, bhsd, return_lse=True)
        == "return_lse is not available for nested tensors: use varlen_attention"
    )
    assert (
        told(flexsdpa.RequestError, bhsd, bhsd, bhsd, q_offset=3)
        == "q_offset is not available for nested tensors: use a mask with an offset, mods.causal(offset=...)"
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_refused():
    x = torch.nested.nested_tensor([T(2, 3, 8), T(2, 5, 8)])
    assert told(flexsdpa.RequestError, x, x, x) == NESTED_TEXT.format("q")
