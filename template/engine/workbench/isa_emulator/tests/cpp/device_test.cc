// SPDX-License-Identifier: Apache-2.0
/*!
 * \file device_test.cc
 * \brief The run half: programs, ports, counters and events through the driver interface.
 * Arguments: the file of a program that copies its only input to its only output, how many bytes
 * these have, and the file of a program with a byte of each that does not end.
 */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver_kit/program.h"
#include "isa_emulator/device.h"

namespace {

namespace kit = npu::kit;

int failures = 0;

void Check(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "not so: %s\n", what);
  ++failures;
}
#define CHECK_THAT(condition) Check(condition, #condition)

kit::Value ValueOf(kit::Source source, int64_t count, int64_t place) {
  kit::Value value = {};
  value.source = source;
  value.dtype = NPU_UINT8;
  value.rank = 1;
  value.dims[0] = count;
  value.place = place;
  return value;
}

std::vector<uint8_t> ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>());
}

/*! \brief A program of the kit, aligned as the engine has it. */
class Bytes {
 public:
  Bytes(const std::vector<uint8_t>& opaque, int64_t count) {
    kit::Program program;
    program.inputs = {ValueOf(kit::Source::kInput, count, 0)};
    program.values = {ValueOf(kit::Source::kInput, count, 0),
                      ValueOf(kit::Source::kNode, count, 0)};
    program.outputs = {ValueOf(kit::Source::kNode, count, 1)};
    kit::Node node = kit::MakeNode(kit::Kind::kStep);
    node.step = NPU_STEP_RELU;
    node.inputs[0] = 0;
    node.out = 1;
    program.nodes = {node};
    program.labels = {""};
    program.opaque = opaque.data();
    program.opaque_bytes = opaque.size();
    const std::vector<uint8_t> bytes = kit::Serialize(program);
    storage_.resize(bytes.size() + 64);
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - at % 64) % 64;
    size_ = bytes.size();
    std::memcpy(data_, bytes.data(), size_);
  }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::vector<uint8_t> storage_;
  uint8_t* data_;
  size_t size_;
};

/*! \brief What runs for longer than anybody waits can be ended. */
void CheckCancel(const npu_run_api& api, const char* path) {
  const Bytes bytes(ReadFile(path), 1);
  npu_program* program = nullptr;
  npu_request* request = nullptr;
  CHECK_THAT(api.load(nullptr, bytes.data(), bytes.size(), &program) == NPU_OK);
  CHECK_THAT(api.create_request(program, &request) == NPU_OK);
  const int64_t count = 1;
  uint8_t in = 0, out = 0;
  npu_buffer buffer = {sizeof(buffer), NPU_UINT8, 1, &count, &in, 1, nullptr};
  CHECK_THAT(api.bind_input(request, 0, &buffer) == NPU_OK);
  buffer.data = &out;
  CHECK_THAT(api.bind_output(request, 0, &buffer) == NPU_OK);
  CHECK_THAT(api.submit(request) == NPU_OK);
  CHECK_THAT(api.wait(request, 1000) == NPU_TIMEOUT);
  CHECK_THAT(api.cancel(request) == NPU_OK);
  CHECK_THAT(api.wait(request, -1) == NPU_CANCELLED);
  // Another one ends with its request.
  CHECK_THAT(api.submit(request) == NPU_OK);
  api.destroy_request(request);
  api.unload(program);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::vector<uint8_t> opaque = ReadFile(argv[1]);
  const int64_t count = std::atoll(argv[2]);
  const npu_run_api api = npu::isa::RunTable("isa_npu", "0.1");
  const Bytes bytes(opaque, count);
  npu_program* program = nullptr;
  CHECK_THAT(api.load(nullptr, bytes.data(), bytes.size(), &program) == NPU_OK);
  if (program == nullptr) {
    std::fprintf(stderr, "%s\n", api.error());
    return 1;
  }
  const char* text = nullptr;
  CHECK_THAT(api.describe(program, &text) == NPU_OK);
  CHECK_THAT(std::strstr(text, " instructions; input ") != nullptr);

  // Programs whose ports are not those of the region, and what is none.
  npu_program* other = nullptr;
  const Bytes wrong(opaque, count + 1);
  CHECK_THAT(api.load(nullptr, wrong.data(), wrong.size(), &other) == NPU_INVALID);
  CHECK_THAT(std::strstr(api.error(), "are not those of its region") != nullptr);
  const Bytes none({1, 2, 3}, count);
  CHECK_THAT(api.load(nullptr, none.data(), none.size(), &other) == NPU_INVALID);
  CHECK_THAT(std::strstr(api.error(), "does not begin with NPUISA1") != nullptr);

  npu_request* request = nullptr;
  CHECK_THAT(api.create_request(program, &request) == NPU_OK);
  CHECK_THAT(api.execute(request) == NPU_INVALID);
  CHECK_THAT(std::strcmp(api.error(), "input 0 is not bound") == 0);
  std::vector<uint8_t> in(static_cast<size_t>(count)), out(static_cast<size_t>(count));
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(7 * i + 1);
  npu_buffer buffer = {};
  buffer.size = sizeof(buffer);
  buffer.dtype = NPU_UINT8;
  buffer.rank = 1;
  buffer.dims = &count;
  buffer.bytes = in.size();
  buffer.data = in.data();
  CHECK_THAT(api.bind_input(request, 0, &buffer) == NPU_OK);
  CHECK_THAT(api.bind_input(request, 1, &buffer) == NPU_INVALID);
  buffer.data = out.data();
  CHECK_THAT(api.bind_output(request, 0, &buffer) == NPU_OK);
  CHECK_THAT(api.record_events(request, 1) == NPU_OK);
  for (int run = 0; run < 2; ++run) {
    std::fill(out.begin(), out.end(), uint8_t{0});
    CHECK_THAT(api.execute(request) == NPU_OK);
    CHECK_THAT(in == out);
  }
  std::fill(out.begin(), out.end(), uint8_t{0});
  CHECK_THAT(api.submit(request) == NPU_OK);
  CHECK_THAT(api.wait(request, -1) == NPU_OK);
  CHECK_THAT(in == out);

  std::vector<uint64_t> counters(api.counter_count);
  CHECK_THAT(api.read_counters(request, counters.data()) == NPU_OK);
  const auto counter = [&](const std::string& name) {
    for (size_t i = 0; i < api.counter_count; ++i) {
      if (api.counters[i].name == name) return counters[i];
    }
    Check(false, "there is such a counter");
    return uint64_t{0};
  };
  CHECK_THAT(counter("submissions") == 3);
  CHECK_THAT(counter("failures") == 0);
  CHECK_THAT(counter("instructions") > 0);
  const npu_event* events = nullptr;
  size_t event_count = 0;
  double units = 1;
  CHECK_THAT(api.read_events(request, &events, &event_count, &units) == NPU_OK);
  CHECK_THAT(event_count > 0);
  int64_t end = 0;
  uint64_t busy = 0, read = 0;
  for (const npu_event* event = events; event != events + event_count; ++event) {
    CHECK_THAT(event->begin <= event->end && event->busy <= event->end - event->begin);
    CHECK_THAT(event == events || event[-1].begin <= event->begin);
    end = std::max(end, event->end);
    busy += static_cast<uint64_t>(event->busy);
    for (size_t i = 0; i < event->traffic_count; ++i) read += event->traffic[i].bytes_read;
  }
  CHECK_THAT(3 * static_cast<uint64_t>(end) == counter("cycles"));
  uint64_t counted = 0;
  for (size_t i = 0; i < api.counter_count; ++i) {
    if (std::strncmp(api.counters[i].name, "busy_cycles.", 12) == 0) counted += counters[i];
  }
  CHECK_THAT(3 * busy == counted);
  CHECK_THAT(read >= in.size());
  CHECK_THAT(counter("busy_cycles.control.scalar") == 3);
  const auto is_scalar = [](const npu_event& event) {
    return std::strcmp(event.engine, "control.scalar") == 0;
  };
  CHECK_THAT(std::count_if(events, events + event_count, is_scalar) == 1);
  // What has lines that were executed, from the first of them to the last.
  const npu_allocation* allocations = nullptr;
  size_t allocation_count = 0;
  CHECK_THAT(api.read_allocations(request, &allocations, &allocation_count) == NPU_OK);
  CHECK_THAT(allocation_count == 2);
  CHECK_THAT(std::strcmp(allocations[0].memory, "spad") == 0 && allocations[0].offset == 0);
  CHECK_THAT(std::strcmp(allocations[0].label, "relu") == 0 && allocations[1].label == nullptr);
  CHECK_THAT(allocations[0].bytes == in.size());
  for (const npu_event* event = events; event != events + event_count; ++event) {
    if (std::strcmp(event->engine, "load") == 0) CHECK_THAT(event->begin == allocations[0].begin);
    if (std::strcmp(event->engine, "store") == 0) CHECK_THAT(event->end == allocations[0].end);
  }
  const npu_memory* memories = nullptr;
  size_t memory_count = 0;
  double operations = -1;
  CHECK_THAT(api.read_peaks(request, &operations, &memories, &memory_count) == NPU_OK);
  CHECK_THAT(memory_count > 1 && operations >= 0);
  api.destroy_request(request);
  api.unload(program);
  CheckCancel(api, argv[3]);
  return failures == 0 ? 0 : 1;
}
