# SPDX-License-Identifier: Apache-2.0
"""For `vendor/isa.py` and programs that import it from here: `engine.backend.isa`."""

from .backend.isa.kinds import Address as Address
from .backend.isa.kinds import Choice as Choice
from .backend.isa.kinds import Float as Float
from .backend.isa.kinds import Number as Number
from .backend.isa.kinds import Place as Place
from .backend.isa.kinds import Register as Register
from .backend.isa.machine import Box as Box
from .backend.isa.machine import Engine as Engine
from .backend.isa.machine import Machine as Machine
from .backend.isa.machine import Memory as Memory
from .backend.isa.operations import COMPARISONS as COMPARISONS
from .backend.isa.operations import FUNCTIONS as FUNCTIONS
from .backend.isa.operations import INTEGER_ONLY as INTEGER_ONLY
from .backend.isa.operations import OPERATIONS as OPERATIONS
from .backend.isa.operations import REAL_ONLY as REAL_ONLY
from .backend.isa.operations import REALS as REALS
from .backend.isa.operations import converted as converted
from .backend.isa.oracle import State as State
from .backend.isa.tuning import tunable as tunable
