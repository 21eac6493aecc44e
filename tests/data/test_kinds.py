"""Images as people have them, each against a conversion by hand in numpy."""

import builtins
import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from dspreg.config.reading import OWN_READING, Reading
from dspreg.data import BadImage, decode_image
from dspreg.data.bands import Bands, planes_of
from dspreg.data.convert import PERCENTILES
from dspreg.data.decode import decode_bytes
from dspreg.data.pixels import make_square
from dspreg.errors import ConfigError
from helpers.images import bad_files, good_files
from helpers.kinds import TURNS, dicom, exif, file_of, noise, on_ground, percentile, through_window, tiff


def seen(content, reading=OWN_READING, touched=None):
    """(height, width, channels) of a file, or (height, width) of a grey one."""
    picture = decode_bytes(content, "a file", reading, touched)
    planes = planes_of(picture)
    return planes[0] if len(planes) == 1 else planes.transpose(1, 2, 0)


def reading(**changes):
    return Reading(**{"exif": True, "alpha": "white", "window": "auto", **changes})


GREY = reading(channels=1)


# Orientation.


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_as_exif_says(kind, orientation):
    stored = noise(5, 8, 3)
    options = {"lossless": True} if kind == "WEBP" else {}
    content = file_of(stored, kind, exif=exif(orientation), **options)
    touched = set()
    assert np.array_equal(seen(content, touched=touched), TURNS[orientation](stored))
    assert touched == ({"turned"} if orientation > 1 else set())
    left = reading(exif=False)
    assert np.array_equal(seen(content, left), stored)


def test_a_jpeg_of_a_phone_is_turned():
    stored = np.zeros((40, 64, 3), np.uint8)
    stored[:8] = (255, 0, 0)  # what is on top as it is stored is on the right as it was seen
    shown = seen(file_of(stored, "JPEG", quality=95, subsampling=0, exif=exif(6)))
    assert shown.shape == (64, 40, 3)
    assert shown[:, -4:, 0].min() > 200
    assert shown[:, :24].max() < 40


@pytest.mark.parametrize("said", [b"Exif\0\0", b"Exif\0\0MM\0*" + bytes(30), b"Exif\0\0" + b"\xff" * 200])
def test_damaged_metadata_are_no_damaged_pixels(said):
    stored = noise(6, 9, 3)
    assert np.array_equal(seen(file_of(stored, "PNG", exif=said)), stored)


def test_a_turned_image_is_not_turned_again():
    """What was decoded passes through a transform, which does for a caller's image what decoding does for a file."""
    from dspreg.data.transforms import Transform

    stored = noise(8, 8, 3)
    content = file_of(stored, "PNG", exif=exif(6))
    transform = Transform(8, (0.5,) * 3, (0.5,) * 3, reading=OWN_READING)
    picture = decode_bytes(content, "a file", OWN_READING)
    expected = TURNS[6](stored).transpose(2, 0, 1)
    assert np.array_equal(transform.pixels(picture).numpy(), expected)
    assert np.array_equal(
        transform.pixels(Image.open(io.BytesIO(content))).numpy(), expected
    )  # the same for a caller's


# Transparency.


@pytest.mark.parametrize(("alpha", "ground"), [("white", 255), ("black", 0)])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_a_transparent_image_stands_on_its_ground(kind, alpha, ground):
    rgba = noise(9, 7, 4)
    rgba[0] = (1, 2, 3, 0)
    rgba[1, :, 3] = 255
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    touched = set()
    shown = seen(file_of(rgba, kind, **options), reading(alpha=alpha), touched)
    assert touched == {"transparent"}
    assert np.abs(shown - on_ground(rgba, ground)).max() <= 1
    assert (shown[0] == ground).all()
    assert np.array_equal(shown[1], rgba[1, :, :3])
    assert np.array_equal(seen(file_of(rgba, kind, **options), reading(alpha="drop")), rgba[..., :3])


def test_transparency_of_palettes_and_of_one_colour():
    image = Image.fromarray(noise(6, 6, 3)).quantize(8)
    clear = np.asarray(image) == 3
    assert clear.any()
    out = io.BytesIO()
    image.save(out, "PNG", transparency=3)
    shown = seen(out.getvalue())
    assert (shown[clear] == 255).all()
    assert np.array_equal(shown[~clear], np.asarray(image.convert("RGB"))[~clear])


def test_an_opaque_alpha_is_no_transparency():
    rgba = noise(5, 5, 4)
    rgba[..., 3] = 255
    touched = set()
    assert np.array_equal(seen(file_of(rgba, "PNG"), touched=touched), rgba[..., :3])
    assert not touched


# Levels.


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_go_through_percentiles_or_a_window(kind):
    stored = noise(40, 30, dtype=np.uint16, top=5_000) + np.uint16(1_000)
    content, touched = file_of(stored, kind), set()
    low, high = (percentile(stored, share) for share in PERCENTILES)
    expected = through_window(stored, low, high)
    assert np.array_equal(seen(content, GREY, touched), expected)
    assert touched == {"windowed"}
    assert np.array_equal(seen(content), np.stack([expected] * 3, -1))
    assert np.array_equal(seen(content, reading(channels=1, window="percentile")), expected)
    fixed = seen(content, reading(channels=1, window="0:65535"))
    assert np.array_equal(fixed, np.rint(stored / 257).astype(np.uint8))
    with pytest.raises(BadImage, match="no window to 8 bits is chosen; --window percentile"):
        seen(content, reading(window="none"))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_floats_and_negative_numbers(dtype):
    stored = (np.random.default_rng(1).normal(0, 900, (31, 17))).astype(dtype)
    content = file_of(stored, "TIFF")
    assert np.array_equal(seen(content, reading(channels=1, window="-1000:400")), through_window(stored, -1000, 400))
    low, high = (percentile(stored, share) for share in PERCENTILES)
    assert np.abs(seen(content, GREY).astype(int) - through_window(stored, low, high)).max() <= 1


def test_what_is_not_finite_is_refused():
    for bad in (np.nan, np.inf):
        stored = np.ones((4, 4), np.float32)
        stored[2, 2] = bad
        for window in ("percentile", "0:1"):
            with pytest.raises(BadImage, match="not finite"):
                seen(file_of(stored, "TIFF"), reading(window=window))


def test_an_image_of_one_value_is_black_and_one_of_two_keeps_both():
    assert not seen(file_of(np.full((6, 5), 700, np.uint16), "PNG")).any()
    two = np.full((100, 100), 300, np.uint16)
    two[0, 0] = 900  # one pixel in ten thousand: no percentile sees it
    shown = seen(file_of(two, "PNG"), GREY)
    assert (shown[0, 0], shown[5, 5]) == (255, 0)


def test_large_images_are_converted_in_parts_as_at_once():
    stored = noise(1_000, 3, dtype=np.uint16, top=65_536)
    expected = through_window(stored, 100, 60_000)
    assert np.array_equal(seen(file_of(stored, "PNG"), reading(channels=1, window="100:60000")), expected)


# Channels.


def test_grey_is_grey_and_colours_become_grey():
    grey, colour = noise(6, 4), noise(6, 4, 3)
    assert np.array_equal(seen(file_of(grey, "PNG"), GREY), grey)
    assert np.array_equal(seen(file_of(grey, "PNG")), np.stack([grey] * 3, -1))
    luma = colour @ np.array([0.299, 0.587, 0.114])
    assert np.abs(seen(file_of(colour, "PNG"), GREY) - luma).max() <= 1


@pytest.mark.parametrize("options", [
    {}, {"order": ">"}, {"apart": True}, {"deflate": True}, {"deflate": True, "predictor": 2}, {"rows": 3},
    {"tile": (16, 16)}, {"tile": (16, 16), "apart": True, "deflate": True, "order": ">"}, {"predictor": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiffs_of_many_channels(options, dtype):
    planes = noise(5, 23, 37, dtype=dtype, top=256 if dtype is np.uint8 else 65_536)
    got = planes_of(decode_bytes(tiff(planes, **options), "a file", reading(channels=5, window="0:65535")))
    assert np.array_equal(got, planes if dtype is np.uint8 else np.rint(planes / 257).astype(np.uint8))


def test_each_channel_has_its_own_percentiles():
    planes = np.random.default_rng(0).normal(0, 1, (4, 30, 20)).astype(np.float32) * np.float32(
        [[[1]], [[10]], [[5]], [[2]]]
    )
    got = planes_of(decode_bytes(tiff(planes), "a file", reading(channels=4)))
    for ours, plane in zip(got, planes, strict=True):
        assert np.array_equal(ours, through_window(plane, *(percentile(plane, share) for share in PERCENTILES)))


def test_the_orientation_of_a_tiff_of_many_channels():
    planes = noise(4, 6, 9)
    got = planes_of(decode_bytes(tiff(planes, orientation=6), "a file", reading(channels=4)))
    assert np.array_equal(got, np.stack([TURNS[6](plane) for plane in planes]))


def test_pages_as_channels():
    pages = [Image.fromarray(noise(7, 5, seed=n)) for n in range(4)]
    out, touched = io.BytesIO(), set()
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    got = planes_of(decode_bytes(out.getvalue(), "a file", reading(channels=4), touched))
    assert np.array_equal(got, np.stack([np.asarray(page) for page in pages]))
    assert not touched
    assert np.array_equal(seen(out.getvalue(), GREY, touched), np.asarray(pages[0]))
    assert touched == {"frames"}


def test_four_channels_of_a_png_and_two():
    rgba, la = noise(6, 5, 4), noise(6, 5, 2)
    assert np.array_equal(seen(file_of(rgba, "PNG"), reading(channels=4)), rgba)
    assert np.array_equal(seen(file_of(la, "PNG"), reading(channels=2)), la)


def test_channels_are_never_lost_in_silence():
    five = tiff(noise(5, 8, 8))
    with pytest.raises(BadImage, match="--channels 5 reads them"):
        seen(five)
    with pytest.raises(BadImage, match=r"it has 3 channels .*; wanted 4"):
        seen(file_of(noise(4, 4, 3), "PNG"), reading(channels=4))
    with pytest.raises(BadImage, match="it has 1 channel; wanted 4"):
        seen(file_of(noise(4, 4, dtype=np.uint16), "PNG"), reading(channels=4))


# Frames, and kinds.


def test_the_first_frame_of_an_animated_gif():
    frames = [Image.fromarray(noise(8, 8, 3, seed=n)).quantize(16) for n in range(3)]
    out, touched = io.BytesIO(), set()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=50)
    assert np.array_equal(seen(out.getvalue(), touched=touched), np.asarray(frames[0].convert("RGB")))
    assert touched == {"frames"}


def test_avif():
    stored = np.zeros((32, 32, 3), np.uint8)
    stored[:, 16:] = (250, 120, 30)
    shown = seen(file_of(stored, "AVIF", quality=100))
    assert np.abs(shown.astype(int) - stored).mean() < 2


def test_heic_is_read_where_its_plugin_is_and_said_where_not(monkeypatch):
    start = b"\0\0\0\x18ftypheic" + bytes(40)
    monkeypatch.setattr("dspreg.data.decode.find_spec", lambda _name: None)
    with pytest.raises(BadImage, match=r"a HEIC, which needs a plugin of Pillow: pip install 'dspreg\[heic\]'"):
        seen(start)
    monkeypatch.undo()
    pillow_heif = pytest.importorskip("pillow_heif")
    stored = np.zeros((64, 48, 3), np.uint8)
    stored[:, 24:] = (40, 160, 220)
    out = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(stored)).save(out, quality=95)
    shown = seen(out.getvalue())
    assert shown.shape == stored.shape
    assert np.abs(shown.astype(int) - stored).mean() < 8


# DICOM.


def window_of_dicom(values, centre, width):
    """As PS3.3 C.11.2.1.2 has it, pixel by pixel, with y from 0 to 255."""
    out = np.zeros(values.shape)
    for place, x in np.ndenumerate(values):
        if x <= centre - 0.5 - (width - 1) / 2:
            out[place] = 0
        elif x > centre - 0.5 + (width - 1) / 2:
            out[place] = 255
        else:
            out[place] = ((x - (centre - 0.5)) / (width - 1) + 0.5) * 255
    return np.rint(out)


@pytest.fixture
def pydicom():
    return pytest.importorskip("pydicom", reason="needs pydicom: pip install 'dspreg[dicom]'")


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_dicom_in_hounsfield_units_through_the_window_it_names(pydicom, kind):
    stored = noise(24, 18, dtype=np.uint16, top=4_096)
    content = dicom(stored, kind=kind, slope=1.5, intercept=-1024, centre=40, width=400, bits=12)
    expected = window_of_dicom(stored * 1.5 - 1024, 40, 400)
    expected = 255 - expected if kind == "MONOCHROME1" else expected
    assert np.array_equal(seen(content, GREY), expected)
    assert np.array_equal(seen(content), np.stack([expected] * 3, -1))
    fixed = through_window(stored * 1.5 - 1024, -1000, 400)
    fixed = 255 - fixed if kind == "MONOCHROME1" else fixed
    assert np.array_equal(seen(content, reading(channels=1, window="-1000:400")), fixed)


def test_dicom_without_a_window_and_of_signed_values(pydicom):
    stored = (noise(20, 20, dtype=np.int32, top=3_000) - 1_500).astype(np.int16)
    low, high = (percentile(stored, share) for share in PERCENTILES)
    assert np.array_equal(seen(dicom(stored), GREY), through_window(stored, low, high))
    named = dicom(stored, centre=0, width=100)
    assert np.array_equal(seen(named, reading(channels=1, window="percentile")), through_window(stored, low, high))


@pytest.mark.parametrize("function", ["LINEAR_EXACT", "SIGMOID"])
def test_the_other_functions_of_a_dicom_window(pydicom, function):
    stored = noise(16, 16, dtype=np.uint16, top=1_000)
    x = stored.astype(float)
    exact = np.clip((x - 500) / 300 + 0.5, 0, 1) * 255
    expected = exact if function == "LINEAR_EXACT" else 255 / (1 + np.exp(-4 * (x - 500) / 300))
    shown = seen(dicom(stored, centre=500, width=300, function=function), GREY)
    assert np.abs(shown - expected).max() < 0.5 + 1e-9  # either way where it lies halfway


def test_colours_and_frames_of_dicom(pydicom):
    colours = noise(6, 7, 3)
    assert np.array_equal(seen(dicom(colours, kind="RGB")), colours)
    frames, touched = noise(4, 9, 8, dtype=np.uint16, top=900), set()
    low, high = (percentile(frames[0], share) for share in PERCENTILES)
    assert np.array_equal(seen(dicom(frames), GREY, touched), through_window(frames[0], low, high))
    assert touched == {"frames", "windowed"}


def test_dicom_without_pydicom_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.partition(".")[0] == "pydicom":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'dspreg\[dicom\]'"):
        seen(bytes(128) + b"DICM" + bytes(200))


# Size and shape.


def test_much_larger_images_are_shrunk_by_whole_factors():
    stored = noise(90, 130, 3)
    touched = set()
    shown = seen(file_of(stored, "PNG"), reading(shrink=20), touched)  # 90 // 20 = 4
    assert touched == {"shrunk"}
    assert shown.shape == (23, 33, 3)
    expected = stored[:88, :128].reshape(22, 4, 32, 4, 3).mean((1, 3))
    assert np.abs(shown[:22, :32] - expected).max() <= 1
    assert seen(file_of(stored, "PNG"), reading(shrink=46)).shape == stored.shape


def test_a_large_jpeg_is_decoded_at_a_lower_resolution_and_looks_the_same():
    coarse = Image.fromarray(noise(7, 9, 3)).resize((1800, 1400), Image.Resampling.BICUBIC)
    content = file_of(np.asarray(coarse), "JPEG", quality=95)
    shown = seen(content, reading(shrink=160))
    assert min(shown.shape[:2]) >= 160
    assert shown.shape == (175, 225, 3)  # an eighth
    expected = np.asarray(coarse).reshape(175, 8, 225, 8, 3).mean((1, 3))
    assert np.abs(shown - expected).mean() < 2


def test_squares():
    image = Image.fromarray(noise(5, 9, 3))
    pixels = np.asarray(image)
    assert make_square(image, "squash") is image
    assert np.array_equal(np.asarray(make_square(image, "crop")), pixels[:, 2:7])
    padded = np.asarray(make_square(image, "pad"))
    assert padded.shape == (9, 9, 3)
    assert np.array_equal(padded[2:7], pixels)
    assert not padded[:2].any()
    assert not padded[7:].any()
    assert make_square(Image.new("L", (1, 60_000)), "pad").size == (4_096, 4_096)  # bounded
    bands = Bands([Image.fromarray(noise(9, 5, seed=n)) for n in range(4)])
    assert np.array_equal(planes_of(make_square(bands, "crop")), planes_of(bands)[:, 2:7])


# What DomainBed's reading does not know, and what is hostile.


def test_domainbeds_reading_is_pillows_pixels_and_first_kinds(tmp_path):
    for name in good_files(tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about transparency
            expected = np.asarray(Image.open(tmp_path / name).convert("RGB"))
        assert np.array_equal(np.asarray(decode_image(tmp_path / name)), expected), name
    for kind, word in (("TIFF", "a TIFF"), ("GIF", "a GIF")):
        with pytest.raises(BadImage, match=word):
            seen(file_of(noise(4, 4, 3), kind), Reading())


def test_bad_files_are_bad_in_every_reading(tmp_path):
    fine = {"really_a_gif.jpg", "really_a_tiff.png", "deep.png"}
    for name, word in bad_files(tmp_path).items():
        if name not in fine:
            with pytest.raises(BadImage) as refused:
                decode_image(tmp_path / name, OWN_READING)
            assert word in refused.value.reason.replace("nor DICOM", "neither JPEG"), name


def test_a_tensor_is_a_picture():
    from dspreg.data.convert import picture_from

    planes = noise(3, 6, 5)
    for value in (torch.from_numpy(planes), planes, torch.from_numpy(planes).float() / 255):
        assert np.array_equal(planes_of(picture_from(value, Reading())), planes)
