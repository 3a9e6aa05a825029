# SPDX-License-Identifier: Apache-2.0
"""All options: one dataclass, read from arguments, mappings, files and the environment.

`driver_options` adds those of the installed drivers.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import tvm_ffi

from ..shared.aliases import JsonFields, JsonObject
from ..shared.backend import BACKEND, DEFAULTS
from ..shared.constraints import InOrder, OneOf, Range
from .driver_options import DEFAULT, DRIVERS, advise_on_driver, with_driver_options
from .option_values import checked, kind_of, option_field, parsed, read_file, supported

PREFIX = f"{BACKEND.upper()}_"
"""The prefix of environment variables; the name of an option follows."""

OTHER_VARIABLES = ("ANY_TVM", "DEVICE", "DRIVER_DIR")
"""Variables with that prefix that belong to the libraries, and are not options."""

_log = logging.getLogger(__name__)
_reported: set[Override] = set()


_placement = partial(option_field, "placement")
_program = partial(option_field, "program")
_local = partial(option_field, "local")


@dataclass(frozen=True)
class Override:
    """An option whose value comes from an environment variable."""

    option: str
    value: object
    variable: str

    def __hash__(self) -> int:
        """Hash it; the value may be a mapping."""
        return hash((self.option, repr(self.value), self.variable))


@dataclass(frozen=True, kw_only=True)
@with_driver_options
class Options:
    """All settings; each is checked when it is set.

    `python -m` with the name of this package and `options` lists them. `Options.load` also reads
    files and the environment.
    """

    # The choice of ops for the NPU.
    bind_constants: bool = _placement(
        DEFAULTS["bind_constants"],
        "whether weights become part of the program, or are passed at each call",
    )
    on_decline: str = _placement(
        DEFAULTS["on_decline"],
        "what happens to ops that the driver declines",
        OneOf("host", "error"),
    )
    strict: bool = _placement(
        False, "whether it is an error if anything but bookkeeping stays on the host"
    )
    strict_except: list[str] = _placement(  # noqa: RUF009 (a field with a factory)
        [],
        "ops that 'strict' allows on the host, by op, variable, or the author's name or module",
    )
    keep_on_host: list[str] = _placement(  # noqa: RUF009
        [], "ops that stay on the host, by op, variable, or the author's name or module"
    )
    min_region_ops: int = _placement(1, "regions of fewer ops stay on the host", Range(min=1))
    max_regions: int = _placement(
        0,
        "how many regions a model may have: the largest are kept; 0: any number",
        Range(min=0),
    )
    merge_regions: bool = _placement(
        True, "whether neighbours make one region, or each composite its own"
    )

    # How programs are made, and run.
    driver: str = _program(
        DEFAULT,
        "the driver that programs are for; of several, each takes what those before it leave",
        InOrder(*DRIVERS),
        advise_on_driver,
    )
    symbol_bound: int = _program(
        64, "the largest value of each symbolic size", Range(min=1, max=2**31 - 1)
    )
    symbol_bounds: Mapping[str, int] = _program(
        {},
        "the largest value of symbolic sizes by name, for those where it differs",
        Range(min=1, max=2**31 - 1),
    )
    timeout_ms: int = _program(
        0, "how long a call may take before it fails; 0: no limit", Range(min=0, max=2**31 - 1)
    )

    # Settings of this machine, which artifacts do not record.
    cache_dir: str = _local("", "the folder of the compile cache; none: no cache")
    cache_bytes: int = _local(
        1 << 30,
        "the size of the compile cache, from which the least recently used entries are dropped",
        Range(min=1),
    )
    dump: str = _local(
        "none",
        "what to dump of each region, for people: its graph, or its program too",
        OneOf("none", "graph", "program"),
    )
    dump_dir: str = _local(".", "the folder for dumps")

    overrides: tuple[Override, ...] = field(default=(), repr=False)
    """The options set by environment variables; filled by `load`."""

    def __new__(cls, **settings: object) -> Options:
        """Refuse unknown names, and list the known ones."""
        _refuse_unknown({name: value for name, value in settings.items() if name != "overrides"})
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check all values, and convert NumPy numbers and whole floats to Python's.

        Raises
        ------
        ValueError
            A value, or a combination of two, is not supported.
        """
        for option in _options():
            value = checked(option, getattr(self, option.name))
            object.__setattr__(self, option.name, value)
        for option in _options("driver"):
            if not self._has(option) and getattr(self, option.name) != option.default:
                roles = ", ".join(option.metadata["by_role"])
                raise ValueError(
                    f"The option '{option.name}' is one of the driver '{roles}', and programs are "
                    f"for the driver '{self.driver}'; leave it out, or set the option 'driver'."
                )
        if len(self.drivers) > 1:
            for role in self.drivers:
                self.for_driver(role)  # Checks the options of this one.
            return
        for option in filter(self._has, _options("driver")):
            value = getattr(self, option.name)
            _, allowed = option.metadata["by_role"][self.driver]
            if allowed is not None and not allowed.accepts(value):
                raise ValueError(
                    f"The option '{option.name}' is {value!r}; supported by the driver "
                    f"'{self.driver}': {allowed}."
                )
        # The driver checks combinations.
        check = tvm_ffi.get_global_func(f"{BACKEND}.codegen.check_options")
        if reason := str(check(self.driver, self.driver_options())):
            raise ValueError(reason)

    @classmethod
    def load(
        cls, source: Options | Mapping[str, object] | str | os.PathLike[str] | None
    ) -> Options:
        """Read options; missing ones get their default, and environment variables override.

        Parameters
        ----------
        source
            Options, names with their values, or the path of a file that ends in .toml or .json.

        Returns
        -------
        options
            The options; `overrides` lists those set by the environment.

        Raises
        ------
        ValueError
            An option is unknown or unsupported; the message says where, and lists the valid ones.
        """
        if isinstance(source, Options):
            return source._overridden()
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            try:
                return cls.from_dict(_with_chosen_driver(read_file(path)))._overridden()
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        return cls.from_dict(_with_chosen_driver({} if source is None else source))._overridden()

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Options:
        """Read what `to_dict` wrote, or a part of it.

        Parameters
        ----------
        values
            Options by name.

        Returns
        -------
        options
            The options, ignoring the environment.

        Raises
        ------
        ValueError
            Something is not known or not supported.
        """
        if not isinstance(values, Mapping):
            raise ValueError(
                f"options is a {type(values).__name__}; supported: Options, a mapping of names to "
                "values, and the path of a .toml or .json file."
            )
        # __post_init__ checks the types.
        known: JsonObject = {str(name): value for name, value in values.items()}
        overrides = _read_overrides(known.pop("overrides", ()))
        _refuse_unknown(known)
        return cls(**known, overrides=overrides)

    def merged(self, **settings: Any) -> Options:
        """Return these options with some of them set; environment variables still override.

        Parameters
        ----------
        **settings
            Options by name.

        Returns
        -------
        options
            The options.

        Raises
        ------
        ValueError
            Something is not known or not supported.
        """
        _refuse_unknown(settings)
        kept = tuple(item for item in self.overrides if item.option not in settings)
        return replace(self, **settings, overrides=kept)._overridden()

    def to_dict(self) -> JsonObject:
        """Return all options as JSON data, also for `RunCodegen`."""
        return asdict(self) | {"overrides": [asdict(item) for item in self.overrides]}

    def recorded(self) -> dict[str, object]:
        """Return the options that an artifact records: all except machine settings and names."""
        return {
            item.name: getattr(self, item.name)
            for item in _options()
            if _is_recorded(item) and self._has(item)
        }

    def recorded_overrides(self) -> list[dict[str, object]]:
        """Return the recorded options that the environment has set."""
        names = self.recorded()
        return [asdict(item) for item in self.overrides if item.option in names]

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers that are asked about ops, in this order."""
        return tuple(self.driver.split(","))

    def for_driver(self, role: str) -> Options:
        """Return these options for one of the drivers, without those of the others."""
        if role == self.driver:
            return self
        known = [option for option in _options("driver") if role not in option.metadata["by_role"]]
        values: JsonObject = {option.name: option.default for option in known}
        values["driver"] = role
        kept = tuple(item for item in self.overrides if item.option not in values)
        return replace(self, **values, overrides=kept)

    @property
    def driver_name(self) -> str:
        """What the drivers call themselves."""
        return ", ".join(str(DRIVERS[role]["name"]) for role in self.drivers)

    def driver_options(self) -> dict[str, str]:
        """Return the driver's options, as it takes them."""
        values = {
            item.name: getattr(self, item.name) for item in _options("driver") if self._has(item)
        }
        return {
            name: str(int(value)) if isinstance(value, bool) else str(value)
            for name, value in values.items()
        }

    def _has(self, option: Field[object]) -> bool:
        """Whether an option belongs to the engine or to a selected driver."""
        return not set(self.drivers).isdisjoint(option.metadata.get("by_role", self.drivers))

    def _overridden(self) -> Options:
        """Apply environment variables, and warn about them once."""
        known = {PREFIX + option.name.upper(): option for option in _options()}
        found: dict[str, Override] = {}
        for variable in sorted(os.environ):
            if not variable.startswith(PREFIX):
                continue
            if variable not in known:
                if _is_of_others(variable):
                    continue
                # Strip the common prefix, which makes all names look close.
                names = {name.removeprefix(PREFIX): name for name in known}
                raise ValueError(
                    f"The environment variable {variable} sets no option of {BACKEND}"
                    f"{_meant(variable.removeprefix(PREFIX), names)}; "
                    f"supported: {', '.join(known)}."
                )
            option = known[variable]
            try:
                value = checked(option, parsed(option, os.environ[variable]))
            except ValueError as error:
                raise ValueError(f"The environment variable {variable}: {error}") from None
            found[option.name] = Override(option.name, value, variable)
        for override in found.values():
            if override not in _reported:
                _reported.add(override)
                _log.warning(
                    "%s sets the option '%s' of %s to %r",
                    *(override.variable, override.option, BACKEND, override.value),
                )
        # Recorded overrides hold too, but were reported before.
        found = {item.option: item for item in self.overrides} | found
        if not found:
            return self
        values: JsonObject = {item.option: item.value for item in found.values()}
        return replace(self, **values, overrides=tuple(found.values()))


Source = Options | Mapping[str, object] | str | os.PathLike[str] | None
"""Where options come from; a string or a path names a file that ends in .toml or .json."""


def read_settings(settings: Iterable[str]) -> JsonObject:
    """Read single options from texts, as a command line has them.

    `settings`: texts such as "threads=2". The values of lists have commas between them, as those of
    environment variables; one that is set again replaces the value before.
    """
    known = {option.name: option for option in _options()}
    values: JsonObject = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"'{setting}' sets no option; supported: NAME=VALUE.")
        _refuse_unknown({name: text})
        values[name] = parsed(known[name], text)
    return values


def described() -> list[dict[str, object]]:
    """Return all options as plain data: group, name, default, supported values, and meaning."""
    return [
        {
            "group": option.metadata["group"],
            "name": option.name,
            "default": _default(option),
            "supported": supported(option),
            "about": option.metadata["about"],
        }
        for option in _options()
    ]


def describe() -> str:
    """Return a table of all options: name, default, supported values, and meaning."""
    lines = [
        "Set by keyword, mapping, or .toml or .json file; an environment variable overrides, for "
        f"example {PREFIX}{_options()[0].name.upper()}.",
    ]
    for group in dict.fromkeys(option.metadata["group"] for option in _options()):
        lines.append(f"{group}:")
        for option in _options(group):
            default = json.dumps(_default(option))
            allowed = supported(option)
            lines.append(f"  {option.name} = {default}  ({allowed}): {option.metadata['about']}")
    return "\n".join(lines)


def _with_chosen_driver(values: Mapping[str, object]) -> Mapping[str, object]:
    """Let the environment choose the driver whose options may be set."""
    driver = os.environ.get(f"{PREFIX}DRIVER")
    if driver is None or not InOrder(*DRIVERS).accepts(driver) or not isinstance(values, Mapping):
        return values
    return {**values, "driver": driver}


def _options(group: str | None = None) -> list[Field[object]]:
    options = [option for option in fields(Options) if option.metadata]
    return [option for option in options if group in (None, option.metadata["group"])]


def _is_recorded(option: Field[object]) -> bool:
    # Names of a model's ops say nothing about a program.
    return bool(option.metadata["group"] != "local") and kind_of(option) is not list


def _default(option: Field[object]) -> object:
    kind = kind_of(option)
    return kind() if kind in (dict, list) else option.default


def _read_overrides(items: Iterable[JsonFields]) -> tuple[Override, ...]:
    """Read the overrides recorded in an artifact or by `to_dict`."""
    known = {option.name: option for option in _options()}
    try:
        found = [Override(**{str(name): item[name] for name in item}) for item in items]
        return tuple(
            Override(str(item.option), checked(known[item.option], item.value), str(item.variable))
            for item in found
        )
    except (AttributeError, KeyError, TypeError):
        shown = items if isinstance(items, (str, int, float, type(None))) else list(items)
        raise ValueError(
            f"overrides is {shown!r}; only to_dict writes it, and it cannot be set."
        ) from None


def _refuse_unknown(values: Mapping[str, object]) -> None:
    known = {option.name: option.name for option in _options()}
    for name in values:
        if name not in known:
            raise ValueError(
                f"The option '{name}' is not known to {BACKEND}{_meant(name, known)}; "
                f"known: {', '.join(known)}."
            )


def _meant(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {known[near[0]]}?)" if near else ""


def _is_of_others(variable: str) -> bool:
    """Whether a variable with this prefix is not an option of this backend."""
    if variable.removeprefix(PREFIX) in OTHER_VARIABLES:
        return True
    # Another backend's name may start with this one's.
    others = (point.name.upper() + "_" for point in entry_points(group="tvm.backends"))
    return any(
        other.startswith(PREFIX) and other != PREFIX and variable.startswith(other)
        for other in others
    )
