"""Files as torch.save writes them of a module's state dict, without torch: pickled by Python's own pickle, with classes
and functions of torch's names in place of torch's, and zipped by zipfile, entries stored and their sizes behind them, with the zip64 end that torch always writes."""

import collections
import contextlib
import io
import math
import pickle
import struct
import sys
import types
import zipfile

STORAGES = {"F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "BF16": ("BFloat16Storage", 2),
            "I64": ("LongStorage", 8), "I32": ("IntStorage", 4), "U8": ("ByteStorage", 1), "BOOL": ("BoolStorage", 1)}


def _rebuild_tensor_v2():
    raise NotImplementedError("for its name alone")


_rebuild_tensor_v2.__module__ = "torch._utils"
TORCH, UTILS = types.ModuleType("torch"), types.ModuleType("torch._utils")
TORCH._utils, UTILS._rebuild_tensor_v2 = UTILS, _rebuild_tensor_v2
for name, _ in STORAGES.values():
    setattr(TORCH, name, type(name, (), {"__module__": "torch"}))


class Storage:
    def __init__(self, dtype, key, data):
        self.dtype, self.key, self.data = dtype, key, data


class Tensor:
    def __init__(self, storage, shape):
        self.storage, self.shape = storage, tuple(shape)

    def __reduce_ex__(self, protocol):
        strides = tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        hooks = collections.OrderedDict()
        return _rebuild_tensor_v2, (self.storage, 0, self.shape, strides, False, hooks)


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        name, size = STORAGES[value.dtype]
        return "storage", getattr(TORCH, name), value.key, "cpu", len(value.data) // size


@contextlib.contextmanager
def torch_in_place():
    """Names are looked up where they are said to be."""
    there = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": TORCH, "torch._utils": UTILS})
    try:
        yield
    finally:
        for name, module in there.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Forwards:
    """A file in which nothing is gone back to, as torch writes it."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def save(path, tensors):
    """tensors: by name, a type as safetensors has it, a shape, and the bytes."""
    state = collections.OrderedDict()
    state._metadata = collections.OrderedDict([("", {"version": 1}), ("norm", {"version": 1})])
    for name, (dtype, shape, data) in tensors.items():
        state[name] = Tensor(Storage(dtype, str(len(state)), data), shape)
    pickled = io.BytesIO()
    with torch_in_place():
        Pickler(pickled, protocol=2).dump(state)
    root, zipped = path.stem, io.BytesIO()
    with zipfile.ZipFile(Forwards(zipped), "w", zipfile.ZIP_STORED) as archive:

        def add(name, data):
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}"), data)  # of no time

        add("data.pkl", pickled.getvalue())
        add("byteorder", "little")
        for tensor in state.values():
            add(f"data/{tensor.storage.key}", tensor.storage.data)
        add("version", "3\n")
        add(".data/serialization_id", "0" * 40)
    path.write_bytes(with_zip64_end(zipped.getvalue()))


def with_zip64_end(zipped):
    before, end = zipped[:-22], zipped[-22:]
    entries, size, begin = struct.unpack("<HII", end[10:20])
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, entries, entries, size, begin)
    return before + end64 + struct.pack("<IIQI", 0x07064B50, 0, len(before), 1) + end
