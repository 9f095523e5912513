"""``flexsdpa cache``: kernels that are kept on disk."""

from __future__ import annotations

import datetime

from rich.console import Console
from rich.table import Table

from flexsdpa.plans.store import STORE

SHOWN = 20


def run_cache(clear: bool) -> None:
    """Prints the folder and its newest entries, or empties it."""
    console = Console()
    folder = STORE.folder()
    if folder is None:
        console.print("kernels are not kept on disk (FLEXSDPA_CACHE_DIR=off)")
        return
    if clear:
        console.print(f"removed {STORE.clear()} kernels from {folder}")
        return
    entries = STORE.entries()
    total = sum(entry.size_bytes for entry in entries)
    console.print(f"{len(entries)} kernels, {total / 1e6:.1f} MB, in {folder}")
    if not entries:
        return
    table = Table("backend", "direction", "last used", "kB", "request")
    for entry in entries[:SHOWN]:
        used = datetime.datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
        table.add_row(entry.backend, entry.direction, used, f"{entry.size_bytes / 1e3:.0f}", entry.summary)
    console.print(table)
    if len(entries) > SHOWN:
        console.print(f"and {len(entries) - SHOWN} more")
