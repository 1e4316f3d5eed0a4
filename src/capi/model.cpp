// SPDX-License-Identifier: Apache-2.0
// Opens checkpoints and packed folders.
#include <algorithm>

#include "capi/handles.hpp"
#include "capi/refusal.hpp"
#include "capi/versioned.hpp"
#include "moxie/checkpoint.hpp"

namespace moxie::capi {

namespace {

Source open_folder(const std::filesystem::path& path) {
  Source source{.folder = open_packed_folder(path)};
  source.findings = source.folder->findings;
  source.layers = source.folder->layers;
  return source;
}

Source open_model(const std::filesystem::path& path) {
  const Checkpoint checkpoint = open_checkpoint(path);
  Source source{.model = read_model(checkpoint)};
  std::vector<Finding>& findings = source.findings;
  findings.assign(checkpoint.findings().begin(), checkpoint.findings().end());
  findings.insert(findings.end(), source.model->findings.begin(), source.model->findings.end());
  for (const LayerExperts& layer : source.model->layers) {
    if (!layer.mtp && layer.problems.empty()) source.layers.push_back(layer.layer);
    for (Finding finding : layer.problems) {
      if (finding.code == "MOXIE-C010") continue;  // named by opening
      finding.severity = Severity::warning;
      findings.push_back(std::move(finding));
    }
  }
  return source;
}

}  // namespace

}  // namespace moxie::capi

using namespace moxie::capi;  // NOLINT(google-build-using-namespace): of the C functions below

extern "C" {

int moxie_open(const char* path, moxie_model** model) noexcept {
  return guarded([&] {
    require_pointer(model, "model");
    *model = nullptr;
    require_pointer(path, "path");
    auto source = std::make_shared<Source>(moxie::is_packed_folder(path) ? open_folder(path)
                                                                         : open_model(path));
    *model = std::make_unique<moxie_model>(moxie_model{std::move(source)}).release();
  });
}

void moxie_model_destroy(moxie_model* model) noexcept {
  const std::unique_ptr<moxie_model> owned(model);
}

int moxie_describe_model(const moxie_model* model, moxie_model_info* info) noexcept {
  return guarded([&] {
    require_pointer(model, "model");
    const Source& source = *model->source;
    const moxie::ModelConfig& config = source.config();
    write_struct(info, {.struct_size = 0,
                        .packed = source.folder ? 1U : 0U,
                        .hidden = config.hidden,
                        .inter = config.inter,
                        .experts = config.experts,
                        .top_k = config.top_k,
                        .layers = source.layers.size()});
  });
}

int moxie_model_layer(const moxie_model* model, uint64_t index, int32_t* layer) noexcept {
  return guarded([&] {
    require_pointer(model, "model");
    require_pointer(layer, "layer");
    const std::vector<int>& layers = model->source->layers;
    if (index >= layers.size()) {
      refuse("MOXIE-A003", "there are fewer layers that can be prepared",
             "an index below " + std::to_string(layers.size()), std::to_string(index));
    }
    *layer = layers[index];
  });
}

}  // extern "C"
