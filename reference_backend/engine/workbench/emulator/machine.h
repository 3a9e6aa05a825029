// SPDX-License-Identifier: Apache-2.0
/*!
 * \file machine.h
 * \brief The emulated machine: its memories, its engines, and what their work costs.
 *
 * A command takes whole cycles, computed with integers only: one program takes the same cycles on
 * every host.
 */
#ifndef EMULATOR_MACHINE_H_
#define EMULATOR_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "npu_driver.h"

namespace npu::emulator {

/*! \brief How fast the clock runs. The bandwidth of DRAM does not depend on it. */
enum class PowerMode : int32_t { kLow = 0, kBalanced, kPerformance };

/*! \brief How intermediate tensors of type float32 are kept. */
enum class Precision : int32_t { kFloat32 = 0, kFloat16 };

/*! \brief The machine that a program was compiled for. Written into the program. */
struct Machine {
  /*! \brief Bytes of the on-chip memory that all engines compute in. */
  int64_t scratchpad_bytes = int64_t{4} << 20;
  /*! \brief Bytes for inputs, outputs, constants and intermediates that leave the scratchpad. */
  int64_t dram_bytes = int64_t{4} << 30;
  /*! \brief The largest tensor that one command may touch in the scratchpad; 0: no limit but the
   *  scratchpad. */
  int64_t max_tile_bytes = 0;
  /*! \brief Cores, each with a matrix and a vector engine; they share scratchpad and DMA. */
  int32_t cores = 1;
  /*! \brief The systolic array: rows hold the summed dimension, columns the outputs. */
  int32_t matrix_rows = 32;
  int32_t matrix_columns = 32;
  /*! \brief Weights that a cell of the array holds: with 2, those of the next tile load while the
   *  tile before multiplies. */
  int32_t weight_buffers = 1;
  /*! \brief Elements that a vector engine handles in a cycle. */
  int32_t vector_lanes = 64;
  /*! \brief Bandwidth of DRAM for each of the two DMA engines, megabytes (10^6) per second, and
   *  cycles before the first byte. */
  int32_t dram_megabytes_per_second = 16000;
  int32_t dma_latency_cycles = 100;
  PowerMode power_mode = PowerMode::kBalanced;
  Precision precision = Precision::kFloat32;
  /*! \brief Host threads that emulate one request; no effect on results or cycles. */
  int32_t threads = 1;
  /*! \brief The emulation is at least this many times slower than the device, to show the effect of
   *  waiting for it; 0: as fast as possible. */
  int32_t pace = 0;

  /*! \brief Sets an option of the driver; throws an Error that lists the valid values. */
  void Set(const std::string& key, const std::string& value);
  /*! \brief Throws an Error if a value is outside of its range; for programs that come as bytes. */
  void Check() const;
  /*! \brief Cycles per microsecond. */
  int64_t FrequencyMHz() const;
};

constexpr const char* kDriverName = "emulator";
constexpr const char* kDriverRelease = "1";

/*! \brief The options of the driver, each of which is a member of Machine. */
constexpr size_t kOptionCount = 14;
extern const npu_option_info kOptions[kOptionCount];

/*! \brief For messages and listings, e.g. `balanced`. */
const char* Name(PowerMode mode);
/*! \brief For messages and listings, e.g. `float32`. */
const char* Name(Precision precision);

/*!
 * \name Counts
 * Of cycles, bytes and the like. They saturate, so that no program, however absurd, makes them
 * overflow: they are in [0, kMaxCount].
 * @{
 */
constexpr int64_t kMaxCount = int64_t{1} << 61;
int64_t Plus(int64_t a, int64_t b);
int64_t Times(int64_t a, int64_t b);
/*! @} */

/*!
 * \name Cost model, in cycles
 * @{
 */
/*! \brief Bytes that DRAM moves at a time. */
constexpr int64_t kBurstBytes = 64;
/*! \brief How many steps of the summed dimension a cell of the array takes in a cycle: 4 products
 * of 8-bit integers, 2 of int16 by these, 1 of two int16 or of real numbers. */
int64_t StepsOfCell(npu_dtype a, npu_dtype b);
/*! \brief A product [m, k] x [k, n] on the weight-stationary systolic array of R x C:
 *  (2 R + C + m - 2) * ceil(k / R) * ceil(n / C). Source: A. Samajdar et al., "A Systematic
 *  Methodology for Characterizing Scalability of DNN Accelerators using SCALE-Sim", ISPASS 2020,
 *  equation 4 with S_R = k, S_C = n, T = m. Here k is divided by `steps`, of StepsOfCell.
 *
 *  With two weight buffers, the weights of all tiles but the first load while the tile before
 *  multiplies: R + max(R, m) * (tiles - 1) + (R + C + m - 2), which is equation 4 for one tile.
 *  Source of the design: N. P. Jouppi et al., "In-Datacenter Performance Analysis of a Tensor
 *  Processing Unit", ISCA 2017, section 2.
 *
 *  `products` of this size, with weights of their own, follow each other. */
int64_t MatrixCycles(const Machine& machine, int64_t m, int64_t k, int64_t n, int64_t steps = 1,
                     int64_t products = 1);
/*! \brief `groups` such products on data of their own, as in a depthwise convolution: as many at
 * once as fit into the array side by side, on its diagonal. */
int64_t GroupedMatrixCycles(const Machine& machine, int64_t groups, int64_t m, int64_t k, int64_t n,
                            int64_t steps = 1);
/*! \brief A vector program: one instruction for `vector_lanes` elements in a cycle. */
int64_t VectorCycles(const Machine& machine, int64_t elements, int64_t instructions);
/*! \brief Instructions per element for sorting the first `count` of a row: 1 + ceil(log2(count))
 *  comparisons, with a sorted list of the first ones so far. */
int64_t OrderInstructions(int64_t count);
/*! \brief A transfer of `runs` pieces of `run_bytes` each, which DRAM moves in whole bursts: the
 *  latency, and bursts * 64 bytes at the bandwidth, rounded up. */
int64_t DmaCycles(const Machine& machine, int64_t runs, int64_t run_bytes);
/*! @} */

}  // namespace npu::emulator

#endif  // EMULATOR_MACHINE_H_
