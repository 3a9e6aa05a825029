# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit may take from the backend.

Beside it, the kit takes the entries of a table from `engine.capability` and `engine.chip`, as
vendors do.
"""

from .importers import from_exported_program as from_exported_program
from .importers import from_onnx as from_onnx
from .ir.calls import attributes_of as attributes_of
from .ir.states import Position as Position
from .ir.states import declare as declare
from .ir.states import states as states
from .libraries._library import versions as versions
from .libraries.asking import listening as listening
from .libraries.asking import ops_of as ops_of
from .loading import WITHOUT_TORCH as WITHOUT_TORCH
from .models.sessions import Session as Session
from .passes.quantized_form import only_moves as only_moves
from .regions.partition import compile_partitioned as compile_partitioned
from .regions.partition import partition_for as partition_for
from .report.report import OpPlacement as OpPlacement
from .report.report import offload_report as offload_report
from .settings.options import Options as Options
from .settings.symbols import with_bounds_of as with_bounds_of
from .shared.aliases import Array as Array
from .shared.aliases import JsonObject as JsonObject
from .shared.backend import BACKEND as BACKEND
from .shared.backend import PACKAGE as PACKAGE
from .shared.backend import VENDOR as VENDOR
from .shared.console import quiet as quiet
from .shared.interrupts import signal_name as signal_name
from .shared.messages import last_line as last_line
from .shared.messages import one_line as one_line
from .table.chains import call_entry as call_entry
from .table.chains import chains_of as chains_of
from .table.chains import spell as spell
from .table.compositions import Composition as Composition
from .table.compositions import Kind as Kind
from .table.judging import Verdict as Verdict
from .table.judging import judge as judge
from .table.patterns import TABLE as TABLE
from .table.reasons import DECLINES as DECLINES
from .table.reasons import is_decline as is_decline
from .table.sdk import decline_of as decline_of
from .verification.originals import original_of as original_of
