"""Releases of cuDNN in folders of their own, from the package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flexsdpa.errors import BuildError, RequestError

RELEASES: dict[str, str] = {"9.19.0": "9.19.0.56", "9.23.2": "9.23.2.1", "9.28.1": "9.28.1.4"}
"""Release -> the wheel of nvidia-cudnn-cu13 that was asked. Another release takes the newest wheel of it."""
COMMON: tuple[str, ...] = (
    "nvidia-cudnn-frontend==1.32.0", "nvidia-cuda-nvrtc==13.5.37", "nvidia-cuda-runtime==13.5.37", "nvidia-cublas==13.10.0.20",
)  # fmt: skip
DONE = ".complete"


def wheel_of(release: str) -> str:
    """The requirement for a release. Raises RequestError for what is no release."""
    if release in RELEASES:
        return f"nvidia-cudnn-cu13=={RELEASES[release]}"
    if len(parts := release.split(".")) != len(("major", "minor", "patch")) or not all(part.isdigit() for part in parts):
        raise RequestError(f"cudnn: expected three numbers with points, got {release!r}", field="cudnn", got=release)
    return f"nvidia-cudnn-cu13=={release}.*"


def fetched(folder: Path, requirements: tuple[str, ...]) -> Path:
    """The folder with these packages in it, fetched if it is not there whole. Raises BuildError with pip's words."""
    mark = folder / DONE
    if mark.exists() and mark.read_text() == "\n".join(requirements):
        return folder
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", str(folder), *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-2:]
        raise BuildError(f"{', '.join(requirements)} cannot be fetched, records stay as they were: {' '.join(words)[-400:]}")
    mark.write_text("\n".join(requirements))
    return folder
