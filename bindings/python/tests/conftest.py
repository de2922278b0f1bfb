"""Data that is made once per session; no test writes outside pytest's temporary folders."""

import signal

import forebay
import pictures
import pytest
from amounts import amount


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory):
    """Indexes go to a folder of this session, also those of child processes; no daemon is found by chance."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREBAY_CACHE_DIR", str(path))
        patch.setenv("FOREBAY_SOCKET", str(path / "nobody.sock"))
        yield path


@pytest.fixture(autouse=True)
def patience():
    """A test that hangs fails; native waits look for signals."""

    def give_up(*_):
        raise TimeoutError("the test took too long")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(amount(120, 900))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    # Each test has an engine of its own, so that one that breaks it breaks no other.
    forebay._native.shutdown()


@pytest.fixture
def threads():
    """Sets the number of native threads for one test; every loader before it must be closed."""
    before = forebay.config()[1]
    yield lambda number: forebay.configure(threads=number)
    forebay.configure(threads=before)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """97 little JPEGs in 5 classes, each different."""
    return pictures.folder(tmp_path_factory.mktemp("small"), 97, classes=5, size=(48, 36))


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory):
    """JPEGs of all kinds: sizes, shapes, subsamplings, qualities, colour spaces."""
    root = tmp_path_factory.mktemp("jpegs") / "all"
    pictures.write_all(root, pictures.jpegs(amount(2, 12)))
    return root.parent


@pytest.fixture(scope="session")
def stills(tmp_path_factory):
    """PNG and WebP of all kinds."""
    root = tmp_path_factory.mktemp("stills") / "all"
    pictures.write_all(root, pictures.pngs() | pictures.webps())
    return root.parent
