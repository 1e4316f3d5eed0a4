// SPDX-License-Identifier: Apache-2.0
// Writes all layers of a recipe as one GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>

#include "moxie/synth.hpp"
#include "synth/recipe.hpp"

namespace moxie::synth {

// `total` is what progress counts up to; counts go into `report`.
void write_gguf(const std::filesystem::path& path, const Recipe& recipe,
                const SynthOptions& options, std::uint64_t total, SynthReport& report);

}  // namespace moxie::synth
