# SPDX-License-Identifier: Apache-2.0
"""The installed drivers through the C API: a program without operations, and corrupt bytes.

Every driver can return an input as an output.
"""

import ctypes
import random

import numpy as np
import pytest

from backend.engine.backend.libraries import _library

OK, INVALID = 0, 2
BUILD = "create destroy error add_symbol add_input add_constant add_tensor add_view set_label"
BUILD += " add_matmul add_convolution add_pool add_elementwise add_reduce add_copy add_gather"
BUILD += " add_scan add_order mark_output finish extension"
RUN = "error count_devices open close load unload describe create_request destroy_request"
RUN += " bind_input bind_output execute submit wait cancel read_counters extension"
pointer = ctypes.c_void_p


class OptionInfo(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("default", ctypes.c_char_p),
        ("least", ctypes.c_int64),
        ("most", ctypes.c_int64),
        ("choices", pointer),
        ("choice_count", ctypes.c_size_t),
        ("about", ctypes.c_char_p),
    ]


class Option(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class BuildTable(ctypes.Structure):
    """npu_build_api of version 1."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("release", ctypes.c_char_p),
        ("options", ctypes.POINTER(OptionInfo)),
        ("option_count", ctypes.c_size_t),
        *((name, pointer) for name in BUILD.split()),
    ]


class RunTable(ctypes.Structure):
    """npu_run_api of version 1."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("release", ctypes.c_char_p),
        ("counters", pointer),
        ("counter_count", ctypes.c_size_t),
        ("cancels", ctypes.c_int),
        *((name, pointer) for name in RUN.split()),
    ]


class Dim(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int64), ("symbol", ctypes.c_int32)]


class Desc(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("rank", ctypes.c_int32), ("dims", Dim * 8)]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", pointer),
        ("bytes", ctypes.c_size_t),
    ]


class Driver:
    """A driver's tables."""

    def __init__(self, role):
        self.build = self._table(_library.find(f"{role}_build") or _library.find(role), "build")
        self.run = self._table(_library.find(role), "run")

    @staticmethod
    def _table(path, half):
        entry = getattr(ctypes.CDLL(str(path)), f"npu_driver_{half}")
        entry.restype = ctypes.POINTER(BuildTable if half == "build" else RunTable)
        return entry(1).contents

    def call(self, table, name, *arguments, result=ctypes.c_int):
        address = getattr(table, name)
        return ctypes.CFUNCTYPE(result)(address)(*arguments) if address else OK

    def error(self):
        text = self.call(self.run, "error", result=ctypes.c_char_p)
        return text.decode() if isinstance(text, bytes) else ""

    def identity(self, shape):
        """Build a program that returns its input."""
        builder, tensor = pointer(), ctypes.c_int32()
        described = self.build.options[: self.build.option_count]
        options = (Option * len(described))(*(Option(one.key, one.default) for one in described))
        count = ctypes.c_size_t(len(described))
        assert self.call(self.build, "create", options, count, ctypes.byref(builder)) == OK
        desc = Desc(0, len(shape))
        for i, size in enumerate(shape):
            desc.dims[i] = Dim(size, -1)
        add = ("add_input", builder, ctypes.byref(desc), ctypes.byref(tensor))
        assert self.call(self.build, *add) == OK
        assert self.call(self.build, "mark_output", builder, tensor) == OK
        data, size = pointer(), ctypes.c_size_t()
        finish = ("finish", builder, ctypes.byref(data), ctypes.byref(size))
        assert self.call(self.build, *finish) == OK
        made = ctypes.string_at(data.value, size.value)
        self.call(self.build, "destroy", builder, result=None)
        return made

    def load(self, data):
        """Load bytes; return the status, the device, the program, and the buffer to keep alive."""
        memory = np.zeros(len(data) + 64, "uint8")
        start = -memory.ctypes.data % 64
        memory[start : start + len(data)] = np.frombuffer(data, "uint8")
        device, program = pointer(), pointer()
        if self.run.open:
            opening = ("open", ctypes.c_int32(0), ctypes.byref(device))
            assert self.call(self.run, *opening) == OK
        where = pointer(memory.ctypes.data + start)
        loading = ("load", device, where, ctypes.c_size_t(len(data)), ctypes.byref(program))
        return self.call(self.run, *loading), device, program, memory

    def close(self, device, program=None):
        if program is not None:
            self.call(self.run, "unload", program, result=None)
        self.call(self.run, "close", device, result=None)


def buffer_of(array):
    dims = (ctypes.c_int64 * 8)(*array.shape)
    size = ctypes.sizeof(Buffer)
    return Buffer(size, 0, array.ndim, dims, array.ctypes.data, array.nbytes)


ROLES = {"driver": "vendor", "second": "second", "emulator": "emulator"}
each_driver = pytest.mark.parametrize("role", [role for role in ROLES if _library.find(role)])


@each_driver
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4, 5)], ids=str)
def test_an_input_may_be_an_output(role, shape):
    driver = Driver(role)
    status, device, program, memory = driver.load(driver.identity(shape))
    assert status == OK, driver.error()
    request = pointer()
    assert driver.call(driver.run, "create_request", program, ctypes.byref(request)) == OK
    given = np.random.default_rng(0).random(shape, dtype="float32")
    found = np.zeros_like(given)
    zero = ctypes.c_size_t(0)
    larger = np.zeros((*shape[:-1], shape[-1] + 1), "float32")
    wrong = buffer_of(larger)
    for name, bound, expected in (
        ("bind_input", wrong, INVALID),
        ("bind_input", buffer_of(given), OK),
        ("bind_output", buffer_of(found), OK),
    ):
        status = driver.call(driver.run, name, request, zero, ctypes.byref(bound))
        assert status == expected, driver.error()
    if driver.run.execute:
        assert driver.call(driver.run, "execute", request) == OK, driver.error()
    else:
        assert driver.call(driver.run, "submit", request) == OK, driver.error()
        assert driver.call(driver.run, "wait", request, ctypes.c_int64(-1)) == OK, driver.error()
    np.testing.assert_array_equal(found, given)
    driver.call(driver.run, "destroy_request", request, result=None)
    driver.close(device, program)
    assert memory.size


@each_driver
def test_corrupt_bytes_are_refused(role):
    driver = Driver(role)
    whole = driver.identity((2, 3))
    generator = random.Random(0)
    for length in range(0, len(whole), 7):
        status, device, _, _ = driver.load(whole[:length])
        assert (status, bool(driver.error())) == (INVALID, True)
        driver.close(device)
    for _ in range(200):
        at = generator.randrange(len(whole))
        flipped = whole[at] ^ 1 << generator.randrange(8)
        damaged = whole[:at] + bytes([flipped]) + whole[at + 1 :]
        status, device, program, _ = driver.load(damaged)
        # A driver without a checksum cannot detect changed text.
        assert status == OK or (status, bool(driver.error())) == (INVALID, True)
        driver.close(device, program if status == OK else None)
