"""Puts the questions that have no answer yet to the library, in child processes, and keeps what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flexsdpa.errors import BuildError
from flexsdpa.oracle.questions import QUESTIONS
from flexsdpa.oracle.records import BROKEN, FOLDER, NUMBERS, Cell, Records, load
from flexsdpa.oracle.standin import build_standin
from flexsdpa.oracle.wheels import COMMON, fetched, wheel_of

PATIENCE_S = 300.0
"""How long one plan may take. The slowest that was seen took some seconds."""
SAVE_EVERY = 50
SILENT = "refused without a word"
COMMAND = (sys.executable, "-m", "flexsdpa.oracle.child")

Job = tuple[str, str, int]
"""(question, direction, card)."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where one release lives: what the child finds on its paths."""

    libraries: tuple[Path, ...]
    packages: Path

    def environment(self) -> dict[str, str]:
        """The child's own environment. The stand-in is on this path alone, never on that of a real run."""
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(self.packages), *([inherited] if inherited else [])]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, self.libraries)), "PYTHONPATH": ":".join(paths)}


def prepare(release: str, folder: Path) -> Site:
    """Fetches a release and builds the stand-in. Raises RequestError for what is no release, BuildError with what is missing."""
    wheel = wheel_of(release)
    driver = build_standin(folder / "driver")
    common = fetched(folder / "common", COMMON)
    cudnn = fetched(folder / release, (wheel,))
    return Site((driver, cudnn / "nvidia" / "cudnn" / "lib", common / "nvidia" / "cu13" / "lib"), common)


class Child:
    """One child process and its two pipes. A child that dies over a question is started anew for the next."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.process: subprocess.Popen[str] | None = None
        self.tells: dict[str, str] = {}
        self.errors: IO[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the child lives)
            self.process = subprocess.Popen(
                COMMAND, env=self.site.environment(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            )  # fmt: skip
            line = self.read()
            if not line:
                self.errors.seek(0)
                words = " ".join(self.errors.read().split())
                self.close()
                raise BuildError(f"the oracle's child process does not start: {words[-400:]}")
            self.tells = json.loads(line)
        return self.process

    def read(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, self.process.kill)
        alarm.start()
        try:
            return self.process.stdout.readline()
        finally:
            alarm.cancel()

    def ask(self, question: dict[str, Any]) -> str:
        """The reason of a refusal; empty where a plan was built."""
        process = self.start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = self.read()
        except BrokenPipeError:
            line = ""
        if not line:
            process.wait()
            self.close()
            return f"{BROKEN}the child process died or took too long (exit status {process.returncode})"
        found: dict[str, str] = json.loads(line)
        reason = found["reason"] or SILENT
        return {"yes": "", "no": reason, "broken": BROKEN + reason}[found["verdict"]]

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
        if self.errors is not None:
            self.errors.close()


def pending(records: Records, names: Sequence[str], cards: Sequence[int]) -> list[Job]:
    """What has no answer yet."""
    return [job for job in records.missing() if job[0] in names and job[2] in cards]


def run(
    release: str,
    folder: Path,
    names: Sequence[str] = tuple(QUESTIONS),
    cards: Sequence[int] = NUMBERS,
    workers: int = 2,
    records_folder: Path = FOLDER,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Records:
    """Asks one release what it has not been asked, and forgets what is asked no more. Answers are saved as they come, also
    those of a run that is interrupted, so that the next one goes on. What could not be put is tried again.

    folder: where wheels and the stand-in are kept. records_folder: where answers are; by default those of the package.
    Raises RequestError for what is no release, BuildError if one cannot be had.
    """
    file = records_folder / f"{release}.csv"
    records = load(file) if file.exists() else Records(release, "")
    jobs = pending(records, names, cards)
    progress(0, len(jobs))
    if not jobs:
        if records.stale():
            records.save(records_folder)
        return records
    site = prepare(release, folder)
    own, children = threading.local(), list[Child]()

    def work(job: Job) -> Cell:
        if not hasattr(own, "child"):
            own.child = Child(site)
            children.append(own.child)
        reason = own.child.ask(as_asked(release, job))
        return Cell(release, job[0], job[1], job[2], reason)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            for n, future in enumerate(as_completed(futures), 1):
                records.add(future.result())
                progress(n, len(jobs))
                if n % SAVE_EVERY == 0:
                    _save(records, children, records_folder)
        finally:
            if any(child.tells for child in children):
                _save(records, children, records_folder)
            pool.shutdown(cancel_futures=True)
            for child in children:
                child.close()
    return records


def as_asked(release: str, job: Job) -> dict[str, Any]:
    """A job as the child reads it."""
    name, direction, card = job
    question = QUESTIONS[name]
    return {
        "id": name,
        "card": card,
        "direction": direction,
        "case": question.arguments(card, release, direction),
        "statistics": question.statistics,
        "program": question.program,
    }


def _save(records: Records, children: Sequence[Child], folder: Path) -> None:
    tells = next((child.tells for child in children if child.tells), {})
    records.frontend = tells.get("frontend", records.frontend)
    records.save(folder)
