// SPDX-License-Identifier: Apache-2.0
// Every stored value that a reader may not use, as findings instead of the first as a refusal.
#include <span>
#include <utility>

#include "base/errors.hpp"
#include "base/parallel.hpp"
#include "moxie/pack.hpp"
#include "pack/around_values.hpp"
#include "pack/collect.hpp"
#include "pack/scale_check.hpp"
#include "pack/whole_check.hpp"

namespace moxie {

namespace {

std::vector<Finding> check_expert(const MoeModel& model, const LayerExperts& layer,
                                  std::uint64_t expert) {
  std::vector<Finding> findings;
  const Checkpoint& checkpoint = model.checkpoint;
  std::vector<std::byte> row;
  for (const ProjectionKind kind : projections_of(model.config)) {
    const Projection& projection = layer.experts[expert][kind];
    const RowsView& scales = projection.block_scales;
    collect(findings, [&] {
      row.resize(scales.row_bytes);
      for (std::uint64_t r = 0; r < scales.rows; ++r) {
        read_row(checkpoint, scales, r, 0, row);
        if (const std::size_t bad = first_bad_scale(layer.format, row); bad != row.size())
          refuse_scale(checkpoint, layer, expert, *scales.tensor, r, bad, row[bad]);
      }
    });
    if (layer.recast || layer.format == BlockFormat::nvfp4) {
      collect(findings,
              [&] { read_global(checkpoint, layer, expert, kind, projection.dequant_mul); });
      if (projection.act_dequant_mul.present()) {
        std::vector<Finding> unusable;
        collect(unusable,
                [&] { read_scalar_of(checkpoint, layer, expert, projection.act_dequant_mul); });
        for (Finding& finding : unusable) {
          finding.severity = Severity::warning;  // not every activation format consumes it
          findings.push_back(std::move(finding));
        }
      }
    }
    const RowsView& bias = projection.bias;
    if (!bias.present()) continue;
    collect(findings, [&] {
      row.resize(bias.row_bytes);
      for (std::uint64_t r = 0; r < bias.rows; ++r) {
        read_row(checkpoint, bias, r, 0, row);
        check_biases(row, r, place_of(checkpoint, layer, expert, *bias.tensor));
      }
    });
  }
  return findings;
}

// A router that is only read by those who run with it, unless the layer is packed whole.
std::vector<Finding> check_router(const MoeModel& model, const LayerExperts& layer) {
  std::vector<Finding> findings;
  const RouterTensors& router = layer.router;
  for (const TensorInfo* tensor :
       {router.weight, router.bias, router.token_table, router.input_scale, router.expert_scale}) {
    if (tensor == nullptr || is_router_tensor(tensor->name)) continue;
    collect(findings, [&] {
      check_router_numbers(*tensor, place_around(model, *tensor, &layer), 0,
                           model.checkpoint.bytes(*tensor));
    });
  }
  return findings;
}

}  // namespace

std::vector<Finding> check_stored_values(const MoeModel& model, int layer,
                                         const Progress& progress) {
  const LayerExperts& source = model.require_layer(layer);
  std::vector<std::vector<Finding>> found(source.experts.size());
  constexpr std::uint64_t kPart = 64;
  std::vector<Finding> findings;
  for (std::uint64_t first = 0; first < found.size(); first += kPart) {
    const std::uint64_t count = std::min<std::uint64_t>(kPart, found.size() - first);
    parallel_for(
        count, [&](std::uint64_t i) { found[first + i] = check_expert(model, source, first + i); });
    report_progress(progress, first + count, found.size());
  }
  found.push_back(check_router(model, source));
  found.push_back(check_around(model, source));
  for (std::vector<Finding>& part : found) {
    for (Finding& finding : part) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace moxie
