# SPDX-License-Identifier: Apache-2.0
"""The installed drivers, and their options.

A driver lists its options in its table (npu_driver.h); its `create` gets their names and values as
text.
"""

from __future__ import annotations

import tvm_ffi

from ..libraries import _library
from ..shared.aliases import JsonFields
from ..shared.backend import BACKEND
from ..shared.constraints import Constraint, OneOf, Range
from .option_values import option_field

DRIVERS = {
    str(driver["role"]): driver
    for driver in tvm_ffi.get_global_func(f"{BACKEND}.codegen.drivers")()
}
"""The descriptions of the installed drivers, by role; the first is the default."""


DEFAULT = next(iter(DRIVERS))
"""Programs are for this driver unless told otherwise; of a vendor's two, for both."""
if DEFAULT != "emulator":
    DEFAULT = ",".join(role for role in DRIVERS if role != "emulator")

FILES = {
    "vendor": ("driver_build", "driver"),
    "second": ("second_build", "second"),
    "emulator": ("emulator_build",),
}
"""The libraries that may contain a driver's build half, by its role."""

ATTRIBUTE = "driver"
"""The attribute of a region that names its driver, in models that have several."""

_SOURCES = {
    "vendor": "NPU_VENDOR_DRIVER_SOURCES",
    "second": "NPU_VENDOR_SECOND_DRIVER_SOURCES",
}


def advise_on_driver(roles: object) -> str:
    """Say why programs cannot be made for a driver of the vendor's."""
    missing = [role for role in str(roles).split(",") if role in _SOURCES and role not in DRIVERS]
    if not missing:
        return ""
    path = next(filter(None, map(_library.find, FILES[missing[0]])), None)
    if path is None:
        return (
            f"; no driver of yours was built: {_SOURCES[missing[0]]} in vendor/vendor.cmake names "
            "its sources"
        )
    return (
        f"; {path} has no function npu_driver_build, so no programs can be made for it: also "
        "compile the driver's build half"
    )


def _read_driver_option(spec: JsonFields) -> tuple[object, Constraint | None]:
    """Return the default and the supported values of a driver's option."""
    kind, default = str(spec["type"]), str(spec["default"])
    if kind == "bool":
        return default == "1", None
    if kind == "int":
        return int(default), Range(min=int(spec["least"]), max=int(spec["most"]))
    if kind == "choice":
        return default, OneOf(*(str(choice) for choice in spec["choices"]))
    return default, None


def with_driver_options(cls: type) -> type:
    """Add the options of all drivers as fields; the first driver with an option describes it."""
    for role, driver in DRIVERS.items():
        for spec in driver["options"]:
            name = str(spec["key"])
            default, allowed = _read_driver_option(spec)
            known = cls.__dict__.get(name)
            if known is None:
                known = option_field("driver", default, str(spec["about"]), allowed)
                known.metadata = {**known.metadata, "by_role": {}}
                cls.__annotations__[name] = type(default).__name__
                setattr(cls, name, known)
            elif known.metadata["group"] != "driver":
                raise ValueError(
                    f"The driver {driver['name']} has an option '{name}', which is one of "
                    f"{BACKEND} already; give it another name."
                )
            known.metadata["by_role"][role] = (default, allowed)
    return cls
