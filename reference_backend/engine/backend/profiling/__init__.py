# SPDX-License-Identifier: Apache-2.0
"""The profile: what each engine of the NPU did, and when, for which op, and the host meanwhile.

`record` runs a model where it is loaded, `collect` finds that place and asks for a recording,
`profiles` holds the outcome, which `trace` and `pictures` present. No compiler is needed.
"""

from .collect import profile
from .parts import Allocation, Event, HostCall, Memory, OpProfile, Peaks, RegionProfile
from .profiles import Profile

__all__ = [
    "Allocation",
    "Event",
    "HostCall",
    "Memory",
    "OpProfile",
    "Peaks",
    "Profile",
    "RegionProfile",
    "profile",
]
