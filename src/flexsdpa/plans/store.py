"""ArtifactStore: built kernels on disk, so that a second process need not build again.

One file an artifact, named by its key's digest, in a folder per format version. A file holds a header (JSON, one line)
and the bytes. Files appear whole or not at all; one that is damaged or belongs to another key is removed with one
warning, and the kernel is built again. The folder is bounded: what was used least recently goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flexsdpa import config
from flexsdpa.logs import logger
from flexsdpa.plans.key import ArtifactKey

FORMAT = "flexsdpa-artifacts-1"
SUFFIX = ".artifact"


@dataclass(frozen=True, slots=True)
class Entry:
    """One artifact on disk. used: seconds since the epoch."""

    path: Path
    backend: str
    direction: str
    summary: str
    size_bytes: int
    used: float


class ArtifactStore:
    """Artifacts by key. Never raises: a store that cannot be used is one without entries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def folder(self) -> Path | None:
        """Where artifacts live; None where the option ``cache_dir`` is ``off``."""
        named = str(config.get("cache_dir"))
        if named == "off":
            return None
        if named:
            return Path(named).expanduser() / FORMAT
        return user_cache() / FORMAT

    def load(self, key: ArtifactKey) -> bytes | None:
        """The artifact of a key, or None."""
        path = self._path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = _payload(data, key)
        if payload is None:
            self._warn("damaged", f"removed a damaged or foreign artifact: {path.name}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def save(self, key: ArtifactKey, payload: bytes, summary: str = "") -> None:
        """Publishes an artifact, then removes the oldest beyond the bound."""
        path = self._path(key)
        if path is None:
            return
        header = {"key": key.digest(), "backend": key.backend, "direction": key.direction, "summary": summary,
                  "bytes": len(payload), "checksum": _checksum(payload)}  # fmt: skip
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, json.dumps(header).encode() + b"\n" + payload)
            self._prune(path.parent)
        except OSError as error:
            self._warn("unwritable", f"kernels are not kept on disk: {error.strerror} ({path.parent})")

    def entries(self) -> list[Entry]:
        """What is there, most recently used first."""
        folder = self.folder()
        found = [entry for path in _files(folder) if (entry := _entry(path)) is not None] if folder else []
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Removes every artifact, of older formats too; returns how many."""
        folder = self.folder()
        if folder is None or not folder.parent.is_dir():
            return 0
        count = 0
        for old in folder.parent.glob("flexsdpa-artifacts-*"):
            for path in _files(old):
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += 1
        return count

    def _path(self, key: ArtifactKey) -> Path | None:
        folder = self.folder()
        return None if folder is None else folder / f"{key.digest()}{SUFFIX}"

    def _prune(self, folder: Path) -> None:
        limit = int(config.get("cache_bytes"))
        with self._lock:
            known = [(stat.st_mtime, stat.st_size, path) for path in _files(folder) if (stat := _stat(path)) is not None]
            total = sum(size for _, size, _ in known)
            for _, size, path in sorted(known):
                if total <= limit:
                    break
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(text)


def user_cache() -> Path:
    """The user's folder for what flexsdpa can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "flexsdpa"


def publish(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file that appears whole, with these permissions, or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from folder.glob(f"*{SUFFIX}")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _entry(path: Path) -> Entry | None:
    stat = _stat(path)
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline(1 << 16))
        return (
            Entry(path, header["backend"], header["direction"], header["summary"], stat.st_size, stat.st_mtime) if stat else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _payload(data: bytes, key: ArtifactKey) -> bytes | None:
    head, newline, payload = data.partition(b"\n")
    try:
        header = json.loads(head)
        whole = newline and header["key"] == key.digest() and header["bytes"] == len(payload)
        return payload if whole and header["checksum"] == _checksum(payload) else None
    except (ValueError, KeyError, TypeError):
        return None


def _checksum(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


STORE = ArtifactStore()
