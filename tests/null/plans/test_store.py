"""Artifacts on disk: whole or absent, never another key's, bounded, shared by processes."""

import os
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest

import flexsdpa
from flexsdpa.plans.key import ArtifactKey
from flexsdpa.plans.store import FORMAT, SUFFIX, ArtifactStore

KEY = ArtifactKey(
    "forward", "cudnn", (("flexsdpa", "1"), ("cudnn", "9.19.0")), "H200", (9, 0), "text",
    (("q", "bf16", (1, 2, 3, 4), (24, 12, 4, 1)),), (("native", "None"),),
)  # fmt: skip
OTHER = {
    "direction": "backward", "backend": "cute", "versions": (("flexsdpa", "1"), ("cudnn", "9.20.0")), "device_name": "H100",
    "device_capability": (9, 1), "program": "other text", "tensors": (("q", "bf16", (1, 2, 3, 4), (24, 4, 8, 1)),),
    "options": (("native", "Native()"),),
}  # fmt: skip


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXSDPA_CACHE_DIR", str(tmp_path))
    return ArtifactStore()


def files(store):
    return sorted(store.folder().glob(f"*{SUFFIX}")) if store.folder().is_dir() else []


def test_what_is_saved_is_loaded(store):
    assert store.load(KEY) is None
    for payload in (b"", b"plan", b"\n\x00\xff" * 1000):
        store.save(KEY, payload, "a request")
        assert store.load(KEY) == payload
    assert [(e.backend, e.direction, e.summary) for e in store.entries()] == [("cudnn", "forward", "a request")]


@pytest.mark.parametrize("field", [field.name for field in fields(ArtifactKey)])
def test_every_field_of_the_key_changes_the_file(store, field):
    store.save(KEY, b"plan")
    assert store.load(replace(KEY, **{field: OTHER[field]})) is None


def test_a_file_is_a_name_of_its_key_alone(store):
    store.save(KEY, b"plan")
    assert [path.name for path in files(store)] == [KEY.digest() + SUFFIX]
    assert len(KEY.digest()) == 64


DAMAGE = {
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "a flipped bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "empty": lambda data: b"",
    "no header": lambda data: b"plan",
    "another header": lambda data: b"[1]\n" + data,
    "binary": lambda data: os.urandom(200),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_removed_with_one_warning(store, name, caplog):
    for key in (KEY, replace(KEY, program="other")):
        store.save(key, b"plan" * 100)
        (path,) = [p for p in files(store) if p.name.startswith(key.digest())]
        path.write_bytes(DAMAGE[name](path.read_bytes()))
        assert store.load(key) is None
        assert not path.exists()
    assert len([r for r in caplog.records if "damaged or foreign" in r.getMessage()]) == 1
    store.save(KEY, b"again")
    assert store.load(KEY) == b"again"


def test_a_file_under_anothers_name_is_not_taken(store):
    store.save(KEY, b"plan")
    other = replace(KEY, program="other")
    files(store)[0].rename(store.folder() / f"{other.digest()}{SUFFIX}")
    assert store.load(other) is None


def test_the_least_recently_used_goes_first(store):
    keys = [replace(KEY, program=str(n)) for n in range(6)]
    with flexsdpa.options(cache_bytes=4000):
        for n, key in enumerate(keys):
            store.save(key, bytes(900))
            os.utime(store.folder() / f"{key.digest()}{SUFFIX}", (n, n))
            if n == 2:
                assert store.load(keys[0]) is not None  # used just now: it stays
    kept = [key for key in keys if store.load(key) is not None]
    assert keys[0] in kept
    assert keys[1] not in kept
    assert sum(path.stat().st_size for path in files(store)) <= 4000


def test_nothing_is_left_of_a_save_that_failed(store, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    store.save(KEY, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        store.save(replace(KEY, program="other"), b"plan")
    assert "No space left on device" in caplog.text
    assert store.load(KEY) == b"first"
    assert list(store.folder().iterdir()) == files(store)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs a folder that cannot be made")
def test_a_folder_that_cannot_be_made_is_no_error(caplog):
    with flexsdpa.options(cache_dir="/proc/nowhere"):
        store = ArtifactStore()
        store.save(KEY, b"plan")
        store.save(KEY, b"plan")
        assert store.load(KEY) is None
        assert store.entries() == []
    assert len([r for r in caplog.records if "not kept on disk" in r.getMessage()]) == 1


def test_off_is_off():
    with flexsdpa.options(cache_dir="off"):
        store = ArtifactStore()
        store.save(KEY, b"plan")
        assert (store.folder(), store.load(KEY), store.entries(), store.clear()) == (None, None, [], 0)


def test_the_folder_is_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ArtifactStore().folder() == tmp_path / "flexsdpa" / FORMAT
    monkeypatch.setenv("FLEXSDPA_CACHE_DIR", str(tmp_path / "mine"))
    assert ArtifactStore().folder() == tmp_path / "mine" / FORMAT


def test_clear_removes_every_format(store):
    store.save(KEY, b"plan")
    old = store.folder().parent / "flexsdpa-artifacts-0"
    old.mkdir()
    (old / f"x{SUFFIX}").write_bytes(b"old")
    (store.folder().parent / "somebody's.txt").write_text("stays")
    assert store.clear() == 2
    assert store.load(KEY) is None
    assert (store.folder().parent / "somebody's.txt").exists()


def test_threads_may_save_and_load_at_once(store):
    problems = []

    def work(n):
        for round_ in range(30):
            store.save(KEY, bytes([n]) * 5000)
            found = store.load(KEY)
            if found is None or len(set(found)) != 1 or len(found) != 5000:
                problems.append((n, round_))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_another_process_finds_it(store, tmp_path):
    store.save(KEY, b"plan")
    code = f"from flexsdpa.plans.store import STORE; from flexsdpa.plans.key import ArtifactKey; print(STORE.load({KEY!r}))"
    env = {**os.environ, "FLEXSDPA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert found.stdout.strip() == "b'plan'"
