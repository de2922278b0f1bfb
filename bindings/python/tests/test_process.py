"""Guards the process: threads, signals, exits, forks, spawns and memory, each in its own interpreter."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pictures
import pytest
from amounts import amount
from children import HEAD, HIDE, finish, run, start


def test_importing_starts_no_thread_and_does_not_import_torch(small):
    run(
        """
        assert len(os.listdir("/proc/self/task")) == 1
        assert "torch" not in sys.modules
        loader = make()
        len(loader), loader.explain(), loader.state_dict(), loader.dataset.targets
        assert native_threads() == 0 and "torch" not in sys.modules
        """,
        small,
        torch=True,
    )


def test_threads_end_with_the_last_loader_or_the_process_and_are_as_many_as_asked(small):
    out = run(
        """
        def settled(number):
            # A thread takes its name when it first runs.
            end = time.monotonic() + 60
            while native_threads() != number and time.monotonic() < end: time.sleep(0.01)
            return native_threads()

        loader = make()
        next(iter(loader))
        print(settled(5), loader.metrics()["threads"])
        loader.close()
        forebay.configure(threads=3)
        next(iter(loader))
        print(settled(3))
        """,
        small,
        FOREBAY_THREADS=5,
    )
    assert out.split() == ["5", "5", "3"]


def test_break_leaves_the_process_able_to_end(small):
    run("for batch in make(): break", small)


def test_falling_off_the_end_with_live_iterators_and_batches_ends(small):
    run(
        """
        a, b = make(), make(seed=2)
        first, second = iter(a), iter(b)
        kept = [next(first), next(second), next(second)]
        """,
        small,
    )


def test_an_exception_ends_with_status_1_and_only_its_traceback(small):
    status, _, err = finish(start("for batch in make(): raise KeyError('mine')", small))
    assert status == 1
    assert err.startswith("Traceback") and err.strip().endswith("KeyError: 'mine'") and "panicked" not in err


@pytest.mark.parametrize("status", [0, 7])
def test_sys_exit_with_a_live_iterator_ends_with_its_status(small, status):
    code = f"for batch in make(): sys.exit({status})"
    assert finish(start(code, small)) == (status, "", "")


def test_exit_from_another_thread_that_waits_for_batches(small):
    run(
        """
        loader = make(sampler=iter(lambda: 1, 0), shuffle=None)
        def draw():
            for batch in loader: pass
        threading.Thread(target=draw, daemon=True).start()
        time.sleep(0.3)
        """,
        small,
    )


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Pictures that take long enough to be waiting for them."""
    root = tmp_path_factory.mktemp("slow")
    (root / "a").mkdir()
    pictures.generate(3000, 3000).save(root / "a" / "0.jpg", progressive=True)
    for i in range(1, 400):
        os.link(root / "a" / "0.jpg", root / "a" / f"{i}.jpg")
    return root


def test_ctrl_c_while_waiting_is_a_keyboard_interrupt(slow):
    child = start(
        """
        loader = make(batch_size=200)
        print("ready", flush=True)
        next(iter(loader))
        """,
        slow,
        FOREBAY_THREADS=1,
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    status, _, err = finish(child)
    # Not the batch, which takes a minute.
    assert status in (130, -signal.SIGINT) and err.strip().endswith("KeyboardInterrupt")


def test_a_timeout_is_a_timeout_error_and_the_loader_can_be_used_again(slow):
    run(
        """
        loader = make(batch_size=100, timeout=0.5)
        try:
            next(iter(loader))
            raise SystemExit("no timeout")
        except TimeoutError as error:
            assert "timed out after 0.5" in str(error)
        loader.timeout = 0
        loader.batch_size = None
        """,
        slow,
        FOREBAY_THREADS=1,
    )


def test_an_unstarted_loader_works_in_a_forked_child(small):
    run(
        """
        loader = make()
        pid = os.fork()
        if pid == 0:
            n = sum(len(targets) for _, targets in loader)
            os._exit(0 if n == 97 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        small,
    )


def test_a_started_loader_raises_in_a_forked_child_and_a_new_one_works_there(small):
    run(
        """
        loader = make()
        iterator = iter(loader)
        images, targets = next(iterator)
        total = images.sum()
        pid = os.fork()
        if pid == 0:
            try:
                for use in (lambda: next(iterator), lambda: next(iter(loader)), lambda: loader.quarantine):
                    try:
                        use()
                        os._exit(3)
                    except forebay.errors.ForkError as error:
                        assert "fork" in str(error)
                assert images.sum() == total
                images[:] = 0
                del images, targets
                loader.close()
                del iterator, loader
                fresh = make(seed=9)
                assert sum(len(targets) for _, targets in fresh) == 97
                sys.exit(0)
            except SystemExit:
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(4)
        assert os.waitpid(pid, 0)[1] == 0
        assert images.sum() == total, "the child's writes are its own"
        assert sum(len(targets) for _, targets in iterator) == 97 - 8
        """,
        small,
    )


def test_a_forked_child_that_exits_normally_runs_no_destructor_of_ours(small):
    run(
        """
        loader = make()
        iterator = iter(loader)
        batch = next(iterator)
        pid = os.fork()
        if pid == 0:
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        next(iterator)
        """,
        small,
    )


def test_a_loader_pickles_into_a_spawned_process_and_goes_on_there(small, tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(
        HIDE
        + HEAD
        + textwrap.dedent(
            """
            import multiprocessing

            def count(loader, queue):
                queue.put([targets.tolist() for _, targets in loader])

            if __name__ == "__main__":
                loader, twin = make(), make()
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                for _ in range(2):
                    want = [targets.tolist() for _, targets in twin]
                    child = context.Process(target=count, args=(loader, queue))
                    child.start()
                    assert queue.get(timeout=60) == want
                    child.join()
                    assert [targets.tolist() for _, targets in loader] == want
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, small], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_torch_batches_are_numpy_arrays(small):
    run(
        """
        import numpy
        steps = [*crop, {"op": "to_float", "scale": True}]
        with make(transform=steps, on_error="substitute") as loader:
            batches = list(loader)
            assert sum(len(t) for _, t in batches) == 97
            images, targets = batches[0]
            assert isinstance(images, numpy.ndarray) and images.dtype == numpy.float32
            assert images.shape == (8, 3, 16, 16) and targets.dtype == numpy.int64
            assert loader.valid.dtype == bool and loader.valid.all()
            images[:] = 0
        with make(output="float16/channels_last") as loader:
            images, _ = next(iter(loader))
            assert images.dtype == numpy.float16 and images.shape == (8, 3, 16, 16)
            assert images.transpose(0, 2, 3, 1).flags.c_contiguous
        for bad, options in ((TypeError, {"output": "bfloat16"}), (RuntimeError, {"pin_memory": True})):
            try:
                next(iter(make(**options)))
                raise SystemExit("no error")
            except bad:
                pass
        assert sys.modules["torch"] is None
        """,
        small,
    )


def test_kept_batches_keep_their_values_and_writing_harms_no_other(small):
    run(
        """
        with make() as loader:
            kept = list(loader)
            loader.set_epoch(0)
            for (images, targets), (again, same) in zip(kept, loader, strict=True):
                assert (images == again).all() and (targets == same).all()
                again[:] = 7
                same[:] = 7
            assert loader.metrics()["copied_batches"] > 0
            loader.set_epoch(0)
            assert all((a[0] == b[0]).all() for a, b in zip(kept, loader, strict=True))
        """,
        small,
    )


def test_tensors_of_torch_are_the_jobs_own_memory_and_cross_a_fork(small):
    run(
        """
        import warnings; warnings.simplefilter("ignore")
        iterator = iter(make())
        images, targets = next(iterator)
        total = int(images.long().sum())
        pid = os.fork()
        if pid == 0:
            ok = int(images.long().sum()) == total
            images.zero_()
            del images, targets, iterator
            os._exit(0 if ok else 3)
        assert os.waitpid(pid, 0)[1] == 0
        assert int(images.long().sum()) == total, "the child's writes are its own"
        assert sum(len(targets) for _, targets in iterator) == 97 - 8
        """,
        small,
        torch=True,
        OMP_NUM_THREADS=1,
    )


def test_batches_outlive_the_loader(small):
    run(
        """
        loader = make()
        batches = list(loader)
        sums = [int(images.sum()) for images, _ in batches]
        loader.close()
        del loader
        forebay._native.shutdown()
        assert native_threads() == 0
        assert [int(images.sum()) for images, _ in batches] == sums
        for images, _ in batches: images[:] = 0
        """,
        small,
    )


def test_a_too_small_budget_is_refused_with_the_arithmetic(small):
    run(
        """
        forebay.configure(memory="2MB")
        big = [{"op": "resize", "to": {"height": 300, "width": 300}}]
        loader = make(transform=big)
        try:
            next(iter(loader))
            raise SystemExit("no error")
        except forebay.errors.BudgetError as error:
            assert isinstance(error, MemoryError)
            text = str(error)
        for word in ("3 batches", "samples", "2000000", "FOREBAY_MEMORY"):
            assert word in text, text
        forebay.configure(memory="64MB")
        assert sum(len(t) for _, t in loader) == 97
        for wrong in (0, "1KB", "-3GB", "much"):
            try:
                forebay.configure(memory=wrong)
                raise SystemExit(f"{wrong} was accepted")
            except (ValueError, MemoryError):
                pass
        """,
        small,
    )


def test_a_second_loader_that_no_longer_fits_is_refused_and_the_first_goes_on(small):
    run(
        """
        forebay.configure(memory="8MB", threads=1)
        big = [{"op": "resize", "to": {"height": 128, "width": 128}}, {"op": "to_float", "scale": True}]
        first, loaders = make(transform=big), []
        iterator = iter(first)
        try:
            for seed in range(50):
                loaders.append(make(transform=big, seed=seed))
                next(iter(loaders[-1]))
            raise SystemExit("all fit")
        except forebay.errors.BudgetError:
            pass
        assert sum(len(t) for _, t in iterator) == 97
        """,
        small,
    )


@pytest.mark.parametrize("memory", ["1100KB", "3MB", "20MB"])
@pytest.mark.parametrize("order", [0, 64])
def test_with_any_accepted_budget_every_epoch_ends(small, memory, order):
    run(
        """
        forebay.configure(memory=sys.argv[2], threads=4)
        for batch in (1, 8, 97):
            with make(batch_size=batch, order=int(sys.argv[3])) as loader:
                for _ in range(2):
                    kept = []
                    for images, targets in loader: kept.append(images)
                    assert sum(map(len, kept)) == 97
                assert loader.metrics()["peak_bytes"] <= loader.metrics()["budget_bytes"]
        """,
        small,
        memory,
        order,
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hard links to some files of 500 x 375: 10 000 of them are 5.6 GB decoded."""
    root = tmp_path_factory.mktemp("many")
    (root / "a").mkdir()
    files = amount(40, 300)
    for i in range(files):
        pictures.generate(500, 375, seed=i).save(root / "a" / f"{i}.jpg", quality=88)
    for i in range(files, 10_000):
        os.link(root / "a" / f"{i % files}.jpg", root / "a" / f"{i}.jpg")
    return root


@pytest.mark.parametrize("fixed", [True, False])
def test_memory_stays_within_the_budget(many, fixed):
    out = run(
        """
        import torch
        def rss():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        forebay.configure(memory="256MB")
        fixed = sys.argv[2] == "True"
        steps = [crop[0] | {"height": 224, "width": 224}] if fixed else []
        steps.append({"op": "to_float", "scale": True})
        # torch's own first-use memory is not ours.
        torch.ones(1000, 1000).sum()
        before = most = rss()
        loader = make(batch_size=64 if fixed else 8, transform=steps)
        seen = 0
        for images, targets in loader:
            seen += len(targets)
            most = max(most, rss())
            if seen >= int(sys.argv[3]):
                break
        metrics = loader.metrics()
        print(most - before, metrics["peak_bytes"], metrics["budget_bytes"], seen)
        """,
        many,
        fixed,
        amount(1500, 10_000),
        timeout=amount(60, 600),
        torch=True,
    )
    grown, peak, budget, seen = map(int, out.split())
    assert seen >= amount(1500, 10_000) and budget == 256_000_000
    assert peak <= budget
    assert grown <= 1.1 * budget, f"grew by {grown / 1e6:.0f} MB"
    # The counter tells the truth: it is not far below what the process took.
    assert grown <= 1.25 * peak + 20e6, f"grew by {grown / 1e6:.0f} MB, counted {peak / 1e6:.0f} MB"
