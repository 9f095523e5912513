"""Threads, forks and fresh processes."""

import multiprocessing
import os
import threading

import pytest
import torch

import flexsdpa
from flexsdpa import mods
from flexsdpa.testing.inputs import random_qkv, random_tensor
from flexsdpa.testing.oracles import dense_attention
from flexsdpa.torch import attention

THREADS = 8
MOD = lambda s, b, h, i, j: s * 1.5 - 0.25 * (i - j)


def make_mod(n):
    """A mod whose program is its own, and a mask."""
    return eval(f"lambda s, b, h, i, j: s * {n + 2} - {n} * (i - j) // 3 + {n / 7} * b"), mods.sliding_window(n + 1)


def results(n, dtype=torch.float32):
    leaves = [x.requires_grad_() for x in random_qkv(2, 2, 30 + n, 8, dtype=dtype, seed=n)]
    score_mod, mask_mod = make_mod(n)
    out = attention(*leaves, score_mod=score_mod, mask_mod=mask_mod)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


def in_threads(work):
    """Runs work(n) in THREADS threads that start together; raises the first error."""
    start, errors = threading.Barrier(THREADS), []

    def run(n):
        try:
            start.wait()
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_eight_threads_with_their_own_mods_and_first_calls_at_once(empty_cache):
    found = [[] for _ in range(THREADS)]

    def work(n):
        for _ in range(5):
            found[n].append(results(n))

    in_threads(work)
    assert empty_cache().builds == 2 * THREADS
    for n, rounds in enumerate(found):
        expected = results(n)
        assert all(torch.equal(x, y) for seen in rounds for x, y in zip(seen, expected, strict=True))


def test_eight_threads_with_one_mod_build_it_once(empty_cache):
    in_threads(lambda n: [results(3) for _ in range(3)])
    assert empty_cache().builds == 2


def test_threads_have_their_own_options():
    seen = {}

    def work(n):
        with flexsdpa.options(tile_q=n + 1, backend="reference" if n % 2 else "auto"):
            results(n)
            seen[n] = (flexsdpa.config.get("tile_q"), flexsdpa.config.get("backend"))

    in_threads(work)
    assert seen == {n: (n + 1, "reference" if n % 2 else "auto") for n in range(THREADS)}


def test_threads_that_evict_each_others_plans_stay_right():
    expected = [results(n) for n in range(THREADS)]
    wrong = []

    def work(n):
        with flexsdpa.options(plan_cache_size=1):
            for _ in range(10):
                wrong.extend(n for x, y in zip(results(n), expected[n], strict=True) if not torch.equal(x, y))

    in_threads(work)
    assert not wrong


def test_an_error_in_one_thread_is_that_threads_alone():
    failed = []

    def work(n):
        try:
            table = torch.zeros(1 if n % 2 else 100)
            attention(*random_qkv(1, 1, 20, 4), score_mod=lambda s, b, h, i, j: s + table[j])
        except flexsdpa.ReadError:
            failed.append(n)

    in_threads(work)
    assert sorted(failed) == [1, 3, 5, 7]


def test_a_forked_child_computes_with_the_parents_plans(empty_cache):
    def forward():  # alone: torch's own autograd threads do not survive a fork
        return attention(*random_qkv(2, 2, 31, 8), score_mod=MOD, mask_mod=mods.causal)

    expected, builds = forward(), empty_cache().builds
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # nothing of pytest may run here
            torch.set_num_threads(1)
            os.write(write, b"%d %d" % (torch.equal(forward(), expected), flexsdpa.cache_info().builds - builds))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"1 0"
    os.waitpid(child, 0)


def test_a_fork_while_other_threads_build_does_not_hang():
    stop = threading.Event()

    def keep_building():
        n = 0
        while not stop.is_set():
            n += 1
            flexsdpa.engine.ENGINE.cache.get_or_build(("test", n), object)

    builders = [threading.Thread(target=keep_building) for _ in range(3)]
    for builder in builders:
        builder.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                flexsdpa.engine.ENGINE.cache.get_or_build("child", object)
                flexsdpa.cache_info()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        stop.set()
        for builder in builders:
            builder.join()
        flexsdpa.cache_clear()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_data_loader_worker_may_make_masks():
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        mask = pool.apply(make_mask_in_worker)
    q, k, v = random_qkv(2, 2, 8, 8)
    out = attention(q, k, v, mask_mod=mask)
    expected, _ = dense_attention(q, k, v, None, mods.document(torch.arange(16).view(2, 8) // 3))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def make_mask_in_worker():
    return flexsdpa.torch.MaskMod(mods.document(torch.arange(16).view(2, 8) // 3))


def test_backward_may_run_in_another_thread():
    """Backward may run in another thread; what it computes must not depend on that."""
    leaves = [x.requires_grad_() for x in random_qkv(2, 2, 50, 8)]
    table = random_tensor(2, seed=3).requires_grad_()
    with flexsdpa.options(tile_q=3):
        out = attention(*leaves, score_mod=lambda s, b, h, i, j: s * table[h])
    grads = []
    worker = threading.Thread(target=lambda: grads.extend(torch.autograd.grad(out.sum(), [*leaves, table])))
    worker.start()
    worker.join()
    expected, _ = dense_attention(*leaves, lambda s, b, h, i, j: s * table[h])
    torch.testing.assert_close(grads, list(torch.autograd.grad(expected.sum(), [*leaves, table])), rtol=1e-4, atol=1e-5)
