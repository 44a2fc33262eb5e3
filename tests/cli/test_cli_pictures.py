"""`nnef-jax run` on pictures; the networks hand them through, or compute what numpy can as well."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image

from tests.cli_support import fails, ok, picture, through, values, write

RGB = np.arange(2 * 3 * 3).reshape(2, 3, 3) * 10


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        ("nchw", (1, 3, 2, 3), RGB.transpose(2, 0, 1)[None]),
        ("nhwc", (1, 2, 3, 3), RGB[None]),
        ("chw", (3, 2, 3), RGB.transpose(2, 0, 1)),
        ("hwc", (2, 3, 3), RGB),
    ],
)
def test_layouts(tmp_path, layout, shape, expected):
    model = through(tmp_path / "m", list(shape))
    path = picture(tmp_path / "p.png", RGB)
    out = ok("run", model, path, "--layout", layout, "--json")
    np.testing.assert_array_equal(values(out), expected)


@pytest.mark.parametrize(
    ("layout", "shape"), [("nchw", (1, 1, 2, 3)), ("nhw", (1, 2, 3)), ("hw", (2, 3))]
)
def test_grey_pictures(tmp_path, layout, shape):
    model = through(tmp_path / "m", list(shape))
    path = picture(tmp_path / "p.png", RGB[..., 0])
    out = ok("run", model, path, "--layout", layout, "--json")
    np.testing.assert_array_equal(values(out), RGB[..., 0].reshape(shape))


def test_channels_follow_the_input(tmp_path):
    grey = through(tmp_path / "grey", [1, 1, 2, 3])
    colour = through(tmp_path / "colour", [1, 3, 2, 3])
    alpha = through(tmp_path / "alpha", [1, 4, 2, 3])
    path = picture(tmp_path / "p.png", RGB)
    # ITU-R 601-2 luma, which is what grey is to Pillow, rounded
    luma = values(ok("run", grey, path, "--json"))[0, 0]
    np.testing.assert_allclose(luma, RGB @ np.array([0.299, 0.587, 0.114]), atol=1)
    opaque = values(ok("run", alpha, path, "--json"))[0]
    np.testing.assert_array_equal(opaque[:3], RGB.transpose(2, 0, 1))
    np.testing.assert_array_equal(opaque[3], 255)
    path = picture(tmp_path / "g.png", RGB[..., 0])
    found = values(ok("run", colour, path, "--json"))[0]
    np.testing.assert_array_equal(found, np.stack([RGB[..., 0]] * 3))


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled_to_255(tmp_path, channels):
    pixels = np.array([[0, 257, 514], [65535, 32896, 1]], np.uint16)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    model = through(tmp_path / "m", [1, channels, 2, 3])
    found = values(ok("run", model, tmp_path / "p.png", "--json"))
    expected = [[0, 1, 2], [255, 128, 1 / 257]]
    np.testing.assert_allclose(found, np.array([expected] * channels)[None], rtol=1e-6)


def test_jpeg(tmp_path):
    model = through(tmp_path / "m", [1, 3, 8, 8])
    path = picture(
        tmp_path / "p.JPG", np.full((8, 8, 3), (200, 100, 50)), format="JPEG", quality=95
    )
    found = values(ok("run", model, path, "--json"))
    np.testing.assert_allclose(found[0, :, 3, 4], (200, 100, 50), atol=4)


def test_pictures_are_turned_upright(tmp_path):
    pixels = np.full((8, 16, 3), 255, np.uint8)
    pixels[:, 8:] = 0
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise: the left is the top
    path = picture(tmp_path / "p.jpg", pixels, exif=exif)
    model = through(tmp_path / "m", [1, 1, 16, 8])
    found = values(ok("run", model, path, "--json"))[0, 0]
    assert found[:7].min() > 200 and found[9:].max() < 50


def test_mean_and_scale(tmp_path):
    model = through(tmp_path / "m", [1, 3, 2, 3])
    path = picture(tmp_path / "p.png", RGB)
    out = ok("run", model, path, "--mean", "-10,20,30.5", "--scale", "0.5", "--json")
    expected = (RGB - np.array([-10, 20, 30.5])) * 0.5
    np.testing.assert_allclose(values(out)[0], expected.transpose(2, 0, 1))


def test_resize(tmp_path):
    model = through(tmp_path / "m", [1, 1, 4, 6])
    path = picture(tmp_path / "p.png", np.full((9, 5), 77))
    err = fails("run", model, path)
    assert "5 pixels wide and 9 high, input 'x' takes 6 by 4" in err and "--resize" in err
    found = values(ok("run", model, path, "--resize", "--json"))
    np.testing.assert_array_equal(found, np.full((1, 1, 4, 6), 77))


def test_pictures_of_any_size(tmp_path):
    model = through(tmp_path / "m", [0, 1, 0, 0])
    paths = [picture(tmp_path / f"{i}.png", np.full((2 + i, 3), i)) for i in range(2)]
    out = ok("run", model, *paths, "--json")
    for i in range(2):
        np.testing.assert_array_equal(values(out, i), np.full((1, 1, 2 + i, 3), i))


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_pictures_as_a_batch(tmp_path, batch):
    text = f"""version 1.0;
    graph g(x) -> (y, total) {{
        x = external<scalar>(shape = [{batch}, 1, 2, 3]);
        y = mul(x, 2.0);
        total = sum_reduce(x, axes = [1, 2, 3]);
    }}"""
    model = write(tmp_path / "m", text)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 3))
    paths = [picture(tmp_path / f"p{i}.png", pixels[i]) for i in range(3)]
    found = json.loads(ok("run", model, *paths, "--json"))["results"]
    assert [result["input"] for result in found] == [str(path) for path in paths]
    for i, result in enumerate(found):
        y, total = result["outputs"]
        np.testing.assert_array_equal(y["values"], pixels[i][None, None] * 2)
        assert total["shape"] == [1, 1, 1, 1]
        assert total["values"] == [[[[pixels[i].sum()]]]]
    blocks = ok("run", model, *paths).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [str(path) for path in paths]
    ok("run", model, *paths, "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_array_equal(saved["y"], pixels[:, None] * 2)
        np.testing.assert_array_equal(saved["total"].ravel(), pixels.sum((1, 2)))


def test_pictures_without_a_batch_axis(tmp_path):
    model = through(tmp_path / "m", [2, 3])
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 3))
    paths = [picture(tmp_path / f"p{i}.png", pixels[i]) for i in range(3)]
    ok("run", model, *paths, "--layout", "hw", "-o", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), pixels)


def test_pictures_beside_an_array(tmp_path):
    text = """version 1.0;
    graph g(x, k) -> (y) {
        x = external<scalar>(shape = [1, 1, 1, 2]);
        k = external<scalar>(shape = [1]);
        y = mul(x, k);
    }"""
    model = write(tmp_path / "m", text)
    np.save(tmp_path / "k.npy", np.array([3], np.float32))
    first = picture(tmp_path / "p.png", [[1, 2]])
    second = picture(tmp_path / "q.png", [[3, 4]])
    out = ok("run", model, first, f"k={tmp_path / 'k.npy'}", second, "--json")
    assert values(out).tolist() == [[[[3, 6]]]]
    assert values(out, 1).tolist() == [[[[9, 12]]]]


def test_pictures_for_integers(tmp_path):
    text = "graph g(x) -> (y) { x = external<integer>(shape = [1, 1, 1, 2]); y = copy(x); }"
    model = write(tmp_path / "m", f"version 1.0; {text}")
    found = json.loads(ok("run", model, picture(tmp_path / "p.png", [[7, 255]]), "--json"))
    assert found["results"][0]["outputs"][0]["dtype"] == "int32"
    assert found["results"][0]["outputs"][0]["values"] == [[[[7, 255]]]]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ([2, 1, 2, 3], "", "1 picture is given for input 'x', which takes a batch of 2"),
        ([1, 2, 2, 3], "", "2 channels in the layout nchw"),
        ([1, 6], "", "2 axes, a picture in the layout nchw has 4"),
        ([1, 3, 2, 3], "--mean 1,2", "--mean has 2 numbers, input 'x' has 3 channels"),
        ([1, 3, 2, 3], "--scale 1,2,3,4", "--scale has 4 numbers"),
        ([1, 3, 3, 2], "", "3 pixels wide and 2 high"),
    ],
)
def test_pictures_that_do_not_fit(tmp_path, shape, options, message):
    model = through(tmp_path / "m", shape)
    path = picture(tmp_path / "p.png", RGB)
    assert message in fails("run", model, path, *options.split())


def test_wrong_numbers_of_pictures(tmp_path):
    text = """version 1.0;
    graph g(a, b) -> (y) {
        a = external<scalar>(shape = [1, 1, 1, 2]);
        b = external<scalar>(shape = [1, 1, 1, 2]);
        y = add(a, b);
    }"""
    model = write(tmp_path / "m", text)
    path = picture(tmp_path / "p.png", [[1, 2]])
    err = fails("run", model, *[f"a={path}"] * 3, *[f"b={path}"] * 2)
    assert "3 for input 'a', 2 for input 'b'" in err


@pytest.mark.parametrize("kind", ["text", "short", "flipped", "gif"])
def test_broken_pictures(tmp_path, kind):
    model = through(tmp_path / "m", [1, 3, 40, 40])
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
    path = picture(tmp_path / "p.png", pixels)
    data = path.read_bytes()
    match kind:
        case "text":
            path.write_text("no picture")
        case "short":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            path.write_bytes(data[:60] + bytes(b ^ 255 for b in data[60:200]) + data[200:])
        case "gif":
            picture(path, pixels[..., 0], format="GIF")
    assert "p.png" in fails("run", model, path)


def test_too_large_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    path = picture(tmp_path / "p.png", RGB)
    assert "pixels, the limit is" in fails("run", through(tmp_path / "m", [1, 3, 2, 3]), path)


def test_without_pillow(tmp_path, monkeypatch):
    path = picture(tmp_path / "p.png", RGB)
    monkeypatch.setitem(sys.modules, "PIL", None)
    err = fails("run", through(tmp_path / "m", [1, 3, 2, 3]), path)
    assert 'pip install "nnef_jax[images]"' in err
