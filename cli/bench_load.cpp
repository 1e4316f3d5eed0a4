// SPDX-License-Identifier: Apache-2.0
// Loads of one layer, timed and watched.
#include "cli/bench_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moxie/device.hpp"
#include "moxie/measure.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

namespace {

// Of the copy whose rate a load is held against: as large as a small layer.
constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kFreshBytes = std::uint64_t{256} << 20;

// What a GPU takes beyond what it took at the start, seen from any thread.
class DevicePeak {
 public:
  DevicePeak() : start_(used()) {}

  [[nodiscard]] std::uint64_t now() const { return std::max(used(), start_) - start_; }
  void look() {
    const std::uint64_t seen = now();
    std::uint64_t most = most_.load();
    while (seen > most && !most_.compare_exchange_weak(most, seen)) {
    }
  }
  [[nodiscard]] std::uint64_t most() const { return most_; }

 private:
  static std::uint64_t used() {
    const GpuMemory memory = gpu_memory();
    return memory.bytes - memory.free_bytes;
  }

  std::uint64_t start_;
  std::atomic<std::uint64_t> most_{0};
};

struct LoadFigures {
  std::uint64_t bytes = 0;             // of all blobs
  double cold_us = 0;                  // the first load; its files may come from the disk
  double own_staging_us = 0;           // with the time to lock its memory
  std::vector<double> samples_us{};    // with a staging that is kept
  std::optional<double> copy_gbps{};   // of a GPU
  std::optional<double> read_gbps{};   // of the CPU's memory
  std::optional<double> fresh_gbps{};  // at which the system gives it out
  std::optional<std::uint64_t> host_peak_bytes{};  // beyond what was resident before
  std::uint64_t staging_bytes = 0;
  std::optional<std::uint64_t> device_bytes{};  // after a load
  std::optional<std::uint64_t> device_peak_bytes{};

  [[nodiscard]] double gbps() const {
    return static_cast<double>(bytes) / summarise(samples_us).median_us * 1e-3;
  }
  // Of what the load is held against.
  [[nodiscard]] std::optional<double> ratio() const {
    const std::optional<double>& ceiling = copy_gbps ? copy_gbps : read_gbps;
    if (!ceiling) return std::nullopt;
    return gbps() / *ceiling;
  }
  [[nodiscard]] std::optional<double> over_packed() const {
    if (!device_peak_bytes || bytes == 0) return std::nullopt;
    return static_cast<double>(*device_peak_bytes) / static_cast<double>(bytes);
  }
};

template <class Value>
Json json_of(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

class PlanLoads {
 public:
  PlanLoads(const RunSubject& subject, const ShardPlan& plan, unsigned threads)
      : subject_(subject), plan_(plan), threads_(threads) {}

  LoadFigures measure(std::uint64_t samples) {
    LoadFigures figures;
    for (const RankPlan& rank : plan_.ranks)
      figures.bytes += rank.experts.count() * plan_.layout.stride;
    const bool on_gpu = plan_.target != Target::cpu;
    if (on_gpu) {
      figures.copy_gbps = measure_host_to_device(kCopyBytes);
    } else {
      figures.read_gbps = ReadTest(threads_).gbps();
      figures.fresh_gbps = measure_fresh_memory(kFreshBytes);
    }
    figures.cold_us = load_us(nullptr);
    watch(on_gpu, figures);
    figures.own_staging_us = load_us(nullptr);
    LoadStaging staging;
    (void)load_us(&staging);  // locks it
    figures.staging_bytes = staging.bytes();
    for (std::uint64_t sample = 0; sample < samples; ++sample)
      figures.samples_us.push_back(load_us(&staging));
    return figures;
  }

 private:
  static bool go_on(std::uint64_t /*done*/, std::uint64_t /*total*/) { return !interrupted(); }

  double load_us(LoadStaging* staging) const {
    const std::vector<BlobSource> sources = subject_.sources(plan_, go_on);
    const Stopwatch watch;
    const MoeLayer layer(plan_, subject_.spec(), sources, staging);
    return watch.seconds() * 1e6;
  }

  void watch(bool on_gpu, LoadFigures& figures) const {
    const bool restarted = restart_host_peak();
    const HostMemory before = host_memory();
    std::optional<DevicePeak> device;
    if (on_gpu) device.emplace();
    const MoeLayer layer(plan_, subject_.spec(),
                         subject_.sources(plan_, [&](std::uint64_t done, std::uint64_t total) {
                           if (device) device->look();
                           return go_on(done, total);
                         }));
    if (device) {
      figures.device_bytes = device->now();
      figures.device_peak_bytes = std::max(device->most(), device->now());
    }
    const std::uint64_t peak = host_memory().peak_bytes;
    if (restarted && peak >= before.resident_bytes)
      figures.host_peak_bytes = peak - before.resident_bytes;
  }

  const RunSubject& subject_;
  const ShardPlan& plan_;
  unsigned threads_;
};

Json record_of_load(const BenchSetting& setting, const ShardPlan& plan, const LoadFigures& load) {
  Json problem;
  problem.set("model", setting.model).set("hidden", plan.hidden);
  problem.set("inter", plan.inter().original.value).set("experts", plan.experts);
  problem.set("tp", plan.tp).set("ep", plan.ep);
  if (plan.placement.kind != PlacementKind::contiguous)
    problem.set("placement", name_of(plan.placement.kind));
  problem.set("format", name_of(plan.format));
  problem.set("act_format", name_of(plan.act_format)).set("target", name_of(plan.target));
  problem.set("weights", setting.makes_weights ? Json(name_of(setting.weights)) : Json());
  problem.set("seed", setting.seed);
  const SampleSummary times = summarise(load.samples_us);
  Json timing;
  timing.set("samples", times.samples).set("median_us", times.median_us);
  timing.set("iqr_us", times.iqr_us).set("own_staging_us", load.own_staging_us);
  timing.set("first_us", load.cold_us);
  Json rate;
  rate.set("gbps", load.gbps()).set("host_to_device_gbps", json_of(load.copy_gbps));
  rate.set("read_gbps", json_of(load.read_gbps));
  rate.set("fresh_memory_gbps", json_of(load.fresh_gbps)).set("ratio", json_of(load.ratio()));
  Json memory;
  memory.set("host_peak_bytes", json_of(load.host_peak_bytes));
  memory.set("staging_bytes", load.staging_bytes);
  memory.set("device_bytes", json_of(load.device_bytes));
  memory.set("device_peak_bytes", json_of(load.device_peak_bytes));
  memory.set("device_peak_over_packed", json_of(load.over_packed()));
  Json record;
  record.set("schema", "moxie.bench/1").set("ok", true).set("load", "layer");
  record.set("command", setting.command).set("build", setting.build).set("host", setting.host);
  record.set("device", setting.device).set("problem", std::move(problem));
  record.set("kernels", Json::object().set("experts", plan.kernel)).set("bytes", load.bytes);
  record.set("threads", setting.threads_used).set("timing", std::move(timing));
  record.set("rate", std::move(rate)).set("memory", std::move(memory));
  return record.set("findings", Json::array());
}

std::vector<std::string> row_of(const ShardPlan& plan, const LoadFigures& load) {
  const auto bytes = [](const std::optional<std::uint64_t>& count) {
    return count ? format_bytes(*count) : "-";
  };
  const auto number = [](const std::optional<double>& value, const char* form) {
    return value ? fmt::format(fmt::runtime(form), *value) : "-";
  };
  return {fmt::to_string(plan.tp),
          format_bytes(load.bytes),
          fmt::format("{:.1f}", summarise(load.samples_us).median_us * 1e-3),
          fmt::format("{:.1f}", load.own_staging_us * 1e-3),
          fmt::format("{:.2f}", load.gbps()),
          number(load.copy_gbps ? load.copy_gbps : load.read_gbps, "{:.2f}"),
          number(load.ratio(), "{:.2f}"),
          number(load.fresh_gbps, "{:.2f}"),
          bytes(load.host_peak_bytes),
          format_bytes(load.staging_bytes),
          number(load.over_packed(), "{:.3f}")};
}

}  // namespace

void LoadBench::run(std::uint64_t samples) const {
  for (const ShardPlan& plan : subject_.plans()) require_device(plan.target);
  Table table({"tp", "packed", "load ms", "own staging ms", "GB/s", "copy or read GB/s", "ratio",
               "fresh memory GB/s", "host peak", "page-locked", "device peak / packed"});
  for (const ShardPlan& plan : subject_.plans()) {
    const LoadFigures load = PlanLoads(subject_, plan, setting_.threads_used).measure(samples);
    console_.print_line(record_of_load(setting_, plan, load));
    table.add_row(row_of(plan, load));
  }
  const ShardPlan& plan = subject_.plans().front();
  console_.print_text(fmt::format(
      "{}: {} experts, hidden {}, inter {}, {}, {}; median of {} loads from the page cache\n\n{}",
      setting_.model, plan.experts, plan.hidden, plan.inter().original.value, name_of(plan.format),
      plan.kernel, samples, table.to_markdown()));
}

}  // namespace moxie::cli
