"""Fixtures of the PyTorch tests."""

import subprocess
import sys
import textwrap

import pytest
import torch

import flexsdpa


@pytest.fixture
def fresh_process():
    """Runs a script in a new Python process and gives what it printed; its failure is a failure of the test."""

    def run(script, timeout=180):
        command = [sys.executable, "-W", "error::UserWarning:flexsdpa", "-c", textwrap.dedent(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    return run


@pytest.fixture
def empty_cache():
    """The process's plan cache, emptied: builds and hits count from 0."""
    flexsdpa.cache_clear()
    return flexsdpa.cache_info


@pytest.fixture
def fresh_compiler():
    """torch.compile without anything compiled before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
