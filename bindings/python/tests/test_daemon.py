"""Guards the daemon: the same batches as alone, exactly once through every death, and nobody's harm."""

import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import children
import forebay
import pictures
import pytest
import runs
import torch
from amounts import amount
from children import printed, start, together
from daemons import program, serving, until
from forebay.errors import BudgetError, DaemonError, JobNameError, RecipeError, SampleError
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

READY = dict(batch_size=8, shuffle=True, mixing=0.1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def own(tmp_path):
    """A daemon that the test may kill."""
    with serving(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def default(own, monkeypatch):
    """The daemon that share="auto" and True find."""
    monkeypatch.setenv("FOREBAY_SOCKET", own.socket)
    return own


def samples(seen):
    return [sample for batch in seen for sample in batch.samples]


# -- the same batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(batch_size=7, shuffle=True, seed=3),
        dict(batch_size=7),
        dict(batch_size=8, shuffle=True, drop_last=True),
        dict(batch_size=5, shuffle=True, output="uint8"),
        dict(batch_size=5, shuffle=True, output="float16/channels_last"),
        dict(batch_size=None, shuffle=True),
        dict(batch_size=5, sampler=list(range(0, 97, 3)) * 2),
        dict(batch_sampler=[[1, 2], [5], [2, 1, 7, 9]]),
        dict(batch_size=6, shuffle=True, collate_fn=list),
    ],
    ids=lambda options: "-".join(f"{key}" for key in options),
)
def test_auto_gives_the_same_batches_with_a_daemon_as_without(default, small, options):
    with runs.loader(small, share=False, **options) as alone, runs.loader(small, **options) as shared:
        for _ in range(2):
            expect, got = [], []
            for one, other in zip(alone, shared, strict=True):
                assert alone.native.positions == shared.native.positions
                expect.append(str(one))
                got.append(str(other))
                if "collate_fn" not in options:
                    assert all(
                        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
                        for a, b in zip(one, other, strict=True)
                    )
            assert expect == got
        assert "daemon at" in shared.explain() and "embedded" in alone.explain()


def test_images_of_different_sizes_come_as_lists(default, jpegs):
    options = dict(transform=[], batch_size=3, collate_fn=lambda rows: rows)
    alone = forebay.DataLoader(jpegs, share=False, on_error="skip", **options)
    shared = forebay.DataLoader(jpegs, on_error="skip", **options)
    for one, other in zip(alone, shared, strict=True):
        assert all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True))


def test_jobs_of_two_processes_share_preparations_and_each_gets_every_sample_once(daemon, small):
    code = """
        loader = make(batch_size=8)
        wait()
        print(*(whole(loader) for _ in range(3)))
        print(loader.metrics()["preparations"], loader.metrics()["deliveries"])
    """
    ends = [end.split() for end in together([child(code, small, daemon.socket) for _ in range(3)])]
    assert all(end[:3] == ["True"] * 3 for end in ends)
    made, given = (sum(int(end[at]) for end in ends) for at in (3, 4))
    assert given == 3 * 3 * 97
    assert made < 0.8 * given
    assert daemon.status()["jobs"] == []


def test_an_early_end_and_a_new_epoch_give_whole_epochs(daemon, small):
    with runs.loader(small, share=daemon.socket, **READY) as loader:
        for batches in (1, 3, 0, 2, None, 1, None):
            seen = runs.epoch(loader, batches)
            assert len(set(samples(seen))) == len(samples(seen))
            if batches is None:
                assert sorted(samples(seen)) == list(range(97))


def test_a_state_goes_on_in_another_job(daemon, small):
    with runs.loader(small, share=daemon.socket, **READY) as loader:
        first = runs.epoch(loader, 5)
        state = loader.state_dict()
    for share in (daemon.socket, "process"):
        with runs.loader(small, share=share, **READY) as loader:
            loader.load_state_dict(state)
            rest = runs.epoch(loader)
        assert sorted(samples(first) + samples(rest)) == list(range(97))


# -- memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.02], ids=["all", "a-little"])
def test_writing_into_batches_hurts_neither_others_nor_later_batches(daemon, small, part):
    """Strict order, equal seeds: the daemon finishes equal batches for both jobs."""
    options = dict(batch_size=16, shuffle=True, seed=1, transform=runs.CROP)
    clean = [
        runs.by_position(runs.epoch(loader)) for loader in [runs.Recording(small, share=False, **options)] * 3
    ]
    with (
        runs.loader(small, share=daemon.socket, order="strict", **options) as writer,
        runs.loader(small, share=daemon.socket, order="strict", **options) as reader,
    ):
        for expect in clean:
            got, seen = [], []
            for one, other in zip(writer, reader, strict=True):
                got.append(runs.Seen(writer.native, one))
                flat = one[0].view(-1)
                flat[: max(1, int(part * len(flat)))].fill_(-7)
                seen.append(runs.Seen(reader.native, other))
            assert runs.same_pixels(runs.by_position(got), expect)
            assert runs.same_pixels(runs.by_position(seen), expect)
        # Who writes much gets copies after a while.
        assert (writer.metrics()["copied_batches"] > 0) == (part == 1.0)
        assert reader.metrics()["copied_batches"] == 0


def test_a_job_may_keep_every_batch_also_beyond_its_loader_and_its_daemon(own, small):
    expect = runs.run(small, share=False, batch_size=4, shuffle=True)
    loader = forebay.DataLoader(small, 4, True, transform=runs.CROP, share=own.socket, order="strict")
    kept = list(loader)
    held = own.status()["jobs"][0]["lent"]
    loader.close()
    assert own.status()["jobs"] == [] and held <= 2
    own.kill()
    assert len(kept) == len(expect)
    assert all(torch.equal(images, seen.images) for (images, _), seen in zip(kept, expect, strict=True))


def test_what_a_job_holds_counts_until_it_is_dropped(own, small):
    loader = forebay.DataLoader(small, 16, True, transform=runs.CROP, share=own.socket)
    batch = next(iter(loader))
    loader.close()
    until(lambda: own.status()["jobs"] == [])
    held = own.status()["bytes"]
    assert held >= batch[0].nbytes
    del batch
    until(lambda: own.status()["bytes"] <= held - 16 * 3 * 16 * 16 * 4)


def test_no_thread_and_little_memory_in_the_training_process(daemon, tmp_path):
    """Batches of 19 MB; a page that is only read belongs to the daemon."""
    root = pictures.folder(tmp_path, 64, classes=2, size=(64, 48))
    code = """
        sys.path.insert(0, TESTS)
        import daemons
        loader = make(batch_size=32, transform=[crop[0] | {"height": 224, "width": 224}])
        for images, _ in loader: pass
        before = daemons.private_bytes()
        for _ in range(4):
            for images, _ in loader: images.reshape(-1)[::1024].sum()
        print(daemons.private_bytes() - before, native_threads())
    """
    code = code.replace("TESTS", repr(os.path.dirname(__file__)))
    grown, threads = printed(child(code, root, daemon.socket)).split()
    assert int(grown) < 10 << 20
    assert int(threads) == 0


def test_a_job_that_does_not_fit_is_refused_with_the_sum(daemon, small):
    loader = forebay.DataLoader(
        small, 4096, True, transform=[runs.v1.RandomResizedCrop(224)], share=daemon.socket
    )
    with pytest.raises(BudgetError, match="3 batches x"):
        next(iter(loader))


def test_ten_jobs_that_start_together_read_the_folder_once(own, tmp_path_factory):
    small = pictures.folder(tmp_path_factory.mktemp("thousand"), 1000, classes=2, size=(24, 18))
    code = """
        loader = make(batch_size=8, mixing=0)
        epoch = iter(loader)
        wait()
        n = sum(len(targets) for _, targets in epoch)
        print(n, loader.metrics()["read_bytes"])
    """
    jobs = [child(code, small, own.socket) for _ in range(10)]
    ends = [list(map(int, end.split())) for end in together(jobs)]
    assert all(end[0] == 1000 for end in ends)
    size = sum(file.stat().st_size for file in small.rglob("*.jpg"))
    read = sum(end[1] for end in ends)
    assert read <= 1.1 * size, f"{read / size:.2f} times the folder was read"


# -- deaths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orphan", [False, True], ids=["alone", "with-a-sleeping-child"])
def test_a_killed_job_gives_all_back_and_costs_others_nothing(own, small, orphan):
    """`orphan`: a forked child sleeps on and keeps the socket and the mappings."""
    code = f"""
        if {orphan}:
            loader = make(batch_size=8)
            it = iter(loader)
            next(it)
            if (sleeper := os.fork()) == 0:
                time.sleep(600)
            print(sleeper, "ready", sep="\\n", flush=True)
            while True:
                for _ in loader: pass
        print("ready", flush=True)
        while True:
            with make(batch_size=8) as loader:
                for batch in loader: pass
    """
    dice = random.Random(5)
    with runs.loader(small, share=own.socket, **READY) as other:
        steady = iter(other)
        got = [other.native.samples for _ in zip(range(2), steady, strict=False)]
        baseline = None
        for _ in range(amount(6, 200)):
            job = child(code, small, own.socket)
            sleeper = int(job.stdout.readline()) if orphan else None
            assert job.stdout.readline() == "ready\n"
            time.sleep(dice.uniform(0, 0.15))
            try:
                job.kill()
                job.wait()
                until(lambda: len(own.status()["jobs"]) == 1, seconds=amount(6, 1))
                now = own.status()
                assert now["jobs"][0]["pid"] == os.getpid()
                baseline = max(baseline or 0, now["bytes"]) if _ < 2 else baseline
                assert now["bytes"] <= baseline + (1 << 20), "bytes of the dead stay"
            finally:
                if sleeper:
                    os.kill(sleeper, signal.SIGKILL)
            for _ in zip(range(1), steady, strict=False):
                got.append(other.native.samples)
        got += [other.native.samples for _ in steady]
        flat = [sample for batch in got for sample in batch]
        assert sorted(flat) == list(range(97))


@pytest.mark.parametrize("source", ["strict", "ready", "sampler", "batch_sampler", "weighted", "repeats"])
def test_a_killed_daemon_that_comes_back_is_joined_again(own, small, source):
    options = dict(
        strict=dict(batch_size=4, shuffle=True, order="strict"),
        ready=dict(batch_size=4, shuffle=True, order="ready"),
        sampler=dict(batch_size=4, sampler=RandomSampler(range(97), generator=torch.Generator())),
        batch_sampler=dict(batch_sampler=BatchSampler(range(97), 4, False)),
        weighted=dict(batch_size=4, sampler=WeightedRandomSampler([1.0] * 97, 97)),
        repeats=dict(batch_size=4, sampler=[number % 9 for number in range(97)]),
    )[source]
    with runs.loader(small, share=own.socket, **options) as loader:
        seen = []
        for number, data in enumerate(loader):
            seen.append(runs.Seen(loader.native, data))
            if number in (0, 7):
                own.kill()
                own.start()
        positions = [position for batch in seen for position in batch.positions]
        assert sorted(positions) == list(range(97))
        if source in ("strict", "repeats"):
            # A repeated sample is another copy each time, also when the daemon has not seen the others.
            alone = runs.run(small, share=False, **options)
            assert runs.same_pixels(runs.by_position(seen), runs.by_position(alone))
        elif source != "weighted":
            assert sorted(samples(seen)) == list(range(97))
        assert len(runs.epoch(loader)) == len(seen)


def test_a_daemon_that_does_not_come_back_is_an_error_and_its_state_resumes(own, small, monkeypatch):
    monkeypatch.setattr(forebay._remote, "_RETRY", 0.5)
    with runs.loader(small, share=own.socket, **READY) as loader:
        first = runs.epoch(loader, 4)
        iterator = iter(loader)  # the next epoch
        more = []
        with pytest.raises(DaemonError, match="did not come back"):
            for data in iterator:
                more.append(runs.Seen(loader.native, data))
                if len(more) == 3:
                    own.kill()
        state = loader.state_dict()
    assert len(first) == 4 and len(more) >= 3
    own.start()
    with runs.loader(small, share=own.socket, **READY) as again:
        again.load_state_dict(state)
        assert sorted(samples(more) + samples(runs.epoch(again))) == list(range(97))


def test_true_starts_a_daemon_once_and_starts_a_dead_one_again(small, tmp_path, monkeypatch):
    socket = tmp_path / "run" / "forebay.sock"
    monkeypatch.setenv("FOREBAY_SOCKET", str(socket))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code = """
        loader = make(batch_size=8)
        print(whole(loader))
    """
    jobs = [child(code, small, True) for _ in range(4)]
    assert [printed(job) for job in jobs] == ["True\n"] * 4
    pid = daemon_pid(socket)
    try:
        assert os.getsid(pid) == pid != os.getsid(0), "it has a session of its own"
        assert b"CUDA_VISIBLE_DEVICES=\0" in Path(f"/proc/{pid}/environ").read_bytes()
        with runs.loader(small, share=True, **READY) as loader:
            seen = []
            for data in loader:
                seen.append(runs.Seen(loader.native, data))
                if len(seen) == 3:
                    os.kill(daemon_pid(socket), signal.SIGKILL)
            assert sorted(samples(seen)) == list(range(97))
        assert daemon_pid(socket) != pid
    finally:
        subprocess.run([program(), "stop"], check=True)
    assert sorted(path.name for path in socket.parent.iterdir()) == ["forebay.sock.lock"]


def test_a_stopped_daemon_answers_what_it_was_asked_and_leaves_nothing(own, small):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    loader = runs.Recording(small, transform=runs.CROP, share=own.socket, **READY)
    seen = [runs.Seen(loader.native, data) for data, _ in zip(loader, range(3), strict=False)]
    assert own.kill(signal.SIGTERM) == 0
    assert sorted(os.listdir(os.path.dirname(own.socket))) == ["forebay.sock.lock", "log"]
    own.start()
    loader.close()
    assert len(seen) == 3
    assert own.ask("stop")[0] == 0 and own.process.wait(timeout=30) == 0
    assert own.ask("stop")[0] == 1 and own.ask("status")[0] == 1
    if before:
        assert set(os.listdir("/dev/shm")) <= before


def test_a_socket_that_a_dead_daemon_left_is_taken_over_without_a_word(own):
    own.kill()
    assert os.path.exists(own.socket)
    said = own.said()
    own.start()
    assert own.said().removeprefix(said).count("\n") == 1


def test_a_second_daemon_on_a_socket_is_refused(own):
    code, _ = own.ask("serve")
    assert code == 1 and own.process.poll() is None


def test_an_idle_daemon_ends_by_itself(tmp_path):
    with serving(tmp_path, "64MB", 1, "--idle-exit", "1") as daemon:
        assert daemon.process.wait(timeout=30) == 0
        assert not os.path.exists(daemon.socket)


def test_a_stalled_job_does_not_hold_up_another(own, small):
    code = """
        loader = make(batch_size=8)
        it = iter(loader)
        next(it)
        print("ready", flush=True)
        time.sleep(600)
    """
    stalled = child(code, small, own.socket)
    try:
        assert stalled.stdout.readline() == "ready\n"
        stalled.send_signal(signal.SIGSTOP)
        with runs.loader(small, share=own.socket, **READY) as loader:
            for _ in range(3):
                assert sorted(samples(runs.epoch(loader))) == list(range(97))
    finally:
        stalled.kill()


# -- processes ----------------------------------------------------------------------------------------


def test_a_job_that_asks_for_nothing_costs_the_daemon_nothing(own, small):
    with forebay.DataLoader(small, share=own.socket, **READY) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
            time.sleep(0.1)
        until(lambda: cpu_seconds(own.process.pid, over=0.2) < 0.05)
        assert cpu_seconds(own.process.pid, over=1) < 0.3


def test_metrics_from_another_thread_take_no_reply_away(own, small):
    with forebay.DataLoader(small, share=own.socket, **READY) as loader:
        batches = iter(loader)
        next(batches)
        times, over = [], threading.Event()

        def watch():
            while not over.is_set():
                start = time.monotonic()
                assert loader.metrics()["threads"] == 2
                times.append(time.monotonic() - start)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(20):
            for _ in batches:
                pass
            batches = iter(loader)
        over.set()
        watcher.join(60)
    assert len(times) > 10 and max(times) < 10


def test_a_pickled_loader_and_a_new_one_are_two_jobs_of_a_spawned_process(daemon, small):
    with forebay.DataLoader(small, share=daemon.socket, job="train", **READY) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as other:
            assert loader._job_name() != other._job_name()
            assert len(list(other)) == 12


def test_what_was_fed_is_not_kept(daemon, small):
    endless = itertools.cycle(range(97))
    with forebay.DataLoader(small, 8, sampler=endless, share=daemon.socket) as loader:
        batches = iter(loader)
        for _ in range(200):
            next(batches)
        fed = loader._job._fed
        assert fed.passed > 1400 and sum(map(len, fed.ahead)) < 100
        assert sum(fed.seen) == fed.passed


def test_a_name_that_is_too_long_is_refused_at_once(small):
    with pytest.raises(ValueError, match="200 bytes"):
        forebay.DataLoader(small, job="x" * 201)


def test_a_forked_child_is_a_job_of_its_own_and_the_parent_goes_on(daemon, small):
    code = """
        loader = make(batch_size=8, job="training")
        it = iter(loader)
        first = next(it)
        n = len(first[1])
        expect = first[0].copy()
        if os.fork() == 0:
            n += sum(len(targets) for _, targets in it)
            m = sum(len(targets) for _, targets in loader)
            del first
            print("child", n, m, flush=True)
            os._exit(0)
        os.wait()
        assert np.array_equal(first[0], expect)
        n += sum(len(targets) for _, targets in it)
        print("parent", n)
    """
    assert printed(child(code, small, daemon.socket)) == "child 97 97\nparent 97\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_work_in_processes_of_every_start_method(daemon, small, tmp_path, method):
    code = f"""
        import multiprocessing
        def work(loader, queue):
            queue.put(sum(len(targets) for _, targets in loader))
        if __name__ == "__main__":
            loader = make()
            next(iter(loader))
            context = multiprocessing.get_context("{method}")
            queue = context.Queue()
            processes = [context.Process(target=work, args=(make(), queue)) for _ in range(2)]
            for process in processes: process.start()
            print([queue.get(timeout=100) for _ in processes])
            for process in processes: process.join()
    """
    # A file, because spawned processes import it again.
    path = tmp_path / "program.py"
    path.write_text(children.HIDE + children.HEAD + HEAD + textwrap.dedent(code))
    done = subprocess.run([sys.executable, path, small, daemon.socket], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[97, 97]\n", "")


def test_two_live_jobs_of_one_name_are_refused(daemon, small):
    loaders = [
        runs.Recording(small, share=daemon.socket, job="a", **READY, transform=runs.CROP) for _ in "ab"
    ]
    loaders[1]._ordinal = loaders[0]._ordinal
    with loaders[0], loaders[1]:
        next(iter(loaders[0]))
        with pytest.raises(JobNameError, match="another name with job="):
            next(iter(loaders[1]))
        loaders[0].close()
        next(iter(loaders[1]))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change its uid, to try as another user")
def test_another_user_cannot_connect(own, small):
    os.chmod(os.path.dirname(own.socket), 0o755)
    os.chmod(own.socket, 0o777)
    code = f"""
        import socket
        os.setresuid(65534, 65534, 65534)
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect({own.socket!r})
            s.settimeout(20)
            print(s.recv(1))
        except PermissionError as error:
            print(error)
    """
    said = printed(child(code, small, own.socket))
    assert said in ("b''\n", "[Errno 13] Permission denied\n")
    if said == "b''\n":
        assert "refused a connection of user 65534" in own.said()


# -- errors -------------------------------------------------------------------------------------------


def test_errors_have_the_same_classes_as_without_a_daemon(daemon, small, tmp_path):
    bad = pictures.folder(tmp_path, 9, classes=1, size=(20, 20))
    victim = next(iter(sorted(bad.rglob("*.jpg"))))
    victim.write_bytes(b"not a picture")
    with runs.loader(bad, share=daemon.socket, batch_size=2) as loader, pytest.raises(SampleError) as caught:
        runs.epoch(loader)
    assert caught.value.path == str(victim) and caught.value.stage == "decode"
    with runs.loader(bad, share=daemon.socket, batch_size=2, on_error="skip") as loader:
        with pytest.warns(UserWarning, match="1 samples failed"):
            assert len(samples(runs.epoch(loader))) == 8
        assert [row["path"] for row in loader.quarantine] == [str(victim)]
        state = loader.state_dict()
    with runs.loader(bad, share=daemon.socket, batch_size=2, on_error="skip") as loader:
        loader.load_state_dict(state)
        assert len(samples(runs.epoch(loader))) == 8
        assert loader.metrics()["failures"] == 0
    with pytest.raises(RecipeError):
        forebay.DataLoader(small, transform=[{"op": "nothing"}], share=daemon.socket)


def test_an_address_without_a_daemon_is_an_error_that_names_it(small, tmp_path):
    loader = forebay.DataLoader(small, share=str(tmp_path / "none.sock"))
    with pytest.raises(DaemonError, match=r"none\.sock"):
        next(iter(loader))


def test_ctrl_c_while_waiting_for_the_daemon_is_a_keyboard_interrupt(own, small):
    code = """
        loader = make(batch_size=8)
        it = iter(loader)
        next(it)
        print("ready", flush=True)
        for _ in it: pass
        for _ in loader: pass
    """
    job = child(code, small, own.socket)
    assert job.stdout.readline() == "ready\n"
    own.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=100)
    own.process.send_signal(signal.SIGCONT)
    assert err.strip().endswith("KeyboardInterrupt")


# -- helpers ------------------------------------------------------------------------------------------

#: What children know besides the common head.
HEAD = """
import numpy as np
class Recording(forebay.DataLoader):
    def _receive(self, batch):
        super()._receive(batch)
        self.samples.extend(batch.samples)
def make(**options):
    share = True if sys.argv[2] == "True" else sys.argv[2]
    common = {"batch_size": 8, "shuffle": True, "transform": crop, "share": share}
    loader = Recording(root, **(common | options))
    loader.samples = []
    return loader
def whole(loader):
    loader.samples = []
    for _ in loader: pass
    return sorted(loader.samples) == list(range(97))
def wait():
    print("ready", flush=True)
    input()
"""


def child(code, root, share):
    return start(HEAD + textwrap.dedent(code), root, share)


def cpu_seconds(pid, over):
    """What a process uses while this one sleeps."""

    def used():
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(over)
    return used() - before


def daemon_pid(socket):
    import json

    done = subprocess.run(
        [program(), "status", "--json", "--socket", str(socket)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["pid"]
