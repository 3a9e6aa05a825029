"""The first op on an SDK that builds graphs: what XNNPACK's relu adds to the skeleton.

``python first_op.py vendor`` adds it to the unchanged skeleton in the folder ``vendor``.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path


def edit(path: Path, edits: list[tuple[str, str]]) -> int:
    """Edit a file as a vendor would, and count the lines that were added."""
    before = text = path.read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{path.name} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    path.write_text(text)
    lines = difflib.ndiff(before.splitlines(), text.splitlines())
    return sum(line.startswith("+ ") for line in lines)


FIRST_OP = {
    "driver/build.cc": [
        (
            "  switch (node.step) {\n",
            '  switch (node.step) {\n    case NPU_STEP_RELU:\n      return "";\n',
        ),
    ],
    "driver/run.cc": [
        (
            "#include <vector>\n",
            "#include <xnnpack.h>\n\n#include <cmath>\n#include <memory>\n#include <vector>\n",
        ),
        (
            "/*! \\brief The SDK's graph:",
            """void Check(xnn_status status) {
  if (status == xnn_status_success) return;
  throw npu::kit::Failure{NPU_DEVICE_ERROR, "XNNPACK fails: " + std::to_string(status)};
}

/*! \\brief The SDK's graph:""",
        ),
        (
            """    // Here: create the SDK's graph, with a tensor for each of program.values.
    (void)memory;
    for (const Node& node : program.nodes) Define(node);
    // Here: compile the graph.
""",
            """    Check(xnn_initialize(nullptr));
    const uint32_t count = static_cast<uint32_t>(program.values.size());
    xnn_subgraph_t graph = nullptr;
    Check(xnn_create_subgraph(count, 0, &graph));
    graph_.reset(graph);
    std::vector<xnn_external_value> external;
    for (uint32_t i = 0; i < count; ++i) {
      const npu::kit::Value& value = program.values[i];
      const bool constant = value.source == npu::kit::Source::kConstant;
      const bool input = value.source == npu::kit::Source::kInput;
      uint32_t id = i, flags = input ? XNN_VALUE_FLAG_EXTERNAL_INPUT : 0;
      if (!input && !constant && memory[i] != nullptr) flags = XNN_VALUE_FLAG_EXTERNAL_OUTPUT;
      if (flags != 0) external.push_back({i, memory[i]});
      const std::vector<size_t> dims(value.dims, value.dims + value.rank);
      Check(xnn_define_tensor_value(graph, xnn_datatype_fp32, dims.size(), dims.data(),
                                    constant ? memory[i] : nullptr, i, flags, &id));
    }
    for (const Node& node : program.nodes) Define(node);
    xnn_runtime_t runtime = nullptr;
    Check(xnn_create_runtime_v2(graph, nullptr, 0, &runtime));
    runtime_.reset(runtime);
    Check(xnn_setup_runtime(runtime, external.size(), external.data()));
""",
        ),
        (
            "  void Run() {\n    // Here: run the graph, and wait.\n  }\n",
            """  void Run() { Check(xnn_invoke_runtime(runtime_.get())); }
""",
        ),
        (
            "          // Here: case NPU_STEP_RELU: and its like, with a return.\n",
            """          case NPU_STEP_RELU:
            return Check(xnn_define_clamp(graph_.get(), 0, INFINITY, x, out, 0));
""",
        ),
        (
            "  void Define(const Node& node) {\n",
            """  void Define(const Node& node) {
    const uint32_t x = static_cast<uint32_t>(node.inputs[0]);
    const uint32_t out = static_cast<uint32_t>(node.out);
""",
        ),
        (
            'which this driver does not support");\n  }\n};\n',
            """which this driver does not support");
  }

  template <typename T>
  using Owned = std::unique_ptr<T, xnn_status (*)(T*)>;
  Owned<xnn_subgraph> graph_{nullptr, xnn_delete_subgraph};
  Owned<xnn_runtime> runtime_{nullptr, xnn_delete_runtime};
};
""",
        ),
    ],
    "vendor.cmake": [
        (
            'driver/run.cc"\n)\n',
            'driver/run.cc"\n)\nset(NPU_VENDOR_DRIVER_LIBRARIES XNNPACK pthreadpool)\n',
        ),
    ],
}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python first_op.py VENDOR_FOLDER")
    for name, edits in FIRST_OP.items():
        try:
            count = edit(Path(sys.argv[1]) / name, edits)
        except (AssertionError, OSError) as error:
            sys.exit(f"This is not the unchanged skeleton of driver=graph: {error}")
        print(f"{name}: {count} lines")
