// SPDX-License-Identifier: Apache-2.0
// The device layer of a build without CUDA: no GPU, and a refusal for everything that needs one.
#include "device/device.hpp"
#include "moxie/device.hpp"
#include "moxie/status.hpp"

namespace moxie {

GpuReport list_gpus() { return {.problem = "built without CUDA"}; }

GpuMemory gpu_memory() {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-E004",
                                       .message = "this build holds no CUDA code",
                                       .hint = "build with -DMOXIE_CUDA=ON"});
}

namespace device {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-E004",
                                       .message = "this build holds no CUDA code",
                                       .hint = "build with -DMOXIE_CUDA=ON"});
}

}  // namespace

Stream::Stream() { refuse(); }
Stream::~Stream() = default;
void Stream::wait() const { refuse(); }
int Stream::settle() const noexcept { return 1; }

Event::Event(EventUse /*use*/) { refuse(); }
Event::~Event() = default;
void Event::record(void* /*stream*/) { refuse(); }
void Event::wait() const { refuse(); }
double Event::us_since(const Event& /*earlier*/) const { refuse(); }

Buffer::Buffer(std::uint64_t /*bytes*/) { refuse(); }
Buffer::~Buffer() = default;

PinnedBuffer::PinnedBuffer(std::uint64_t /*bytes*/) { refuse(); }
PinnedBuffer::~PinnedBuffer() = default;

int current_gpu() { refuse(); }
void use_gpu(int /*index*/) { refuse(); }
void start_copy(std::byte* /*to*/, std::span<const std::byte> /*from*/, void* /*stream*/) {
  refuse();
}

void copy_to_device(std::byte* /*to*/, std::span<const std::byte> /*from*/) { refuse(); }
void copy_to_host(std::span<std::byte> /*to*/, const std::byte* /*from*/) { refuse(); }
int fill(void* /*at*/, std::byte /*value*/, std::uint64_t /*bytes*/, void* /*stream*/) noexcept {
  return 1;
}
int copy_on_device(std::byte* /*to*/, const std::byte* /*from*/, std::uint64_t /*bytes*/) noexcept {
  return 1;
}
int wait_for_default_stream() noexcept { return 1; }
std::string error_text(int code) { return "error " + std::to_string(code); }

Graph::Graph(Stream& stream) : stream_(stream) { refuse(); }
Graph::~Graph() = default;
void Graph::end() { refuse(); }
void Graph::launch() const { refuse(); }

}  // namespace device
}  // namespace moxie
