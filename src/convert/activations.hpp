// SPDX-License-Identifier: Apache-2.0
// Input scales from a file of activations.
#pragma once

#include <filesystem>
#include <map>

#include "convert/target.hpp"

namespace moxie::convert {

struct LayerActivations {
  float hidden_mul = 0;  // for gate and up: largest magnitude / 2688
  float inter_mul = 0;   // for down
};

class ActivationScales {
 public:
  ActivationScales() = default;
  // Error(input) MOXIE-Q009 for a layer without its tensors, a wrong shape or type, or values that
  // are not finite or all 0.
  ActivationScales(const std::filesystem::path& path, const Source& source);

  [[nodiscard]] bool empty() const { return layers_.empty(); }
  [[nodiscard]] const LayerActivations& at(int layer) const { return layers_.at(layer); }

 private:
  std::map<int, LayerActivations> layers_;
};

}  // namespace moxie::convert
