// SPDX-License-Identifier: Apache-2.0
// The device layer over the CUDA runtime.
#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "device/check.hpp"
#include "moxie/device.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

std::string version_text(int version) {  // 1000 * major + 10 * minor
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

GpuReport list_gpus() {
  GpuReport report{.built = true, .runtime = version_text(CUDART_VERSION)};
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    report.problem = "no CUDA driver";
    return report;
  }
  report.driver = version_text(driver);
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    (void)cudaGetLastError();  // it would be taken for a later call's
    report.problem = "cudaGetDeviceCount: " + device::error_text(code);
    return report;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp prop{};
    if (cudaGetDeviceProperties(&prop, index) != cudaSuccess) continue;
    report.gpus.push_back({.name = prop.name,
                           .major = static_cast<unsigned>(prop.major),
                           .minor = static_cast<unsigned>(prop.minor),
                           .memory_bytes = prop.totalGlobalMem,
                           .multiprocessors = static_cast<unsigned>(prop.multiProcessorCount)});
  }
  int current = 0;
  if (cudaGetDevice(&current) == cudaSuccess) report.current = static_cast<std::size_t>(current);
  if (report.current >= report.gpus.size()) report.gpus.clear();
  if (report.gpus.empty()) report.problem = "no GPU";
  return report;
}

GpuMemory gpu_memory() {
  std::size_t free_bytes = 0;
  std::size_t bytes = 0;
  MOXIE_CUDA(cudaMemGetInfo(&free_bytes, &bytes));
  return {.free_bytes = free_bytes, .bytes = bytes};
}

namespace device {

namespace {

// Large enough for the bus to be busy, small enough to be there always.
constexpr std::uint64_t kStagingBytes = std::uint64_t{8} << 20;
// Pinning memory costs more than it saves below.
constexpr std::uint64_t kLeastStaged = std::uint64_t{1} << 20;

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

}  // namespace

std::string error_text(int code) {
  const auto error = static_cast<cudaError_t>(code);
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

void raise_cuda(std::string_view call, int code) {
  (void)cudaGetLastError();  // it would be taken for a later call's
  throw Error(ErrorCode::environment,
              {.code = code == cudaErrorMemoryAllocation ? "MOXIE-E003" : "MOXIE-E005",
               .message = std::string(call) + " failed",
               .got = error_text(code) + " (" + std::to_string(code) + ")"});
}

Stream::Stream() {
  cudaStream_t stream = nullptr;
  MOXIE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = stream;
}
Stream::~Stream() { (void)cudaStreamDestroy(stream_of(handle_)); }
void Stream::wait() const { MOXIE_CUDA(cudaStreamSynchronize(stream_of(handle_))); }
int Stream::settle() const noexcept { return cudaStreamSynchronize(stream_of(handle_)); }

Event::Event(EventUse use) {
  cudaEvent_t event = nullptr;
  const unsigned flags =
      use == EventUse::time ? cudaEventDefault : cudaEventDisableTiming | cudaEventBlockingSync;
  MOXIE_CUDA(cudaEventCreateWithFlags(&event, flags));
  handle_ = event;
}
Event::~Event() { (void)cudaEventDestroy(event_of(handle_)); }
void Event::record(void* stream) {
  MOXIE_CUDA(cudaEventRecord(event_of(handle_), stream_of(stream)));
}
void Event::wait() const { MOXIE_CUDA(cudaEventSynchronize(event_of(handle_))); }
double Event::us_since(const Event& earlier) const {
  float ms = 0;
  MOXIE_CUDA(cudaEventElapsedTime(&ms, event_of(earlier.handle_), event_of(handle_)));
  return static_cast<double>(ms) * 1e3;
}

Buffer::Buffer(std::uint64_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  MOXIE_CUDA(cudaMalloc(&data, std::max<std::uint64_t>(bytes, 1)));
  data_ = static_cast<std::byte*>(data);
}
Buffer::~Buffer() { (void)cudaFree(data_); }

PinnedBuffer::PinnedBuffer(std::uint64_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  MOXIE_CUDA(cudaMallocHost(&data, std::max<std::uint64_t>(bytes, 1)));
  data_ = static_cast<std::byte*>(data);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

int current_gpu() {
  int index = 0;
  MOXIE_CUDA(cudaGetDevice(&index));
  return index;
}
void use_gpu(int index) { MOXIE_CUDA(cudaSetDevice(index)); }

void start_copy(std::byte* to, std::span<const std::byte> from, void* stream) {
  MOXIE_CUDA(
      cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_of(stream)));
}

void copy_to_device(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
  const Stream stream;
  cudaStream_t queue = stream_of(stream.handle());
  if (from.size() < kLeastStaged) {
    MOXIE_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, queue));
    return stream.wait();
  }
  const PinnedBuffer staging(std::min(kStagingBytes, from.size()));
  for (std::uint64_t at = 0; at < from.size(); at += kStagingBytes) {
    const std::uint64_t count = std::min(kStagingBytes, from.size() - at);
    std::memcpy(staging.bytes().data(), from.data() + at, count);
    MOXIE_CUDA(
        cudaMemcpyAsync(to + at, staging.bytes().data(), count, cudaMemcpyHostToDevice, queue));
    stream.wait();
  }
}

void copy_to_host(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return;
  const Stream stream;
  cudaStream_t queue = stream_of(stream.handle());
  if (to.size() < kLeastStaged) {
    MOXIE_CUDA(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, queue));
    return stream.wait();
  }
  const PinnedBuffer staging(std::min(kStagingBytes, to.size()));
  for (std::uint64_t at = 0; at < to.size(); at += kStagingBytes) {
    const std::uint64_t count = std::min(kStagingBytes, to.size() - at);
    MOXIE_CUDA(
        cudaMemcpyAsync(staging.bytes().data(), from + at, count, cudaMemcpyDeviceToHost, queue));
    stream.wait();
    std::memcpy(to.data() + at, staging.bytes().data(), count);
  }
}

int fill(void* at, std::byte value, std::uint64_t bytes, void* stream) noexcept {
  if (bytes == 0) return 0;
  return cudaMemsetAsync(at, std::to_integer<int>(value), bytes, stream_of(stream));
}

int copy_on_device(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr);
}

int wait_for_default_stream() noexcept { return cudaStreamSynchronize(nullptr); }

Graph::Graph(Stream& stream) : stream_(stream) {
  MOXIE_CUDA(cudaStreamBeginCapture(stream_of(stream.handle()), cudaStreamCaptureModeThreadLocal));
}
Graph::~Graph() {
  if (executable_ != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}
void Graph::end() {
  cudaGraph_t graph = nullptr;
  MOXIE_CUDA(cudaStreamEndCapture(stream_of(stream_.handle()), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  MOXIE_CUDA(code);
  executable_ = executable;
}
void Graph::launch() const {
  MOXIE_CUDA(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream_of(stream_.handle())));
}

}  // namespace device
}  // namespace moxie
