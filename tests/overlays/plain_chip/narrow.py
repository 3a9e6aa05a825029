"""Stand-in for Chip(...): patches the installed package in the folder given."""

import sys
from pathlib import Path

pkg = Path(sys.argv[1])
cap = pkg / "capabilities.py"
t = cap.read_text()
if "_narrowed" not in t:
    cap.write_text(
        t
        + """

# ---- A plain chip ----
from dataclasses import replace as _replace

_DTYPES = ("float32",)
_WEIGHTS = ("weight", "gamma", "beta", "moving_mean", "moving_var", "alpha")


def _narrowed(op):
    inputs = []
    for item in op.inputs:
        dtypes = item.dtypes
        if not item.like:
            dtypes = tuple(d for d in item.dtypes or _DTYPES if d in _DTYPES)
            if not dtypes:
                return None
        constant = item.name in _WEIGHTS or (op.name, item.name) == ("matmul", "x2")
        inputs.append(_replace(item, dtypes=dtypes, constant=constant))
    outputs = tuple(d for d in op.output_dtypes if d in _DTYPES)
    if op.output_dtypes and not outputs:
        return None
    return _replace(op, inputs=tuple(inputs), output_dtypes=outputs)


ENGINE = {op.name: op for op in OPS}
OPS = tuple(op for op in map(_narrowed, OPS) if op)
"""
    )
    pat = pkg / "engine/patterns.py"
    t = pat.read_text()
    pat.write_text(
        t.replace(
            "Pattern = tuple[",
            """import types
from .backend import _part
TABLE.engine_entry = _part("capabilities").ENGINE.get
TABLE.chip = types.SimpleNamespace(
    symbols=False, nan="undefined", devices=1, cancellation=False, dtypes=("float32",)
)

Pattern = tuple[""",
            1,
        )
    )
    (pkg / "vendor/capabilities.py").write_text('''"""Plain."""
from tvm import relax
from tvm_example_npu.engine.capability import Size, tensor_type, Unknown

def declined_by_sdk(op, call):
    def has(ty):
        if hasattr(ty, "fields"):
            return any(has(f) for f in ty.fields)
        try:
            return any(isinstance(s, Size) for s in tensor_type(ty)[1])
        except Unknown:
            return False
    tys = [a.ty for a in call.args if isinstance(a.ty, (relax.TensorType, relax.TupleType))]
    if any(has(t) for t in [*tys, call.ty]):
        return "symbolic sizes are not supported"
    return None
''')
