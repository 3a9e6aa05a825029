# SPDX-License-Identifier: Apache-2.0
"""Which attributes of the operators the importers read, and the refusal of those they do not.

`onnx.json`, `torch.json` and `tflite.json` say it of each operator that has a converter: of TVM, or
of ours. The command `drift` makes them by following the converters' code (`following`), tells what
a new TVM has changed, and writes them anew. The front doors look the names up (`unread`): what is
not read is refused at any but its default value, unless `harmless` has a reason to ignore it.
"""
