"""The generator: commands and checks around the Copier template of npu-scaffold."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("npu-scaffold")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0"
