# SPDX-License-Identifier: Apache-2.0
"""For `vendor/` and programs that import it from here: `engine.backend.table.capability`."""

from .backend.table.capability import Accumulated as Accumulated
from .backend.table.capability import Among as Among
from .backend.table.capability import Anything as Anything
from .backend.table.capability import AtLeast as AtLeast
from .backend.table.capability import AtMost as AtMost
from .backend.table.capability import Buckets as Buckets
from .backend.table.capability import Elementwise as Elementwise
from .backend.table.capability import Equal as Equal
from .backend.table.capability import Exact as Exact
from .backend.table.capability import Fuses as Fuses
from .backend.table.capability import Input as Input
from .backend.table.capability import NotEqual as NotEqual
from .backend.table.capability import OneOf as OneOf
from .backend.table.capability import Op as Op
from .backend.table.capability import Quantized as Quantized
from .backend.table.capability import Range as Range
from .backend.table.capability import Rule as Rule
from .backend.table.capability import Tolerance as Tolerance
from .backend.table.capability import anything as anything
from .backend.table.capability import only as only
from .backend.table.capability import reference as reference
