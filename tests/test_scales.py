"""Integers by scales on tensors: what the kit makes of them, and a plain driver that has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import ROOT, run

INCLUDE = ROOT / "template/engine/backend/include"
DRIVER = ROOT / "tests/scales_driver.cc"

MAKES = (
    DRIVER.read_text()
    + r"""
#include <cstdio>

namespace {

const npu_tensor_desc kImage = {NPU_INT8, 4, {{1, -1}, {2, -1}, {3, -1}, {3, -1}}};
const npu_tensor_desc kWeight = {NPU_INT8, 4, {{4, -1}, {2, -1}, {1, -1}, {1, -1}}};
const npu_tensor_desc kBias = {NPU_INT32, 3, {{4, -1}, {1, -1}, {1, -1}}};
const npu_tensor_desc kResult = {NPU_INT8, 4, {{1, -1}, {4, -1}, {3, -1}, {3, -1}}};
const int8_t kWeights[] = {1, 2, 3, 4, 5, 6, 7, -8};
const int32_t kBiases[] = {10, 20, 30, 40};

struct Maker {
  npu_build_api api = BuildTable<kDriver>();
  npu_builder* builder = nullptr;

  explicit Maker(const char* lacks) {
    const npu_option option = {"lacks", lacks};
    api.create(&option, 1, &builder);
  }
  ~Maker() { api.destroy(builder); }

  void Check(npu_status status) const {
    if (status != NPU_OK) std::printf("declined: %s\n", api.error(builder));
  }
  npu_tensor Input(const npu_tensor_desc& desc) {
    npu_tensor id = -1;
    Check(api.add_input(builder, &desc, &id));
    return id;
  }
  npu_tensor Constant(const npu_tensor_desc& desc, const void* data, size_t size) {
    npu_tensor id = -1;
    Check(api.add_constant(builder, &desc, data, size, &id));
    return id;
  }
  npu_tensor Tensor(const npu_tensor_desc& desc) {
    npu_tensor id = -1;
    Check(api.add_tensor(builder, &desc, &id));
    return id;
  }
  npu_tensor Scaled(npu_tensor id, std::vector<float> scales, std::vector<int32_t> zeros,
                    int32_t axis = 0) {
    const npu_quantization what = {sizeof(what), static_cast<int32_t>(scales.size()), axis,
                                   scales.data(), zeros.data()};
    Check(api.set_quantization(builder, id, &what));
    return id;
  }
  void Print() {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Check(api.finish(builder, &bytes, &size));
    if (bytes == nullptr) return;
    const Program program = Parse(bytes, size);
    for (const Node& node : program.nodes) {
      std::printf("%s", NameOf(node).c_str());
      const auto value = [&](const char* role, int32_t id) {
        if (id < 0) return;
        std::printf(" %s type %d", role, program.At(id).dtype);
        const Scales* scales = program.ScalesOf(id);
        for (size_t i = 0; scales != nullptr && i < scales->scales.size(); ++i) {
          std::printf("%s%g %d", i == 0 ? " (" : ", ", static_cast<double>(scales->scales[i]),
                      scales->zero_points[i]);
        }
        if (scales != nullptr) std::printf(") axis %d", scales->axis);
      };
      value("a", node.inputs[0]);
      value("b", node.inputs[1]);
      value("c", node.inputs[2]);
      value("->", node.out);
      if (std::isfinite(node.least)) std::printf(" from %g", static_cast<double>(node.least));
      std::puts("");
    }
    // Damaged scales are refused: of no such value, too few, of a value of real numbers.
    for (const char* text : {"99 0 1065353216 0", "0 0 1", "x", "0 9 1 0 1 0"}) {
      Program forged;
      forged.values = program.values;
      if (ReadScales(text, &forged)) std::printf("'%s' is taken\n", text);
    }
  }
};

/*! \brief A convolution with a bias, perhaps a residual, and a relu. */
void Convolve(const char* lacks, bool has_residual, bool is_real) {
  std::printf("-- %s%s\n", lacks, has_residual ? " residual" : is_real ? " real" : "");
  Maker maker(lacks);
  npu_convolution op = {};
  op.size = sizeof(op);
  op.data = maker.Scaled(maker.Input(kImage), {0.5f}, {3});
  op.weight =
      maker.Scaled(maker.Constant(kWeight, kWeights, 8), {1, 2, 4, 8}, {0, 0, 0, 0});
  const npu_tensor bias =
      maker.Scaled(maker.Constant(kBias, kBiases, 16), {0.5f, 1, 2, 4}, {0, 0, 0, 0});
  npu_tensor_desc result = kResult;
  if (is_real) result.dtype = NPU_FLOAT32;
  op.out = maker.Tensor(result);
  if (!is_real) maker.Scaled(op.out, {0.25f}, {-7});
  op.spatial_rank = 2;
  op.strides[0] = op.strides[1] = op.dilations[0] = op.dilations[1] = op.groups = 1;
  std::vector<npu_step> steps = {
      {NPU_STEP_BIAS, 2, {{NPU_OPERAND_ACCUMULATOR, 0, 0}, {NPU_OPERAND_TENSOR, bias, 0}}, ""}};
  if (has_residual) {
    const npu_tensor other = maker.Scaled(maker.Input(kResult), {2}, {1});
    steps.push_back(
        {NPU_STEP_RESIDUAL, 2, {{NPU_OPERAND_STEP, 0, 0}, {NPU_OPERAND_TENSOR, other, 0}}, ""});
  }
  steps.push_back(
      {NPU_STEP_RELU, 1, {{NPU_OPERAND_STEP, static_cast<int32_t>(steps.size()) - 1, 0}}, ""});
  npu_vector_program epilogue = {};
  epilogue.size = sizeof(epilogue);
  epilogue.steps = steps.data();
  epilogue.step_count = static_cast<int32_t>(steps.size());
  op.epilogue = &epilogue;
  maker.Check(maker.api.add_convolution(maker.builder, &op));
  maker.Check(maker.api.mark_output(maker.builder, op.out));
  maker.Print();
}

}  // namespace

int main() {
  Convolve("", false, false);
  Convolve("limits", false, false);
  Convolve("", true, false);
  Convolve("real results", true, false);
  Convolve("integers", false, false);
  Convolve("", false, true);
  // What no tensor can have.
  Maker maker("");
  const npu_tensor image = maker.Input(kImage);
  maker.Scaled(image, {1, 2}, {0, 0}, 0);
  maker.Scaled(image, {0}, {0});
  npu_tensor_desc real = kImage;
  real.dtype = NPU_FLOAT32;
  maker.Scaled(maker.Input(real), {1}, {0});
  return 0;
}
"""
)

DATA = "a type 2 (0.5 3) axis 0"
WEIGHT = "b type 2 (1 0, 2 0, 4 0, 8 0) axis 0"
BIAS = "c type 4 (0.5 0, 1 0, 2 0, 4 0) axis 0"
RESULT = "-> type 2 (0.25 -7) axis 0"
CONVOLUTION = f"convolution {DATA} {WEIGHT} {BIAS}"
TO_REAL = "-> type 0"
REFUSED = "declined: a tensor cannot have such scales"


def _program(source: str, tmp_path: Path) -> str:
    (tmp_path / "main.cc").write_text(source)
    warnings = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    run("c++", *warnings, "-I", INCLUDE, "-o", tmp_path / "main", tmp_path / "main.cc")
    return run(tmp_path / "main")


def test_an_operation_on_integers_is_one_node_or_computed_with_real_numbers(
    tmp_path: Path,
) -> None:
    """Element types are 0 for float32, 2 for int8, 4 for int32; pairs are scale and zero point."""
    float_form = [
        f"dequantize {DATA} {TO_REAL}",
        f"convolution a type 0 b type 0 c type 0 {TO_REAL} from 0",
        f"quantize a type 0 {RESULT}",
    ]
    assert _program(MAKES, tmp_path).splitlines() == [
        "-- ",
        f"{CONVOLUTION} {RESULT} from 0",
        "-- limits",
        f"{CONVOLUTION} {RESULT}",
        f"relu a{RESULT[2:]} {RESULT}",
        "--  residual",
        f"{CONVOLUTION} {TO_REAL}",
        f"dequantize a type 2 (2 1) axis 0 {TO_REAL}",
        f"residual a type 0 b type 0 {TO_REAL}",
        f"relu a type 0 {TO_REAL}",
        f"quantize a type 0 {RESULT}",
        "-- real results residual",
        float_form[0],
        f"convolution a type 0 b type 0 c type 0 {TO_REAL}",
        f"dequantize a type 2 (2 1) axis 0 {TO_REAL}",
        f"residual a type 0 b type 0 {TO_REAL}",
        f"relu a type 0 {TO_REAL}",
        f"quantize a type 0 {RESULT}",
        "-- integers",
        *float_form,
        "--  real",
        f"{CONVOLUTION} {TO_REAL} from 0",
        *[REFUSED] * 3,
    ]


@pytest.mark.parametrize("layout", [0, 1])
def test_the_plain_driver_compiles(layout: int, tmp_path: Path) -> None:
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", f"-DCHANNELS_LAST={layout}")
    run("c++", *flags, "-fPIC", "-shared", "-I", INCLUDE, "-o", tmp_path / "driver.so", DRIVER)
