"""Loaders that obey a simulated device: the embedded engine and torch's workers."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import program
from pictures import folder

SIDES = Path(__file__).parents[3] / "crates/cli/src/bench/sides"
COUNT = 24


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    folder(root, COUNT, classes=2)
    return root


@pytest.fixture
def throttle(tmp_path):
    path = tmp_path / "throttle"
    make(path)
    return path


def make(path):
    command = [program(), "bench", "throttle", "--device", "bandwidth=1GB/s", "--make", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def counted(path):
    """Requests and bytes so far."""
    return struct.unpack_from("<2Q", path.read_bytes(), 72)


def run(script, throttle, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "FOREBAY_THROTTLE": str(throttle)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def sizes(data):
    return sum(path.stat().st_size for path in data.glob("*/*"))


ENGINE = """
import sys, forebay
from torchvision import transforms
forebay.configure(threads=2, cache="off")
steps = transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor()])
for images, targets in forebay.DataLoader(sys.argv[1], batch_size=8, transform=steps, share=False):
    pass
"""

SIDE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("throttle", sys.argv[2] + "/throttle.py")
throttle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(throttle)
"""

TORCH = """
import os, struct, torch, torchvision
from torchvision import datasets, transforms
steps = transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor()])
to_image = transforms.ToPILImage()
loaders = {
    "loader": {"loader": throttle.pil_loader},
    "open": {},
    "io": {"loader": lambda path: to_image(torchvision.io.read_image(path))},
}
for how, options in loaders.items():
    if how == "open":
        throttle.patch(sys.argv[1])
    dataset = datasets.ImageFolder(sys.argv[1], steps, **options)
    for images, targets in torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2):
        pass
    with open(os.environ["FOREBAY_THROTTLE"], "rb") as file:
        print(how, *struct.unpack_from("<2Q", file.read(), 72))
"""


def test_every_read_of_the_engine_is_a_request(data, throttle):
    ran = run(ENGINE, throttle, data)
    assert ran.returncode == 0, ran.stderr
    assert counted(throttle)[0] >= COUNT
    assert counted(throttle)[1] >= sizes(data)


def test_every_read_of_torchs_workers_is_a_request(data, throttle):
    ran = run(SIDE + TORCH, throttle, data, SIDES)
    assert ran.returncode == 0, ran.stderr
    said = [line.split() for line in ran.stdout.splitlines()]
    expected = enumerate(("loader", "open", "io"), 1)
    assert said == [[how, str(COUNT * n), str(sizes(data) * n)] for n, how in expected]


@pytest.mark.parametrize("content", [None, b"", b"something else" * 20])
def test_a_file_that_is_no_throttle_is_an_error(data, tmp_path, content):
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    engine = "import sys, forebay; forebay.ImageFolder(sys.argv[1])"
    for script in (engine, SIDE + "throttle.patch(sys.argv[1])"):
        ran = run(script, path, data, SIDES)
        assert ran.returncode != 0
        assert str(path) in ran.stderr, ran.stderr
