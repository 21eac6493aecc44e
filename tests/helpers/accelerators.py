"""What a GPU would notice, seen without one: wrong devices, and moments in which the host waits for the device."""

import sys

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dspreg.devices import send

READS = {  # what a kernel found decides what the host does, or how large a tensor is
    "aten::_local_scalar_dense": "a number is read",
    "aten::is_nonzero": "a truth value is read",
    "aten::equal": "a truth value is read",
    "aten::nonzero": "the size is what was found",
    "aten::masked_select": "the size is what was found",
    "aten::_unique2": "the size is what was found",
    "aten::unique_dim": "the size is what was found",
    "aten::unique_consecutive": "the size is what was found",
    "aten::bincount": "the size is what was found",
    "aten::repeat_interleave": "the size is what was found",
}
COPIES = ("aten::_to_copy", "aten::copy_", "aten::lift_fresh", "aten::set_", "aten::set_data")


def tensors(*nested):
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def within(function):
    """Whether the function is being called."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class Strict(TorchDispatchMode):
    """Operations on `meta` as a GPU, and one without float64, would take them; what it would not is in `faults`.

    `meta` itself lets tensors of two devices into one operation. What a kernel finds can't be read there at all: that
    raises by itself.
    """

    def __init__(self):
        super().__init__()
        self.faults = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name, given, made = func._schema.name, tensors(args, kwargs or {}), tensors(found)
        on_device = [t for t in given if t.is_meta]
        if on_device and name not in COPIES and any(not t.is_meta and t.ndim for t in given):
            self.faults.append(f"{name}: tensors of two devices")
        if not on_device and given and any(t.is_meta for t in made) and not within(send):
            self.faults.append(f"{name}: a copy to the device that it is waited for; use `dspreg.devices.send`")
        if name in COPIES and on_device and any(not t.is_meta for t in made):
            self.faults.append(f"{name}: a copy to the host")
        self.faults += [f"{name}: float64" for t in made if t.is_meta and t.dtype == torch.float64]
        return found


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for the device, with the real numbers of the CPU.

    Everything that was computed from `roots` (images, labels, parameters, buffers) is taken to be on the device; random
    numbers that the host drew, and Adam's count of its steps, are not.
    """

    def __init__(self, *roots):
        super().__init__()
        self.found, self.kept, self.storages = [], [], set()
        self.note(tensors(roots))

    def note(self, made):
        for t in made:
            self.kept.append(t)  # so that no other tensor gets its memory, and with it its name
            self.storages.add(t.untyped_storage()._cdata)

    def is_on_device(self, t):
        return t.untyped_storage()._cdata in self.storages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        on_device = [t for t in tensors(args, kwargs) if self.is_on_device(t)]
        if on_device:
            if name in READS:
                self.found.append(f"{name}: {READS[name]}")
            if name == "aten::_to_copy" and "device" in kwargs and kwargs["device"] is not None:
                self.found.append(f"{name}: a copy to the host")
            masks = tensors(args[1]) if name in ("aten::index", "aten::index_put", "aten::index_put_") else []
            if any(mask.dtype in (torch.bool, torch.uint8) and self.is_on_device(mask) for mask in masks):
                self.found.append(f"{name}: the size is what was found")
        made = func(*args, **kwargs)
        if on_device:
            self.note(tensors(made))
        return made


class Answers(Strict):
    """Like `Strict`, but what the host reads is answered (yes, or zeros), and counted in `reads`.

    For work between steps, which may wait for the device.
    """

    def __init__(self):
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, given = func._schema.name, tensors(args, kwargs or {})
        if not any(t.is_meta for t in given):
            return super().__torch_dispatch__(func, types, args, kwargs)
        if name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"):
            self.reads += 1
            return True if name != "aten::_local_scalar_dense" or given[0].dtype == torch.bool else 0.0
        if name == "aten::nonzero":
            self.reads += 1
            return torch.empty(given[0].numel(), given[0].ndim, dtype=torch.int64, device="meta")
        to_host = name == "aten::_to_copy" and torch.device((kwargs or {}).get("device") or "meta").type == "cpu"
        if to_host or (name == "aten::copy_" and not given[0].is_meta):
            self.reads += 1
            dtype = (kwargs or {}).get("dtype") or given[0].dtype
            return given[0].zero_() if name == "aten::copy_" else torch.zeros(given[0].shape, dtype=dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)
