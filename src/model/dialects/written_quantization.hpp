// SPDX-License-Identifier: Apache-2.0
// The quantization_config and the hf_quant_config.json that a dialect's tensors come with.
#pragma once

#include <string>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/model.hpp"

namespace moxie {

struct WrittenQuantization {
  DialectKind dialect = DialectKind::modelopt;
  BlockFormat format = BlockFormat::nvfp4;
  bool input_scales = true;           // NVFP4: an activation scale is stored per projection
  std::string producer;               // version of the producer that ModelOpt's documents name
  std::vector<std::string> prefixes;  // of the experts of every layer
  std::vector<std::string> ignored;   // modules that stay as they are; empty: the dialect's usual
};

// `source` is the quantization_config so far, or null: DeepSeek's FP8 record for everything but the
// experts is kept, because its tile sizes are the model's.
Json quantization_of(const WrittenQuantization& written, const Json& source);

// hf_quant_config.json; null where the dialect has none.
Json quant_sidecar_of(const WrittenQuantization& written);

}  // namespace moxie
