"""Score functions written as cuDNN graph calls: recorded, keyed by what they do, their derivatives checked."""

import functools

import numpy as np
import pytest

from flexsdpa import mods, ops
from flexsdpa.errors import RequestError, TraceError
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.evaluate import evaluate
from flexsdpa.structure.analyse import analyse, describe
from null.helpers import traced

B, H, S, T = 2, 4, 6, 7
RANDOM = np.random.default_rng(0)
SCORE = RANDOM.normal(size=(B, H, S, T))
GRID = {
    "b": np.arange(B).reshape(-1, 1, 1, 1),
    "h": np.arange(H).reshape(-1, 1, 1),
    "q": np.arange(S)[:, None],
    "kv": np.arange(T),
}
BIAS, SLOPES, DOC_Q, DOC_K = (RANDOM.normal(size=(B, 1, S, T)), RANDOM.normal(size=(1, H, 1, 1)),
                              np.arange(S).reshape(1, 1, S, 1) // 3, np.arange(T).reshape(1, 1, 1, T) // 3)  # fmt: skip


class DataType:
    """As cuDNN's enumeration: an object with a name."""

    def __init__(self, name):
        self.name = name


FLOAT, INT32, BOOLEAN = (DataType(name) for name in ("FLOAT", "INT32", "BOOLEAN"))


def softcap(graph, score, tensors):
    scaled = graph.div(a=score, b=tensors["cap"])
    scaled.set_data_type(FLOAT)
    return graph.mul(a=graph.tanh(input=scaled, compute_data_type=FLOAT, name="t"), b=tensors["cap"]).set_name("out")


def causal(graph, score, tensors):
    row, column = graph.gen_index(input=score, axis=2), graph.gen_index(input=score, axis=3)
    row.set_data_type(INT32)
    keep = graph.cmp_ge(input=row, comparison=column, compute_data_type=BOOLEAN).set_data_type(BOOLEAN)
    return graph.binary_select(input0=score, input1=tensors["low"], mask=keep)


def documents(graph, score, tensors):
    same = graph.cmp_eq(tensors["rows"], tensors["columns"]).set_data_type(INT32)
    return graph.binary_select(score, -float("inf"), same)


def everything(graph, x, tensors):
    y = graph.add(a=graph.exp(graph.neg(graph.abs(x))), b=graph.sqrt(graph.add_square(a=1.0, b=x)))
    y = graph.sub(y, graph.mul(graph.rsqrt(graph.add(graph.mul(x, x), 1.0)), graph.erf(x)))
    y = graph.add(y, graph.log(graph.add(2.0, graph.sin(x)))) if tensors else y
    y = graph.add(y, graph.max(input0=graph.cos(x), input1=graph.min(x, 0.5)))
    y = graph.add(y, graph.swish(x))
    y = graph.add(y, graph.softplus(x))
    y = graph.sub(y, graph.reciprocal(graph.add(graph.sigmoid(x), 1.0)))
    y = graph.add(y, graph.relu(input=x, lower_clip=-0.5, upper_clip=0.5))
    y = graph.add(y, graph.leaky_relu(input=x, negative_slope=0.1))
    return graph.add(y, graph.scale(input=graph.floor(x), scale=graph.ceil(graph.tan(graph.tanh(x)))))


def plain_everything(x):
    y = np.exp(-np.abs(x)) + np.sqrt(1 + x * x)
    y = y - 1 / np.sqrt(x * x + 1) * ops.erf(x)
    y = y + np.maximum(np.cos(x), np.minimum(x, 0.5)) + x / (1 + np.exp(-x)) + np.logaddexp(0, x)
    y = y - 1 / (1 / (1 + np.exp(-x)) + 1) + np.clip(x, -0.5, 0.5) + np.where(x > 0, x, 0.1 * x)
    return y + np.floor(x) * np.ceil(np.tan(np.tanh(x)))


def value_of(fn, tensors=None, bprop=None):
    found = traced(mods.from_graph_callback(fn, tensors=tensors, bprop=bprop))
    return evaluate(program_of(found.text), {"score": SCORE, **GRID}, found.arrays, found.scalars)


CALLBACKS = {
    "softcap": (softcap, {"cap": 2.5}, lambda: 2.5 * np.tanh(SCORE / 2.5)),
    "bias": (lambda g, s, t: g.bias(input=s, bias=t["bias"]), {"bias": BIAS}, lambda: SCORE + BIAS),
    "slopes": (
        lambda g, s, t: g.add(s, g.mul(g.gen_index(s, 3).set_data_type(FLOAT), t["slopes"])), {"slopes": SLOPES},
        lambda: SCORE + np.arange(T) * SLOPES),
    "two arguments": (lambda g, s: g.mul(a=s, b=0.5), None, lambda: SCORE * 0.5),
    "everything": (everything, None, lambda: plain_everything(SCORE)),
    "powers": (lambda g, s: g.pow(g.abs(s), 1.5), None, lambda: np.abs(SCORE) ** 1.5),
    "logic": (
        lambda g, s: g.binary_select(
            s, 0.0, g.logical_or(g.logical_not(g.cmp_gt(s, 0.0)), g.logical_and(g.cmp_lt(s, 1.0), g.cmp_neq(s, 2.0)))),
        None, lambda: np.where((SCORE <= 0) | (SCORE < 1), SCORE, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_computes_what_it_says(name):
    fn, tensors, expected = CALLBACKS[name]
    np.testing.assert_allclose(value_of(fn, tensors)["score"], np.broadcast_to(expected(), SCORE.shape), rtol=1e-12, atol=1e-12)


def test_masks_inside_callbacks_are_recognised():
    found = traced(mods.from_graph_callback(causal, tensors={"low": -float("inf")}))
    program = program_of(found.text)
    assert describe(program, analyse(program)) == ["causal"]
    found = traced(mods.from_graph_callback(documents, tensors={"rows": DOC_Q, "columns": DOC_K}))
    assert program_of(found.text).result("keep") is not None


def text_of(fn, **options):
    return traced(mods.from_graph_callback(fn, **options)).text


class TestKeys:
    def test_two_callbacks_of_one_name_have_their_own_programs(self):
        pool = [lambda g, s: g.mul(a=s, b=2), lambda g, s: g.add(a=s, b=2)]
        assert pool[0].__qualname__ == pool[1].__qualname__
        assert text_of(pool[0]) != text_of(pool[1])

    def test_other_defaults(self):
        def make(power):
            def fn(graph, score, tensors, power=power):
                return graph.pow(score, power)

            return fn

        assert text_of(make(2)) != text_of(make(3))

    def test_other_globals(self, monkeypatch):
        monkeypatch.setitem(globals(), "SHIFT", 3)
        fn = lambda g, s: g.add(a=s, b=SHIFT)  # noqa: F821
        before = text_of(fn)
        monkeypatch.setitem(globals(), "SHIFT", 4)
        assert text_of(fn) != before

    def test_another_float_is_the_same_program(self):
        assert text_of(softcap, tensors={"cap": 2.5}) == text_of(softcap, tensors={"cap": 30.0})

    def test_state_counts_at_once(self):
        class Capped:
            cap = 2

            def forward(self, graph, score, tensors):
                return graph.mul(a=graph.tanh(input=score), b=self.cap)

        state = Capped()
        before = text_of(state.forward)
        state.cap = 3
        assert text_of(state.forward) != before

    def test_partials_and_objects(self):
        class Doubled:
            def __call__(self, graph, score):
                return graph.mul(score, 2)

        assert text_of(Doubled()) == text_of(functools.partial(lambda g, s, by: g.mul(s, by), by=2))


class Stateful:
    """A cuDNN sample's shape: the forward keeps what the backward needs."""

    def __init__(self, wrong=False):
        self.wrong = wrong

    def forward(self, graph, score, tensors):
        self.before = graph.div(a=score, b=tensors["cap"])
        return graph.mul(a=graph.tanh(input=self.before), b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        if self.wrong:
            return graph.mul(a=dscore, b=graph.tanh(input=self.before))
        return graph.tanh_backward(loss=dscore, input=self.before)


class TestBprop:
    def test_the_right_one_is_accepted_and_changes_nothing(self):
        state = Stateful()
        with_it = mods.from_graph_callback(state.forward, tensors={"cap": 2.5}, bprop=state.backward)
        without = mods.from_graph_callback(state.forward, tensors={"cap": 2.5})
        assert traced(with_it).text == traced(without).text

    def test_a_wrong_one_is_an_error_that_shows_both(self):
        state = Stateful(wrong=True)
        with pytest.raises(TraceError) as caught:
            traced(mods.from_graph_callback(state.forward, tensors={"cap": 2.5}, bprop=state.backward))
        text = str(caught.value)
        assert text.startswith("bprop of a graph callback is not the derivative of fn")
        assert "dscore = " in text
        assert "given = " in text
        assert "leave bprop out" in text

    def test_a_forgotten_factor_is_found(self):
        with pytest.raises(TraceError, match="not the derivative"):
            traced(mods.from_graph_callback(lambda g, s: g.mul(s, 3.5), bprop=lambda g, d: d))

    def test_a_captured_tensor_may_be_in_it(self):
        fn, bprop = (lambda g, s, t: g.mul(s, t["bias"])), (lambda g, d, t: g.mul(d, t["bias"]))
        traced(mods.from_graph_callback(fn, tensors={"bias": BIAS}, bprop=bprop))

    def test_kinks_are_not_mistakes(self):
        fn = lambda g, s: g.relu(input=g.sub(s, 0.25))
        bprop = lambda g, d: g.mul(d, 1.0)
        with pytest.raises(TraceError):
            traced(mods.from_graph_callback(fn, bprop=bprop))

        class Relu:
            def forward(self, graph, score):
                self.x = graph.sub(score, 0.25)
                return graph.relu(input=self.x)

            def backward(self, graph, dscore):
                return graph.relu_backward(loss=dscore, input=self.x)

        state = Relu()
        traced(mods.from_graph_callback(state.forward, bprop=state.backward))


MISTAKES = {
    "an unknown method": (lambda g, s: g.matmul(s, s), "the graph method matmul(), which a traced mod cannot do"),
    "a misspelt method": (lambda g, s: g.tan_h(s), "the nearest method that can be recorded is tanh()"),
    "an unknown argument": (lambda g, s: g.tanh(x=s), "tanh() without input"),
    "a missing argument": (lambda g, s: g.add(a=s), "add() without b"),
    "too many arguments": (lambda g, s: g.add(s, s, 1, 2, 3), "add() with so many arguments"),
    "no tensor back": (lambda g, s: None, "a graph callback returned NoneType, expected a tensor"),
    "a tensor's attribute": (lambda g, s: s.get_dim(), "get_dim of a graph tensor"),
    "a tensor without four dimensions": (lambda g, s: g.add(s, np.zeros(3)), "a tensor of shape (3,) in a graph callback"),
    "an unknown data type": (lambda g, s: s.set_data_type(DataType("FP4")), "set_data_type("),
    "another library's tensor": (lambda g, s: g.add(s, object()), "a value of type object cannot take part in a mod"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_recorded_is_named(name):
    fn, text = MISTAKES[name]
    with pytest.raises(TraceError) as caught:
        traced(mods.from_graph_callback(fn))
    assert text in str(caught.value)


def test_a_tensor_of_another_recording_is_refused():
    kept = []
    traced(mods.from_graph_callback(lambda g, s: kept.append(s) or s))
    with pytest.raises(TraceError, match="a graph tensor of another recording"):
        traced(mods.from_graph_callback(lambda g, s: g.add(s, kept[0])))


def test_outside_of_a_trace_and_no_callback():
    with pytest.raises(TraceError, match="can only run where a score_mod is traced"):
        mods.from_graph_callback(lambda g, s: s)(1.0, 0, 0, 0, 0)
    with pytest.raises(RequestError, match="fn must be a callback"):
        mods.from_graph_callback(3)
