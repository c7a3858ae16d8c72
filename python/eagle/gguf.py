"""Reads a GGUF file: its metadata, and its tensors as float32."""

import mmap
import struct

import numpy as np

from .blocks import NAMES, bytes_of, dequantise

TEXT, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """keys: {name: value}; tensors are read when they are asked for."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version, tensors, keys = (self._scalar(form) for form in "IIQQ")
        if magic != 0x46554747 or version not in (2, 3):
            raise ValueError(f"{path} is not a GGUF file of version 2 or 3")
        self.keys = {self._text(): self._value(self._scalar("I")) for _ in range(keys)}
        self._places = dict(self._place() for _ in range(tensors))
        alignment = self.keys.get("general.alignment", 32)
        self._begin = -(-self._at // alignment) * alignment

    def names(self):
        return self._places.keys()

    def tensor(self, name):
        """Outermost dimension first: a matrix is [rows, columns]."""
        shape, kind, offset = self._places[name]
        begin = self._begin + offset
        size = bytes_of(kind, int(np.prod(shape)))
        return dequantise(kind, self._data[begin : begin + size]).reshape(shape[::-1])

    def _scalar(self, form):
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _text(self):
        size = self._scalar("Q")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _value(self, kind):
        if kind == TEXT:
            return self._text()
        if kind != ARRAY:
            return self._scalar(SCALARS[kind])
        element, count = self._scalar("I"), self._scalar("Q")
        return [self._value(element) for _ in range(count)]

    def _place(self):
        name = self._text()
        shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
        number, offset = self._scalar("I"), self._scalar("Q")
        if number not in NAMES:
            raise ValueError(f"tensor {name} has type {number}, which is not read here")
        return name, (shape, NAMES[number], offset)
