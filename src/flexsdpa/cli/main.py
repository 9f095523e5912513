"""``flexsdpa``: demo, doctor, explain, draw, cache, matrix, rules, check-cases, oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from flexsdpa.errors import FlexSDPAError, RequestError
from flexsdpa.version import __version__

Result = TypeVar("Result")
app = typer.Typer(
    help="Attention with any score function: look at mods, at decisions and at this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ScoreOption = Annotated[
    list[str], typer.Option("--score-mod", "-s", help="One of ours (softcap:30) or module:function. May be repeated.")
]
MaskOption = Annotated[
    list[str],
    typer.Option("--mask-mod", "-m", help="One of ours (sliding_window:512) or module:function. Repeated: all must hold."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flexsdpa {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def demo(
    quick: Annotated[bool, typer.Option(help="Shorter sequences.")] = False,
) -> None:
    """Runs a table of mods and a real sentence encoder, and compares both with what they should give."""
    from flexsdpa.cli.demo import run_demo

    guarded(lambda: run_demo(quick))


@app.command()
def doctor() -> None:
    """Frameworks, devices and their families, library versions, and the options in force."""
    from flexsdpa.cli.doctor import run_doctor

    run_doctor()


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every kernel that is kept.")] = False,
) -> None:
    """Built kernels that are kept on disk: where, how many, how large. FLEXSDPA_CACHE_DIR moves them, off turns them off."""
    from flexsdpa.cli.cache import run_cache

    run_cache(clear)


@app.command()
def matrix(
    release: Annotated[
        list[str], typer.Option("--release", "--cudnn", help="A cuDNN release, for example 9.28.1. May be repeated.")
    ] = [],  # noqa: B006
    card: Annotated[
        list[str], typer.Option("--card", "--device", help="A card, for example sm_121 or 12.1. May be repeated.")
    ] = [],  # noqa: B006
    direction: Annotated[str, typer.Option(help="forward, backward (training) or both.")] = "both",
    backend: Annotated[str, typer.Option(help="cudnn, fa2, fa3, fa4, interval, flex or reference.")] = "cudnn",
    form: Annotated[str, typer.Option("--format", help="terminal, markdown or json.")] = "terminal",
    framework: Annotated[
        str, typer.Option(help="Who calls: torch or jax (TransformerEngine), flexsdpa, or library for nobody.")
    ] = "torch",
    out: Annotated[
        Path | None, typer.Option(help="Write to a file: markdown or JSON, else a heat map (needs matplotlib).")
    ] = None,
) -> None:
    """What cuDNN, or another backend, serves, by feature, card, release and direction, for calls of other frameworks too."""
    from flexsdpa.cli.matrix import run_matrix

    guarded(lambda: run_matrix(release, card, direction, form, out, backend, framework))


@app.command()
def rules(
    words: Annotated[list[str], typer.Argument(help="Only rules with one of these words in id, text or source.")] = [],  # noqa: B006
) -> None:
    """Every rule: its stable id, what it says, and where it comes from."""
    from flexsdpa.cli.rules import run_rules

    guarded(lambda: run_rules(words))


@app.command("check-cases")
def check_cases(
    file: Annotated[Path, typer.Argument(help="CSV with the columns of tests/data/eligibility_cases.csv.")],
) -> None:
    """cuDNN's rules as flexsdpa holds them, against a file of calls with known answers. Exit status 1 where they disagree."""
    from flexsdpa.cli.check_cases import run_check_cases

    raise typer.Exit(guarded(lambda: run_check_cases(file)))


oracle_app = typer.Typer(help="Asks cuDNN itself, without a GPU, what it plans for a described card.", no_args_is_help=True)
app.add_typer(oracle_app, name="oracle")


RecordsOption = Annotated[Path | None, typer.Option(help="The folder of the recorded answers; by default the package's own.")]


@oracle_app.command("run")
def oracle_run(
    words: Annotated[list[str], typer.Argument(help="Only questions with one of these words in their names.")] = [],  # noqa: B006
    release: Annotated[list[str], typer.Option(help="A cuDNN release; may be repeated. By default those on record.")] = [],  # noqa: B006
    card: Annotated[list[str], typer.Option(help="A card such as sm_121 or 12.1; may be repeated. By default all.")] = [],  # noqa: B006
    workers: Annotated[int, typer.Option(help="Child processes at a time; 0: one a core.", min=0)] = 0,
    folder: Annotated[Path | None, typer.Option(help="Where wheels of cuDNN are kept, about 1 GB a release.")] = None,
    records: RecordsOption = None,
) -> None:
    """Downloads cuDNN and asks what has no answer yet; goes on where an earlier run stopped. Needs a C compiler, no GPU."""
    from flexsdpa.cli.oracle import run_oracle

    guarded(lambda: run_oracle(release, words, card, workers, folder, records))


@oracle_app.command("show")
def oracle_show(
    words: Annotated[list[str], typer.Argument(help="Words in the names of questions; none: what is on record.")] = [],  # noqa: B006
    names: Annotated[bool, typer.Option("--names", help="Only list the questions.")] = False,
    records: RecordsOption = None,
) -> None:
    """What cuDNN said: the recorded releases, or every answer to some questions."""
    from flexsdpa.cli.oracle import run_show

    guarded(lambda: run_show(words, records, names))


@oracle_app.command("check")
def oracle_check(
    explained: Annotated[bool, typer.Option("--explained", help="Also print the explanations and what they cover.")] = False,
    records: RecordsOption = None,
) -> None:
    """Compares the rules with every recorded answer. Exit status 1 where one is not explained."""
    from flexsdpa.cli.oracle import run_check

    raise typer.Exit(guarded(lambda: run_check(explained, records)))


@app.command()
def explain(
    context: typer.Context,
    score_mod: ScoreOption = [],  # noqa: B006
    mask_mod: MaskOption = [],  # noqa: B006
    shape: Annotated[str, typer.Option(help="q as batch,heads,q_len,head_dim.")] = "1,8,1024,64",
    kv_heads: Annotated[int, typer.Option(help="Kv heads; 0: as many as query heads.")] = 0,
    kv_len: Annotated[int, typer.Option(help="Keys; 0: as many as queries.")] = 0,
    v_head_dim: Annotated[int, typer.Option(help="Head dim of v; 0: that of q.")] = 0,
    dtype: Annotated[str, typer.Option(help="bf16, f16, f32 or f64 (fp16, fp32, fp64 too).")] = "bf16",
    device: Annotated[str, typer.Option(help="cpu, cuda:0, or a described card: sm_121 or 12.1. By default cpu.")] = "",
    cudnn: Annotated[str, typer.Option(help="The described card's cuDNN, for example 9.28.1.")] = "",
    backend: Annotated[str, typer.Option(help="A backend's name; by default what FLEXSDPA_BACKEND says.")] = "",
    text: Annotated[bool, typer.Option("--text", help="Also print the canonical program text, which is the key.")] = False,
    learned: Annotated[bool, typer.Option("--learned", help="Gradients of captured float tensors are wanted too.")] = False,
    replay: Annotated[
        Path | None, typer.Option("--from", help="Explain the requests that FLEXSDPA_REQUEST_LOG wrote to this file instead.")
    ] = None,
) -> None:
    """Program, derivative, structure, key and every backend's verdict of a call, without running it.

    \b
    flexsdpa explain -s softcap:30 -m causal --shape 4,32,4096,128 --kv-heads 8 --dtype bf16
    flexsdpa explain -s mymodels.attention:my_score_mod --device sm_90
    flexsdpa explain --from requests.jsonl --device sm_121 --cudnn 9.28.1
    """
    from flexsdpa.cli.explain import run_explain, run_replay
    from flexsdpa.cli.modspec import Sizes
    from flexsdpa.spec.device import Device

    def run() -> None:
        if replay is not None:
            alone("--from", context, ("replay", "device", "cudnn", "backend", "text"))
            return run_replay(replay, device, cudnn, backend, text)
        sizes = Sizes.parse(shape, kv_heads, kv_len, v_head_dim)
        run_explain(score_mod, mask_mod, sizes, dtype, Device.parse(device or "cpu", cudnn), backend, text, learned)

    guarded(run)


@app.command()
def draw(
    score_mod: ScoreOption = [],  # noqa: B006
    mask_mod: MaskOption = [],  # noqa: B006
    q_len: Annotated[int, typer.Option(help="Queries.")] = 256,
    kv_len: Annotated[int, typer.Option(help="Keys; 0: as many as queries.")] = 0,
    head: Annotated[int, typer.Option(help="Which query head to draw.")] = 0,
    heads: Annotated[int, typer.Option(help="How many query heads there are.")] = 8,
    batch: Annotated[int, typer.Option(help="Which batch to draw.")] = 0,
    block: Annotated[int, typer.Option(help="Side of a block, in tokens.")] = 32,
    out: Annotated[Path | None, typer.Option(help="Write a PNG (needs matplotlib) instead of drawing in the terminal.")] = None,
) -> None:
    """Draws a mask, what a score mod does to a score of 0, and which blocks are empty, full or partial."""
    from flexsdpa.cli.draw import run_draw

    guarded(lambda: run_draw(score_mod, mask_mod, q_len, kv_len or q_len, heads, head, batch, block, out))


def alone(option: str, context: typer.Context, allowed: tuple[str, ...]) -> None:
    """Raises RequestError where another option is given that this one leaves no meaning."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise RequestError(
                f"{option} takes the call from the file, so {parameter.opts[0]} has no meaning beside it", field="from"
            )


def guarded(run: Callable[[], Result]) -> Result:
    """What ``run`` gives. Errors that flexsdpa raises on purpose are messages, not tracebacks."""
    try:
        return run()
    except FlexSDPAError as error:
        typer.secho(f"{type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
