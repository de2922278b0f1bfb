"""Pictures for the tests: generated ones, scikit-image's photographs, and every way to store them."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import skimage
from PIL import Image

SIZES = [(1, 1), (1, 7), (9, 1), (2, 3), (8, 8), (17, 33), (16, 16), (97, 61), (61, 97), (255, 257)]
SIZES += [(500, 375), (375, 500), (640, 48), (48, 640), (1200, 90), (90, 1200)]
PHOTOS = [
    "astronaut",
    "chelsea",
    "coffee",
    "cell",
    "ihc",
    "motorcycle_left",
    "rocket",
    "hubble_deep_field",
    "retina",
]
SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]
QUALITIES = [30, 50, 75, 85, 90, 95, 98]


def generate(width, height, seed=0):
    """A picture with slopes, edges and grain."""
    random = np.random.default_rng((seed, width, height))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    planes = []
    for _ in range(3):
        plane = np.full((height, width), 127.0, np.float32)
        for _ in range(4):
            a, b, phase = random.uniform((-0.15, -0.15, 0), (0.15, 0.15, 7))
            plane += random.uniform(10, 40) * np.sin(a * x + b * y + phase)
        edge = (x * random.uniform(-1, 1) + y * random.uniform(-1, 1)) > random.uniform(-50, 150)
        planes.append(plane + 60 * edge + random.normal(0, 6, plane.shape))
    return Image.fromarray(np.stack(planes, 2).clip(0, 255).astype(np.uint8))


def photo(name):
    """A photograph that scikit-image carries."""
    [path] = Path(skimage.__file__).with_name("data").glob(f"{name}.*")
    return Image.open(path).convert("RGB")


def encode(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def sources():
    yield from ((f"made{w}x{h}", generate(w, h)) for w, h in SIZES)
    yield from ((name, photo(name)) for name in PHOTOS)


def jpegs(each):
    """Name to bytes: `each` encodings of every source, going round all combinations, and the odd kinds."""
    files, turn = {}, 0
    for name, image in sources():
        for _ in range(each):
            quality, subsampling = QUALITIES[turn % 7], SUBSAMPLINGS[turn % 3]
            progressive = turn % 4 == 3
            label = f"{name}-{turn}.jpg"
            files[label] = encode(
                image, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive
            )
            turn += 1
    for name, image in [("a", generate(321, 243, 1)), ("b", photo("chelsea")), ("c", generate(7, 5))]:
        files[f"{name}-grey.jpg"] = encode(image.convert("L"), "JPEG", quality=80)
        files[f"{name}-grey-progressive.jpg"] = encode(image.convert("L"), "JPEG", progressive=True)
        cmyk = encode(image.convert("CMYK"), "JPEG", quality=85)
        files[f"{name}-cmyk.jpg"] = cmyk
        files[f"{name}-ycck.jpg"] = _adobe_transform(cmyk, 2)
        files[f"{name}-rgb.jpg"] = encode(image, "JPEG", quality=85, keep_rgb=True)
        files[f"{name}-restart.jpg"] = encode(image, "JPEG", quality=85, restart_marker_rows=1)
        files[f"{name}-optimize.jpg"] = encode(image, "JPEG", quality=85, optimize=True)
    for a, b in [(5, 7), (1, 1), (20, 11)]:
        for tall, cut in ((False, 0), (True, 0), (False, 3), (True, 3)):
            files[f"tiles{a}x{b}-{tall}-{cut}.jpg"] = _retile(a, b, tall, cut)
    return files


def _adobe_transform(data, transform):
    at = data.index(b"Adobe") + 11
    return data[:at] + bytes([transform]) + data[at + 1 :]


def _retile(a, b, tall, cut):
    """4:4:0 (`tall`) or 4:1:1: the blocks of a 4:2:2 or 4:2:0 file, told to lie otherwise.

    Pillow writes neither kind. The number of blocks per unit is the same, so the stream stays valid.
    """
    image = generate(16 * a, 8 * b if tall else 16 * b, 3)
    data = bytearray(encode(image, "JPEG", quality=90, subsampling="4:2:2" if tall else "4:2:0"))
    at = data.index(b"\xff\xc0")
    width, height = (8 * a, 16 * b) if tall else (32 * a, 8 * b)
    data[at + 5 : at + 9] = struct.pack(">HH", height - cut, width - cut)
    assert data[at + 11] == (0x21 if tall else 0x22)
    data[at + 11] = 0x12 if tall else 0x41
    return bytes(data)


def png(rows, color, depth, interlace=False, chunks=()):
    """A PNG of an array of samples (height, width, channels) or packed rows, written by hand."""
    height, width = rows.shape[:2]

    def pack(part):
        lines = []
        for line in part:
            if depth == 16:
                raw = line.astype(">u2").tobytes()
            elif depth == 8:
                raw = line.astype(np.uint8).tobytes()
            else:
                bits = (line.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1
                raw = np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()
            lines.append(b"\0" + raw)
        return b"".join(lines)

    if interlace:
        passes = [
            (0, 0, 8, 8),
            (4, 0, 8, 8),
            (0, 4, 4, 8),
            (2, 0, 4, 4),
            (0, 2, 2, 4),
            (1, 0, 2, 2),
            (0, 1, 1, 2),
        ]
        parts = [rows[y::dy, x::dx] for x, y, dx, dy in passes]
        data = b"".join(pack(part) for part in parts if part.size)
    else:
        data = pack(rows)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlace))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + b"".join(chunk(*c) for c in chunks)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def pngs():
    """Name to bytes: every colour type and depth that PNG has."""
    files = {}
    for name, image in [("odd", generate(33, 21, 4)), ("one", generate(1, 1)), ("photo", photo("chelsea"))]:
        alpha = np.arange(image.width * image.height).reshape(image.height, image.width) % 256
        rgba = image.copy()
        rgba.putalpha(Image.fromarray(alpha.astype(np.uint8)))
        palette = image.quantize(200)
        for kind, picture in {
            "rgb": image,
            "rgba": rgba,
            "l": image.convert("L"),
            "la": rgba.convert("LA"),
            "p": palette,
            "1": image.convert("1"),
            "p4": image.quantize(11),
            "p2": image.quantize(4),
            "p1": image.quantize(2),
        }.items():
            files[f"{name}-{kind}.png"] = encode(picture, "PNG")
        files[f"{name}-p-index.png"] = encode(palette, "PNG", transparency=3)
        files[f"{name}-p-table.png"] = encode(palette, "PNG", transparency=bytes(range(200)))
        files[f"{name}-rgb-trns.png"] = encode(image, "PNG", transparency=image.getpixel((0, 0)))
        files[f"{name}-l-trns.png"] = encode(image.convert("L"), "PNG", transparency=7)
        wide = np.random.default_rng(5).integers(0, 65536, (image.height, image.width, 4))
        low = wide % 512
        files[f"{name}-l16.png"] = png(wide[..., :1], 0, 16)
        files[f"{name}-l16-low.png"] = png(low[..., :1], 0, 16)
        files[f"{name}-l16-trns.png"] = png(low[..., :1], 0, 16, chunks=[(b"tRNS", b"\0\x07")])
        files[f"{name}-la16.png"] = png(wide[..., :2], 4, 16)
        files[f"{name}-rgb16.png"] = png(wide[..., :3], 2, 16)
        files[f"{name}-rgba16.png"] = png(wide, 6, 16)
        for depth in (1, 2, 4):
            grey = wide[..., :1] % (1 << depth)
            files[f"{name}-l{depth}.png"] = png(grey, 0, depth)
            files[f"{name}-l{depth}-trns.png"] = png(grey, 0, depth, chunks=[(b"tRNS", b"\0\1")])
        files[f"{name}-rgb-interlaced.png"] = png(np.asarray(image), 2, 8, interlace=True)
        files[f"{name}-l16-interlaced.png"] = png(low[..., :1], 0, 16, interlace=True)
        files[f"{name}-l1-interlaced.png"] = png(wide[..., :1] % 2, 0, 1, interlace=True)
        files[f"{name}-rgb-gamma.png"] = png(
            np.asarray(image), 2, 8, chunks=[(b"gAMA", struct.pack(">I", 45455))]
        )
        short = np.asarray(image.quantize(4))[..., None]
        colours = (b"PLTE", bytes(range(12)))
        files[f"{name}-p8-short.png"] = png(short, 3, 8, chunks=[colours])
    return files


def webps():
    """Name to bytes: lossy and lossless, with alpha, animated."""
    files = {}
    for name, image in [("odd", generate(33, 21, 4)), ("one", generate(1, 1)), ("photo", photo("coffee"))]:
        rgba = image.copy()
        rgba.putalpha(image.convert("L"))
        files[f"{name}-lossless.webp"] = encode(image, "WEBP", lossless=True)
        files[f"{name}-lossless-alpha.webp"] = encode(rgba, "WEBP", lossless=True, exact=True)
        files[f"{name}-lossless-grey.webp"] = encode(image.convert("L"), "WEBP", lossless=True)
        for quality in (10, 75, 95):
            files[f"{name}-lossy{quality}.webp"] = encode(image, "WEBP", quality=quality)
            files[f"{name}-lossy-alpha{quality}.webp"] = encode(rgba, "WEBP", quality=quality)
        frames = [image.rotate(90 * turn) for turn in (1, 2)]
        for lossless in (True, False):
            label = f"{name}-animated-{'lossless' if lossless else 'lossy'}.webp"
            files[label] = encode(image, "WEBP", save_all=True, append_images=frames, lossless=lossless)
    return files


def write_all(root, files):
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name).write_bytes(data)


def folder(root, count, classes=1, size=(48, 36), quality=90):
    """`count` small JPEGs dealt to `classes` classes."""
    for number in range(count):
        data = encode(generate(*size, seed=number), "JPEG", quality=quality)
        where = root / f"class{number % classes}"
        where.mkdir(exist_ok=True)
        (where / f"{number:04}.jpg").write_bytes(data)
    return root
