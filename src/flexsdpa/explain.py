"""Why a request goes where it goes: program, derivative, structure, key fields, and every backend's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from flexsdpa.eligibility.decide import Decision
from flexsdpa.eligibility.rule import Refusal
from flexsdpa.engine import ENGINE, Engine, derivative_for, versions
from flexsdpa.ir.canonical import program_of
from flexsdpa.ir.pretty import pretty
from flexsdpa.ir.program import Program
from flexsdpa.plans.key import PlanKey, plan_key
from flexsdpa.spec.request import AttentionRequest
from flexsdpa.structure.affine import Affine
from flexsdpa.structure.analyse import Band, analyse, describe

SHOWN_TEXT = 60
"""Longer key fields (the program) are shown by their beginning."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One direction of one call. ``str()`` is the full text; the fields are there for programs."""

    request: AttentionRequest
    decision: Decision
    program: str
    derivative: str
    structure: tuple[str, ...]
    notes: tuple[str, ...]
    key: PlanKey | None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.request.direction}: {self.request.summary()}"
        yield from _section("program", self.program.split("\n"))
        yield from _section("derivative", self.derivative.split("\n") if self.derivative else [])
        yield from _section("structure", self.structure)
        yield from _section("backends", self.verdicts())
        yield from _section("key", key_rows(self.key) if self.key else [])
        yield from _section("note", self.notes)

    def verdicts(self) -> Iterator[str]:
        """One line a backend, with one more for each reason of a refusal."""
        width = max(len(v.backend) for v in self.decision.verdicts)
        for verdict in self.decision.verdicts:
            chosen = verdict.backend == self.decision.backend
            state = "chosen" if chosen else "eligible, comes later" if verdict.eligible else "refused"
            yield f"{verdict.backend:<{width}}  {state}"
            for refusal in verdict.refusals:
                yield f"{'':<{width}}    {refusal}  [{refusal.rule}]"


def _section(title: str, lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    for n, line in enumerate(lines):
        yield f"  {title if n == 0 else '':<10}  {line}"


def key_rows(key: PlanKey) -> Iterator[str]:
    """The fields of a key, long ones by their beginning."""
    for field in fields(key):
        text = repr(getattr(key, field.name))
        yield f"{field.name} = {text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + '...'}"
    yield f"digest = {key.digest()}"


def explain(
    request: AttentionRequest, names: Sequence[str] = (), engine: Engine = ENGINE, declined: dict[str, Refusal] | None = None
) -> Explanation:
    """Explains a request without running it. names: what to call the captured tensors (t0, t1, ... by default). declined: what
    backends said of it at run time.

    The request's program may be a raw trace. Nothing is built and no counter moves.
    """
    decision = engine.decide(request, declined)
    program = program_of(decision.request.program)
    derived = derivative_for(decision.request)
    key = None
    if decision.backend is not None:
        backend = engine.backend(decision.backend)
        key = plan_key(
            decision.request, decision.backend, versions(backend, decision.request), backend.shape_class(decision.request)
        )
    return Explanation(
        request=decision.request,
        decision=decision,
        program=pretty(program, names),
        derivative=pretty(derived.program, names) if derived else "",
        structure=tuple(describe(program, analyse(program))),
        notes=(*_notes(decision.request, program), *_cautions(decision, engine)),
        key=key,
    )


def _cautions(decision: Decision, engine: Engine) -> Iterator[str]:
    """What the chosen backend only finds out when it builds or runs."""
    if decision.backend is not None and (text := getattr(engine.backend(decision.backend), "caution", "")):
        yield text


def _notes(request: AttentionRequest, program: Program) -> Iterator[str]:
    """What is legal but often not meant."""
    if request.device.described:
        yield request.device.described
    if request.device.note:
        yield request.device.note
    q_len, kv_len = request.q.shape[2], request.k.shape[2]
    clauses = analyse(program).clauses
    top_left = any(isinstance(c, Band) and c.upper == Affine(0, 0, 0, ()) for c in clauses)
    if top_left and q_len < kv_len:
        yield (
            f"positions start at 0, so query 0 of {q_len} sees key 0 of {kv_len} and no later one; "
            f"for decoding with a cache pass q_offset (here {kv_len - q_len})"
        )
