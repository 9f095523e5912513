"""FieldCase -> graph: strides by layout, and every question describable on a graph that only records."""

import pytest

from flexsdpa.oracle.cards import description
from flexsdpa.oracle.graphs import Asked, describe, strides
from flexsdpa.oracle.programs import callbacks
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.spec.families import BY_NUMBER

B, H, S, D = 2, 3, 5, 8
PLACES = {
    "bshd": (S * H * D, D, H * D, 1),
    "sbhd": (H * D, D, B * H * D, 1),
    "bhsd": (H * S * D, S * D, D, 1),
    "thd": (S * H * D, D, H * D, 1),
    "bs3hd": (3 * S * H * D, D, 3 * H * D, 1),
    "bsh3d": (3 * S * H * D, 3 * D, 3 * H * D, 1),
    "bs2hd": (2 * S * H * D, D, 2 * H * D, 1),
    "sb3hd": (3 * H * D, D, 3 * B * H * D, 1),
    "sbh3d": (3 * H * D, 3 * D, 3 * B * H * D, 1),
    "t3hd": (3 * S * H * D, D, 3 * H * D, 1),
    "th2d": (2 * S * H * D, 2 * D, 2 * H * D, 1),
}


@pytest.mark.parametrize("group", PLACES)
def test_strides_of_a_layout(group):
    assert strides(group, B, H, S, D) == PLACES[group]


class Names:
    """Any enumeration of cudnn: a member is its name."""

    def __getattr__(self, name):
        return name


class Made:
    def __init__(self, **facts):
        self.__dict__.update(facts)
        self.output, self.ragged, self.reordered = False, None, ""

    def get_dim(self):
        return self.dim

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def setter(value):
            self.__dict__[{"set_ragged_offset": "ragged", "set_reordering_type": "reordered"}.get(name, name[4:])] = value
            return self

        return setter


RESULTS = {"sdpa": 2, "sdpa_backward": 3, "sdpa_fp8": 4, "sdpa_fp8_backward": 7, "sdpa_mxfp8": 3, "sdpa_mxfp8_backward": 6}


class Graph:
    def __init__(self):
        self.nodes, self.inputs = [], []

    def tensor(self, **facts):
        self.inputs.append(Made(**facts))
        return self.inputs[-1]

    def __getattr__(self, name):
        if name not in RESULTS:
            raise AttributeError(name)

        def node(**given):
            results = [Made(name=f"result{n}") for n in range(RESULTS[name])]
            self.nodes.append((name, given, results))
            return results

        return node


class Cudnn:
    data_type = diagonal_alignment = tensor_reordering = Names()


def described(question, direction, card=90, cudnn="9.28.1"):
    graph = Graph()
    asked = Asked(Cudnn, graph, question.case(card, cudnn, direction), question.statistics)
    describe(asked, direction, callbacks(asked, direction, question.program))
    (node,) = graph.nodes
    return graph, node


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_describes_one_node_with_all_its_results(name):
    question = QUESTIONS[name]
    for direction in question.directions:
        graph, (kind, _, results) = described(question, direction)
        assert kind.endswith("_backward") == (direction == "backward")
        assert "fp8" in kind or question.case(90, "9.28.1", direction).half
        needed = results if not question.case(90, "9.28.1", direction).cached else results[:1]
        assert all(result.output is True for result in needed)
        for tensor in graph.inputs:
            assert len(tensor.dim) == len(tensor.stride) == 4


def node(name, direction="forward", **more):
    return described(QUESTIONS[name], direction, **more)[1][1]


def test_masks_become_bounds():
    assert node("causal")["diagonal_band_right_bound"] == 0
    assert "diagonal_band_left_bound" not in node("causal")
    assert node("window 128")["diagonal_band_left_bound"] == 129
    both = node("window on both sides")
    assert (both["diagonal_band_left_bound"], both["diagonal_band_right_bound"]) == (129, 128)
    assert node("bottom-right, more keys")["diagonal_alignment"] == "BOTTOM_RIGHT"
    assert "diagonal_alignment" not in node("bottom-right, equal lengths")
    assert "diagonal_band_right_bound" not in node("plain")


def test_ragged_calls_carry_offsets_and_lengths():
    given = node("ragged", "backward")
    assert given["use_padding_mask"] is True
    assert given["q"].ragged is not None
    assert given["stats"].ragged is not None
    assert node("ragged", "backward", card=121)["stats"].ragged is None
    assert node("ragged, ragged statistics", "backward", card=121)["stats"].ragged is not None
    assert given["q"].dim[0] == 32
    assert node("ragged", "backward", card=121)["q"].dim[0] == 2


def test_mods_become_callbacks_or_native_bounds():
    assert callable(node("mod: softcap")["score_mod"])
    assert callable(node("mod: softcap", "backward")["score_mod_bprop"])
    native = node("mod: causal as score")
    assert native["diagonal_band_right_bound"] == 0
    assert "score_mod" not in native


def test_the_rest_reaches_the_node():
    assert node("alibi")["use_alibi_mask"] is True
    assert node("bias 11ss")["bias"].dim == [1, 1, 2048, 2048]
    assert node("bias 1hss, its gradient", "backward")["dBias"].output is True
    assert node("sink", "backward")["dSink_token"].output is True
    assert node("dropout")["dropout"][0] == 0.1
    assert node("deterministic", "backward")["use_deterministic_algorithm"] is True
    paged = node("paged KV cache")
    assert paged["k"].dim == [64, 16, 64, 128]
    assert paged["paged_attention_k_table"].dim == [2, 1, 32, 1]
    assert node("mxfp8, causal")["descale_v"].dim == [2, 16, 64, 128]
    assert node("mxfp8, causal")["descale_q"].reordered == "F8_128x4"


def test_a_description_names_the_card():
    import json

    found = json.loads(description(BY_NUMBER[121]))
    assert (found["deviceVer"], found["multiProcessorCount"], found["maxSharedMemoryPerBlockOptin"]) == (1210, 48, 101376)
    assert json.loads(description(BY_NUMBER[90]))["maxSharedMemoryPerBlockOptin"] == 232448
