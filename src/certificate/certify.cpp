// SPDX-License-Identifier: Apache-2.0
// One expert at a time: its scales as MXFP4's, their windows, and a checksum; then a layer's sums
// in a fixed order.
#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/parallel.hpp"
#include "formats/block_format.hpp"
#include "moxie/certificate.hpp"
#include "pack/scale_check.hpp"
#include "quantize/fp8_closed.hpp"

namespace moxie {

namespace {

constexpr std::array kAllGranules = {Granule::row, Granule::block, Granule::whole};

constexpr std::uint8_t kZeroScale = 0x00;  // of NVFP4: its products are all 0

// What one projection adds to its layer.
struct ProjectionTally {
  std::uint64_t groups = 0;
  std::uint64_t zero_groups = 0;
  std::uint64_t blocks = 0;
  std::uint64_t blocks_not_closed = 0;
  bool is_cast = true;
  std::array<std::array<LosslessReport, kExactWindows>, kGranules> windows{};
  std::string checksum;
};

class ScaleReader {
 public:
  ScaleReader(const MoeModel& model, const LayerExperts& layer) : model_(model), layer_(layer) {}

  ProjectionTally read(std::uint64_t expert, ProjectionKind kind) {
    const RowsView& view = layer_.experts[expert][kind].block_scales;
    ProjectionTally tally;
    scales_.resize(view.rows * view.row_bytes);
    for (std::uint64_t row = 0; row < view.rows; ++row) {
      read_row(model_.checkpoint, view, row, 0,
               std::span(scales_).subspan(row * view.row_bytes, view.row_bytes));
    }
    if (const std::size_t bad = first_bad_scale(layer_.format, scales_); bad != scales_.size()) {
      refuse_scale(model_.checkpoint, layer_, expert, *view.tensor, bad / view.row_bytes,
                   bad % view.row_bytes, scales_[bad]);
    }
    tally.checksum = hash_hex(scales_);
    std::uint64_t groups = view.row_bytes;
    if (layer_.format == BlockFormat::nvfp4) {
      join_pairs(groups, tally);
      groups /= 2;
    }
    if (!tally.is_cast) return tally;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales_.data());
    for (const Granule granule : kAllGranules) {
      tally.windows[static_cast<std::size_t>(granule)] =
          check_lossless(bytes, view.rows, groups, granule);
    }
    tally.groups = tally.windows[0][0].groups;
    tally.zero_groups = view.rows * groups - tally.groups;
    return tally;
  }

 private:
  // NVFP4 scales to those of the MXFP4 matrix that they are a cast of. With an odd number of blocks
  // in a row there is no such matrix.
  void join_pairs(std::uint64_t row_blocks, ProjectionTally& tally) {
    const auto byte = [&](std::size_t at) { return std::to_integer<std::uint8_t>(scales_[at]); };
    tally.blocks = scales_.size();
    for (std::size_t i = 0; i < scales_.size(); ++i)
      tally.blocks_not_closed += byte(i) == kZeroScale || is_fp8_closed(byte(i)) ? 0 : 1;
    tally.is_cast = row_blocks % 2 == 0;
    for (std::size_t i = 0; 2 * i + 1 < scales_.size(); ++i) {
      const std::uint8_t joined = e8m0_of_pair(byte(2 * i), byte(2 * i + 1));
      tally.is_cast = tally.is_cast && joined != kE8m0NanCode;
      scales_[i] = std::byte{joined};
    }
    scales_.resize(scales_.size() / 2);
  }

  const MoeModel& model_;
  const LayerExperts& layer_;
  std::vector<std::byte> scales_;  // [rows, blocks], then [rows, groups]
};

void add(LayerCertificate& sum, std::uint64_t expert, ProjectionKind kind,
         const ProjectionTally& tally) {
  sum.blocks += tally.blocks;
  sum.blocks_not_closed += tally.blocks_not_closed;
  if (!tally.is_cast) {
    if (sum.not_casts.empty() || sum.not_casts.back() != expert) sum.not_casts.push_back(expert);
    return;
  }
  sum.groups += tally.groups;
  sum.zero_groups += tally.zero_groups;
  TensorLosses losses{.expert = expert, .projection = kind};
  bool lossy = false;
  for (std::size_t granule = 0; granule < kGranules; ++granule) {
    for (std::size_t window = 0; window < kExactWindows; ++window) {
      const LosslessReport& report = tally.windows[granule][window];
      sum.outside[granule][window] += report.outside;
      losses.outside[granule][window] = report.outside;
      lossy = lossy || report.outside > 0;
      WorstGroup& worst = sum.worst[granule][window];
      if (report.worst_distance > worst.distance) {
        worst = {.expert = expert,
                 .projection = kind,
                 .row = report.worst_row,
                 .group = report.worst_group,
                 .distance = report.worst_distance};
      }
    }
  }
  if (lossy) sum.tensors.push_back(losses);
}

}  // namespace

Certificate certify(const MoeModel& model, const CertifyOptions& options) {
  const ModelConfig& config = model.config;
  Certificate certificate{.model = config.model_type,
                          .hidden = config.hidden,
                          .inter = config.inter,
                          .experts = config.experts,
                          .moe_layers = config.moe_layers.size(),
                          .layers = {}};
  std::vector<const LayerExperts*> layers;
  for (const LayerExperts& layer : model.layers) {
    if (options.layers.empty() && !layer.mtp && layer.problems.empty()) layers.push_back(&layer);
  }
  for (const int layer : options.layers) layers.push_back(&model.require_layer(layer));
  if (layers.empty()) {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-M011",
                 .message = "there is no complete layer of FP4 experts to certify",
                 .where = {.file = model.checkpoint.path().string()}});
  }
  std::uint64_t total = 0;
  for (const LayerExperts* layer : layers) total += layer->experts.size();
  const std::vector<ProjectionKind> kinds = projections_of(config);
  std::uint64_t done = 0;
  for (const LayerExperts* layer : layers) {
    const std::uint64_t experts = layer->experts.size();
    std::vector<ProjectionTally> tallies(experts * kinds.size());
    // In parts, so that progress is seen and an interrupt is heard.
    constexpr std::uint64_t kPart = 64;
    for (std::uint64_t first = 0; first < experts; first += kPart) {
      const std::uint64_t count = std::min(kPart, experts - first);
      parallel_for(count, [&](std::uint64_t i) {
        ScaleReader reader(model, *layer);
        for (std::size_t k = 0; k < kinds.size(); ++k)
          tallies[(first + i) * kinds.size() + k] = reader.read(first + i, kinds[k]);
      });
      done += count;
      report_progress(options.progress, done, total);
    }
    LayerCertificate sum{.layer = layer->layer, .format = layer->format, .experts = experts};
    std::string checksums;
    for (std::size_t i = 0; i < tallies.size(); ++i) {
      add(sum, i / kinds.size(), kinds[i % kinds.size()], tallies[i]);
      checksums += tallies[i].checksum;
    }
    sum.scales_checksum = hash_hex(checksums);
    certificate.layers.push_back(std::move(sum));
    for (std::uint32_t file = 0; file < model.checkpoint.files().size(); ++file)
      model.checkpoint.release(file);
  }
  std::ranges::sort(certificate.layers, {}, &LayerCertificate::layer);
  return certificate;
}

}  // namespace moxie
