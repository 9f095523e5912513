"""Builds the stand-in for the driver library with the system's C compiler."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from flexsdpa.errors import BuildError

SONAME = "libcuda.so.1"
COMPILERS = ("cc", "gcc", "clang")


def build_standin(folder: Path) -> Path:
    """The folder that holds the stand-in, which goes first on the child's library path. Raises BuildError."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(
            "the oracle needs a C compiler for its stand-in of the driver library, and none of "
            f"{', '.join(COMPILERS)} is on the path: install gcc, or use the records that come with the package"
        )
    source = files("flexsdpa.oracle") / "standin.c"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / SONAME
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{SONAME}", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"the stand-in of the driver library does not compile: {done.stderr.strip()[-400:]}")
    return folder
