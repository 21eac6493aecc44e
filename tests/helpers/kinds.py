"""Image files of many kinds, made without the code that reads them, and numpy's word for what is in them."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

TURNS = {  # EXIF orientation → what makes the stored rows and columns upright
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1), 7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}  # fmt: skip


def noise(*shape, seed=0, dtype=np.uint8, top=256):
    return np.random.default_rng(seed).integers(0, top, shape).astype(dtype)


def file_of(array, kind, **options):
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, **options)
    return out.getvalue()


def exif(orientation):
    found = Image.Exif()
    found[274] = orientation
    return found.tobytes()


def on_ground(rgba, ground):
    """An RGBA array on white (255) or black (0), in float64."""
    colour, alpha = rgba[..., :3].astype(np.float64), rgba[..., 3:] / 255
    return colour * alpha + ground * (1 - alpha)


def through_window(values, low, high):
    return np.rint(np.clip((values.astype(np.float64) - low) / (high - low), 0, 1) * 255).astype(np.uint8)


def percentile(values, share):
    """Between the two values nearest to this place in their order."""
    ordered = np.sort(values.astype(np.float64).ravel())
    place = share / 100 * (len(ordered) - 1)
    below = int(np.floor(place))
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def tiff(
    planes, *, order="<", apart=False, deflate=False, predictor=1, tile=None, rows=None, orientation=None, extra=()
):
    """A TIFF of planes (channels, height, width), written tag by tag."""
    channels, height, width = planes.shape
    dtype = planes.dtype.newbyteorder(order)
    high, wide = tile or (rows or height, width)
    pieces = []
    for group in planes[:, None] if apart else planes[None]:
        for top in range(0, height, high):
            for left in range(0, width, wide):
                piece = group[:, top : top + high, left : left + wide]
                if tile:
                    room = np.zeros((len(group), high, wide), planes.dtype)
                    room[:, : piece.shape[1], : piece.shape[2]] = piece
                    piece = room
                piece = piece.transpose(1, 2, 0)
                if predictor == 2:
                    piece = np.concatenate([piece[:, :1], piece[:, 1:] - piece[:, :-1]], 1)  # modulo 2 ** bits
                content = piece.astype(dtype).tobytes()
                pieces.append(zlib.compress(content) if deflate else content)
    kind = {"u": 1, "i": 2, "f": 3}[planes.dtype.kind]
    body, offsets = b"", []
    for piece in pieces:
        offsets.append(8 + len(body))
        body += piece
    counts = [len(piece) for piece in pieces]
    tags = [
        (256, 4, [width]), (257, 4, [height]), (258, 3, [8 * planes.dtype.itemsize] * channels),
        (259, 3, [8 if deflate else 1]), (262, 3, [1]), (277, 3, [channels]), (284, 3, [2 if apart else 1]),
        (317, 3, [predictor]), (338, 3, [0] * (channels - 1)), (339, 3, [kind] * channels),
    ]  # fmt: skip
    tags += [(274, 3, [orientation])] if orientation else []
    tags += [(322, 4, [wide]), (323, 4, [high]), (324, 4, offsets), (325, 4, counts)] if tile else [
        (273, 4, offsets), (278, 4, [high]), (279, 4, counts)]  # fmt: skip
    tags = sorted(tag for tag in tags if tag[2])
    place = 8 + len(body) + len(body) % 2
    after, entries = place + 2 + 12 * len(tags) + 4, b""
    values = b""
    for tag, size, numbers in tags:
        packed = struct.pack(order + {3: "H", 4: "I"}[size] * len(numbers), *numbers)
        if len(packed) > 4:
            at, values = after + len(values), values + packed
            packed = struct.pack(order + "I", at)
        entries += struct.pack(order + "HHI", tag, size, len(numbers)) + packed.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", place)
    directory = struct.pack(order + "H", len(tags)) + entries + struct.pack(order + "I", 0)
    return head + body + bytes(len(body) % 2) + directory + values


def dicom(stored, *, kind="MONOCHROME2", slope=1, intercept=0, centre=None, width=None, function=None, bits=None):
    """A DICOM file, by pydicom's writer."""
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    frames = stored.shape[0] if stored.ndim == 3 and stored.shape[-1] != 3 else 0
    made.Rows, made.Columns = stored.shape[1:] if frames else stored.shape[:2]
    if frames:
        made.NumberOfFrames = frames
    made.SamplesPerPixel = 3 if kind == "RGB" else 1
    if kind == "RGB":
        made.PlanarConfiguration = 0
    made.PhotometricInterpretation = kind
    made.BitsAllocated = 8 * stored.dtype.itemsize
    made.BitsStored = bits or made.BitsAllocated
    made.HighBit = made.BitsStored - 1
    made.PixelRepresentation = int(stored.dtype.kind == "i")
    if (slope, intercept) != (1, 0):
        made.RescaleSlope, made.RescaleIntercept = slope, intercept
    if centre is not None:
        made.WindowCenter, made.WindowWidth = centre, width
    if function:
        made.VOILUTFunction = function
    made.PixelData = stored.tobytes()
    out = io.BytesIO()
    pydicom.dcmwrite(out, made, enforce_file_format=True)
    return out.getvalue()
