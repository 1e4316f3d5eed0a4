// SPDX-License-Identifier: Apache-2.0
// What a certificate allows.
#include "moxie/certificate.hpp"

#include <algorithm>
#include <utility>

namespace moxie {

std::optional<Granule> LayerCertificate::granule_for(ExactWindow window) const {
  if (!not_casts.empty()) return std::nullopt;
  for (const Granule granule : {Granule::whole, Granule::block, Granule::row}) {
    if (outside[static_cast<std::size_t>(granule)][static_cast<std::size_t>(window)] == 0)
      return granule;
  }
  return std::nullopt;
}

void require_certificate_of(const Certificate& certificate, const MoeModel& model) {
  const ModelConfig& config = model.config;
  const auto text = [](std::string type, std::uint64_t hidden, std::uint64_t inter,
                       std::uint64_t experts, std::uint64_t layers) {
    return std::move(type) + ", hidden " + std::to_string(hidden) + ", inter " +
           std::to_string(inter) + ", " + std::to_string(layers) + " layers of " +
           std::to_string(experts) + " experts";
  };
  const std::string expected = text(config.model_type, config.hidden, config.inter, config.experts,
                                    config.moe_layers.size());
  const std::string got = text(certificate.model, certificate.hidden, certificate.inter,
                               certificate.experts, certificate.moe_layers);
  if (expected == got) return;
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-P013",
                                       .message = "the certificate is of another model",
                                       .expected = expected,
                                       .got = got,
                                       .hint = "write it with moxie doctor MODEL --certificate"});
}

std::string recast_refusal(const Certificate& certificate, const MoeModel& model) {
  if (model.format != BlockFormat::nvfp4) return "the experts are not NVFP4";
  for (const int number : model.config.moe_layers) {
    const auto layer = std::ranges::find(certificate.layers, number, &LayerCertificate::layer);
    if (layer == certificate.layers.end())
      return "the certificate does not cover layer " + std::to_string(number);
    if (layer->format != BlockFormat::nvfp4)
      return "layer " + std::to_string(number) + " is not NVFP4";
    if (layer->experts != model.config.experts)
      return "the certificate has another number of experts for layer " + std::to_string(number);
    if (!layer->not_casts.empty()) {
      return std::to_string(layer->not_casts.size()) + " experts of layer " +
             std::to_string(number) + " are no casts of MXFP4, the first is expert " +
             std::to_string(layer->not_casts.front());
    }
  }
  return {};
}

}  // namespace moxie
