// SPDX-License-Identifier: Apache-2.0
// The config files of a converted checkpoint.
#pragma once

#include <string>

#include "convert/target.hpp"
#include "moxie/json.hpp"

namespace moxie::convert {

struct Documents {
  Json config;   // the source's, with another quantization_config
  Json sidecar;  // hf_quant_config.json; null where there is none
};

// `input_scales`: the output stores an activation scale per projection.
Documents written_documents(const Source& source, const Target& target, bool input_scales);

}  // namespace moxie::convert
