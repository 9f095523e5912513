"""``flexsdpa rules``: every rule with its id, what it says and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from flexsdpa.eligibility.field import ours
from flexsdpa.eligibility.field.decide import BACKENDS
from flexsdpa.eligibility.field.row import SOURCES
from flexsdpa.engine import ENGINE
from flexsdpa.errors import RequestError, nearest

Line = tuple[str, str, str, str]
"""(whose, id, text, source)."""


def run_rules(words: Sequence[str]) -> None:
    """Prints the rules that have one of the words in their id, text or source, grouped by whose they are."""
    wanted = [word.lower() for word in words]
    found = [line for line in lines() if not wanted or any(word in " ".join(line).lower() for word in wanted)]
    if not found:
        hint = nearest(words[0], [line[1] for line in lines()])
        raise RequestError(f"no rule has {words[0]!r} in its id, text or source{hint}", field="words", got=words[0])
    before = ""
    for whose, name, text, source in found:
        if whose != before:
            typer.echo(f"{'' if not before else chr(10)}{whose}")
            before = whose
        typer.echo(f"  {name}: {text} ({source})")
    used = {word.split()[0] for line in found for word in line[3].split("; ")}
    typer.echo("\nsources")
    for word, meaning in SOURCES.items():
        if word in used:
            typer.echo(f"  {word}: {meaning}")


def lines() -> Iterator[Line]:
    """Rows about calls of every framework, then what flexsdpa's own backends refuse."""
    for backend, rows in BACKENDS.items():
        for row in rows if backend != "reference" else ():
            yield f"{backend}, whoever calls it", row.id, row.reason + (", left open" if row.opens else ""), row.source
    for row in (*ours.NOT_YET, ours.NO_BACKEND, *ours.CUDNN):
        yield "flexsdpa's own calls, told by eligibility.check(framework='flexsdpa')", row.id, row.reason, row.source
    for own in ENGINE.backends:
        for rule in own.rules:
            yield f"flexsdpa's {own.name} backend serves", rule.id, f"{rule.field}: {rule.need}", rule.source
