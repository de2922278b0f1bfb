"""Guards the image folder: torchvision's samples and errors; an index that is reused, renewed, healed."""

import os
import pickle
import sys
import time

import forebay
import pictures
import pytest
import runs
from forebay.errors import DatasetNotFoundError, ForebayError, VersionError
from torchvision.datasets import ImageFolder

DATA = pictures.encode(pictures.generate(8, 8), "JPEG")


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(DATA)


@pytest.fixture
def tricky(tmp_path):
    """What people have in their folders."""
    root = tmp_path / "data"
    names = [
        "b/1.jpg",
        "b/10.JPG",
        "b/2.jPeG",
        "b/inner/deep/x.png",
        "b/inner/0.jpg",
        "b/inner-2/0.jpg",
        "b/inner.jpg/0.jpg",
        "b/Ä ö.jpg",
        "b/.hidden.jpg",
        "b/.hidden/1.webp",
        "b/two.dots.tiff",
        "b/new\nline.bmp",
        "b/'quote\".pgm",
        "b/.jpg",
        "B/1.ppm",
        "a b/1.tif",
        "日本/1.jpg",
        ".secret/1.jpg",
        "10/1.jpg",
        "9/1.jpg",
    ]
    for name in names:
        put(root / name)
    for name in ("b/notes.txt", "b/noext", "b/1.jpg.part", "b/ajpg", "loose.jpg", "b/1.gif"):
        put(root / name)
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere / "5.jpg")
    put(elsewhere / "more" / "6.jpg")
    (root / "link").symlink_to(elsewhere)
    (root / "b" / "folder-link").symlink_to(elsewhere)
    (root / "b" / "link.jpg").symlink_to(elsewhere / "5.jpg")
    (root / "b" / "empty").mkdir()
    return root


def assert_like_torchvision(root):
    ours, theirs = forebay.ImageFolder(root), ImageFolder(root)
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.samples == theirs.samples
    assert ours.imgs == theirs.imgs
    assert ours.targets == theirs.targets
    assert len(ours) == len(theirs)


def test_a_tricky_tree_reads_as_torchvision_reads_it(tricky):
    assert_like_torchvision(tricky)
    assert_like_torchvision(tricky)  # from the index


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses file names that are not UTF-8")
def test_names_that_are_not_utf8_are_read(tricky):
    put(tricky / os.fsdecode(b"c\xff") / os.fsdecode(b"\xfe.jpg"))
    assert_like_torchvision(tricky)
    sample = next(i for i, (path, _) in enumerate(forebay.ImageFolder(tricky).samples) if "\udcfe" in path)
    with runs.loader(tricky, sampler=[sample]) as loader:
        assert len(runs.epoch(loader)) == 1


def test_a_relative_root_and_a_linked_root_give_torchvisions_paths(tricky, monkeypatch):
    monkeypatch.chdir(tricky.parent)
    assert_like_torchvision("data")
    (tricky.parent / "alias").symlink_to(tricky)
    assert_like_torchvision(tricky.parent / "alias")


def test_a_broken_link_is_listed_and_fails_when_read(tricky):
    (tricky / "b" / "broken.jpg").symlink_to(tricky / "nowhere")
    assert_like_torchvision(tricky)
    sample = next(
        i for i, (path, _) in enumerate(forebay.ImageFolder(tricky).samples) if path.endswith("broken.jpg")
    )
    with runs.loader(tricky, sampler=[sample]) as loader, pytest.raises(forebay.errors.SampleError):
        runs.epoch(loader)


@pytest.mark.parametrize("kind", ["missing", "no classes", "empty class", "two empty classes"])
def test_errors_are_torchvisions(tmp_path, kind):
    root = tmp_path / "root"
    if kind != "missing":
        root.mkdir()
    if "empty" in kind:
        put(root / "full" / "1.jpg")
        (root / "hollow").mkdir()
        if "two" in kind:
            (root / "another").mkdir()
            (root / "another" / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError) as theirs:
        ImageFolder(root)
    with pytest.raises(DatasetNotFoundError) as ours:
        forebay.ImageFolder(root)
    assert str(ours.value).removeprefix("[Errno 2] ") == str(theirs.value).removeprefix("[Errno 2] ")


def test_a_file_as_root_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ForebayError):
        forebay.ImageFolder(tmp_path / "file")


def test_a_loop_of_links_is_an_error_and_does_not_hang(tmp_path):
    put(tmp_path / "a" / "1.jpg")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    with pytest.raises((ForebayError, OSError)):
        forebay.ImageFolder(tmp_path)


# -- the index ----------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(path))
    return path


@pytest.fixture
def plain(tmp_path):
    """A folder that was at rest before it is indexed: very fresh times are not trusted."""
    root = tmp_path / "plain"
    for i in range(6):
        put(root / f"c{i % 2}" / "inner" / f"{i}.jpg")
    past = time.time() - 100
    for folder in [root, *root.glob("**/")]:
        os.utime(folder, (past, past))
    return root


def stamp(cache):
    [index] = cache.glob("*.index")
    info = index.stat()
    return info.st_ino, info.st_mtime_ns


def test_the_index_is_reused_while_nothing_changes(plain, cache):
    first = forebay.ImageFolder(plain)
    written = stamp(cache)
    second = forebay.ImageFolder(plain)
    assert stamp(cache) == written
    assert second.samples == first.samples and second.fingerprint == first.fingerprint


@pytest.mark.parametrize("change", ["add", "remove", "rename", "new class", "add deep"])
def test_the_index_is_renewed_when_names_change(plain, cache, change):
    before = forebay.ImageFolder(plain)
    written = stamp(cache)
    if change == "add":
        put(plain / "c0" / "new.jpg")
    elif change == "add deep":
        put(plain / "c0" / "inner" / "new.jpg")
    elif change == "remove":
        (plain / "c0" / "inner" / "0.jpg").unlink()
    elif change == "rename":
        (plain / "c0" / "inner" / "0.jpg").rename(plain / "c0" / "inner" / "00.jpg")
    else:
        put(plain / "c9" / "new.jpg")
    after = forebay.ImageFolder(plain)
    assert stamp(cache) != written and after.fingerprint != before.fingerprint
    assert_like_torchvision(plain)


def test_a_folder_changed_right_after_it_was_indexed_is_noticed(tmp_path, cache):
    root = tmp_path / "fresh"
    for i in range(30):
        put(root / "c" / f"{i}.jpg")
        assert len(forebay.ImageFolder(root)) == i + 1


def contents(root):
    """Names and fingerprint, with no index left open."""
    dataset = forebay.ImageFolder(root)
    return dataset.samples, dataset.fingerprint


def replace(index, data):
    """Puts other bytes in the index's place; nobody writes into an index that may be mapped."""
    index.unlink()
    index.write_bytes(data)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "noise", "counts", "magic"])
def test_a_damaged_index_heals(plain, cache, damage):
    good = contents(plain)
    [index] = cache.glob("*.index")
    data = bytearray(index.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    elif damage == "counts":
        data[24:32] = b"\xff" * 8
    elif damage == "magic":
        data[0] ^= 1
    else:
        data = {"empty": b"", "cut": data[:-10], "noise": bytes(range(256)) * 4}[damage]
    replace(index, data)
    assert contents(plain) == good
    assert_like_torchvision(plain)


@pytest.mark.parametrize("at", range(0, 96, 8))
def test_no_damage_to_the_header_is_believed(plain, cache, at):
    good = contents(plain)
    [index] = cache.glob("*.index")
    data = bytearray(index.read_bytes())
    data[at] ^= 0x10
    replace(index, data)
    try:
        assert contents(plain) == good
    except VersionError:
        assert at == 8


def test_an_index_of_a_newer_version_is_a_typed_error(plain, cache):
    forebay.ImageFolder(plain)
    [index] = cache.glob("*.index")
    data = bytearray(index.read_bytes())
    data[8] = 200
    replace(index, data)
    with pytest.raises(VersionError, match="200"):
        forebay.ImageFolder(plain)


def test_nothing_is_written_into_the_data(plain, cache):
    def listing():
        return sorted((str(path), path.stat().st_mtime_ns) for path in plain.glob("**/*"))

    before = listing()
    with runs.loader(plain, batch_size=2) as loader:
        runs.epoch(loader)
    assert listing() == before
    assert [path.suffix for path in cache.iterdir()] == [".index"]


def test_the_cache_may_not_be_writable_is_a_typed_error(plain, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(forebay.errors.StorageError):
        forebay.ImageFolder(plain)


def test_the_fingerprint_follows_content_and_not_place(tmp_path, plain):
    import shutil

    shutil.copytree(plain, tmp_path / "copy")
    assert forebay.ImageFolder(tmp_path / "copy").fingerprint == forebay.ImageFolder(plain).fingerprint


def test_a_dataset_pickles(plain):
    dataset = forebay.ImageFolder(plain)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.samples == dataset.samples and repr(again) == repr(dataset)
    with pytest.raises(IndexError):
        dataset.path(len(dataset))
