// SPDX-License-Identifier: Apache-2.0
// Names inside a packed set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moxie {

inline constexpr std::string_view kPlanFile = "moxie-plan.json";
inline constexpr std::string_view kProofFile = "moxie-proof.json";
inline constexpr std::string_view kFilesFile = "files.json";
// What is copied from the source, where it has them.
inline constexpr std::string_view kConfigFiles[] = {"config.json", "hf_quant_config.json"};

// "rank-002".
std::string rank_folder_name(unsigned rank);
// "model-00003.safetensors".
std::string layer_file_name(int layer);
// Of the tensors that belong to no layer.
inline constexpr std::string_view kTopFile = "model-top.safetensors";
// The layer number in "model-00003.safetensors".
std::optional<int> layer_of_file(const std::string& name);
// The one tensor of a layer in the kernel layout: "layers.3.experts".
std::string blobs_tensor_name(int layer);

}  // namespace moxie
