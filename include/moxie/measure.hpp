// SPDX-License-Identifier: Apache-2.0
// What a benchmark record states beside its own numbers: ceilings measured in the same process, the
// build, the host; the rate at which files are read; and order statistics of samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moxie/api.hpp"
#include "moxie/json.hpp"

namespace moxie {

// What this machine reaches with `threads` threads, measured now.
struct Ceilings {
  double read_gbps = 0;  // 1e9 bytes per second, all threads reading memory once
  // 1e12 multiplications and additions per second; 0 where the processor lacks the instructions.
  double fp32_tflops = 0;   // baseline instructions
  double bf16_tflops = 0;   // AVX512-BF16
  double vnni_tops = 0;     // 8-bit products into 32-bit sums, AVX512-VNNI
  double maddubs_tops = 0;  // 8-bit products into 16-bit sums, AVX2
};
MOXIE_API Ceilings measure_ceilings(unsigned threads);

// Reads memory that no cache holds, each thread one linear stream over its own share: what a kernel
// that waits for memory is held against. Memory has fast and slow phases, so the test is taken
// right beside what is measured; it leaves no line of that in the caches.
class MOXIE_API ReadTest {
 public:
  explicit ReadTest(unsigned threads);
  double gbps();  // 1e9 bytes per second, now

 private:
  unsigned threads_;
  std::uint64_t share_;                // bytes a thread reads in one test
  std::shared_ptr<std::byte> memory_;  // [2, threads, share], as experts lie in memory
  bool half_ = false;
};

// How long the threads of this process waited for a core since start(), as a share of the time
// gone by: ready and not running, as the scheduler counts it for all threads together, and what the
// host took of a virtual machine, in ticks of 10 ms of which one is forgiven. 0 where the system
// does not say.
class MOXIE_API CoreWait {
 public:
  CoreWait() { start(); }
  void start();
  [[nodiscard]] double share() const;

 private:
  std::uint64_t start_ns_ = 0;
  std::uint64_t delay_ns_ = 0;
  std::uint64_t steal_ticks_ = 0;
};
// A sample whose threads waited longer than this says more about the machine than about the code.
inline constexpr double kMostCoreWait = 0.02;

// How long a GPU takes to read bytes of its memory once and do nothing else.
struct ReadPoint {
  std::uint64_t bytes = 0;
  double us = 0;
};
struct ReadCurve {
  std::vector<ReadPoint> points;  // ascending by bytes, different

  // On straight lines between the points, and on the first and the last one outside; in proportion
  // to one point alone. NaN without points; 0 for no bytes.
  [[nodiscard]] MOXIE_API double us_of(double bytes) const;
};
// 8, 27, 80, 320, 1280 and 4096 MiB.
MOXIE_API std::vector<std::uint64_t> read_curve_sizes();
// Measures these sizes on the current GPU: the best of several kernels of plain loads, the median
// of graph replays over 1 GiB in rotation, or 256 buffers where that is less. Sizes above a quarter
// of the memory are left out. Errors: Error(environment) MOXIE-E003, MOXIE-E004, MOXIE-E005.
MOXIE_API ReadCurve measure_read_curve(std::vector<std::uint64_t> bytes);

// Microseconds that the host takes to launch a kernel that does nothing on the current GPU, one
// behind the other in a stream; the median of 21 rows of 100. Errors: Error(environment)
// MOXIE-E003, MOXIE-E005.
MOXIE_API double measure_launch_us();

// 1e9 bytes per second of one copy of `bytes` page-locked bytes to the current GPU; the median of
// five. Errors: Error(environment) MOXIE-E003, MOXIE-E005; Error(unsupported) MOXIE-E004.
MOXIE_API double measure_host_to_device(std::uint64_t bytes);

// 1e9 bytes per second at which all threads together get memory from the system, as experts do that
// are loaded; the median of five. Error(environment) MOXIE-E003.
MOXIE_API double measure_fresh_memory(std::uint64_t bytes);

// This process's memory as the system counts it, with pages of mapped files that it has read; 0
// where the system does not say. Page-locked memory of a GPU's driver may be left out.
struct HostMemory {
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_bytes = 0;       // most that was resident at once
  std::uint64_t available_bytes = 0;  // that programs may still take, of the whole machine
};
MOXIE_API HostMemory host_memory();
// Starts the peak over from what is resident now; false where the system does not allow it.
MOXIE_API bool restart_host_peak();

// Asks the system to forget what it holds of these files in memory; pages that are mapped and used,
// or not yet on the disk, stay. Error(environment) MOXIE-E001.
MOXIE_API void drop_page_cache(const std::vector<std::filesystem::path>& files);
// Reads whole files once, in large blocks by all threads with the blocks to come asked for before.
struct FileRead {
  std::uint64_t bytes = 0;
  double seconds = 0;

  [[nodiscard]] double bytes_per_s() const {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
};
MOXIE_API FileRead read_files(const std::vector<std::filesystem::path>& files);

// Order statistics of samples in microseconds; quantiles interpolate linearly.
struct SampleSummary {
  std::uint64_t samples = 0;
  double median_us = 0;
  double iqr_us = 0;
  double p10_us = 0;
  double p90_us = 0;
};
MOXIE_API SampleSummary summarise(std::vector<double> samples_us);

// Overwrites more memory than the last-level cache holds, with all threads, so that the next call
// reads from memory.
class MOXIE_API CacheFlusher {
 public:
  CacheFlusher();
  void flush();

 private:
  std::vector<std::uint8_t> buffer_;
};

// {version, commit, dirty, compiler, flags, cuda, archs}.
MOXIE_API Json build_json();
// {cpu, isa, cores, kernel}.
MOXIE_API Json host_json();

}  // namespace moxie
