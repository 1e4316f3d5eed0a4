// SPDX-License-Identifier: Apache-2.0
// The projections of one expert, converted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/activations.hpp"
#include "convert/target.hpp"

namespace moxie::convert {

// A scalar as it will be stored.
struct ConvertedProjection {
  std::uint64_t rows = 0;
  std::vector<std::uint8_t> codes;   // FP8: elements
  std::vector<std::uint8_t> scales;  // FP8: f32 multipliers of the tiles
  std::optional<float> global;       // in the target's convention
  std::optional<float> input;
  QuantStats stats;
  std::optional<std::uint64_t> changed;
};
using ConvertedExpert = std::array<ConvertedProjection, 3>;  // by ProjectionKind

// The same bytes for any number of threads. Errors name tensor, layer and expert.
ConvertedExpert convert_expert(const Source& source, const Target& target,
                               const ActivationScales& activations, const SourceLayer& layer,
                               std::uint64_t expert);

// Bound on the memory that converting one expert takes, source pages included.
std::uint64_t working_bytes(const Source& source, const Target& target);

// An MXFP4 matrix as FP8 with a power-of-two multiplier per tile. Error(unsupported) MOXIE-Q007
// with the worst place unless every value stays what it is.
ConvertedProjection exact_fp8(const Fp4MatrixRef& matrix);

// The number x whose reciprocal is stored as `stored`, or the other way round. Where it can be, the
// result's own reciprocal is `stored` again.
float reciprocal_of(float stored);

// Where pieces of an expert go: name of the tensor, first byte inside it, bytes.
struct Piece {
  std::string tensor;
  std::uint64_t offset = 0;
  std::vector<std::uint8_t> bytes;
};
std::vector<Piece> pieces_of(const Source& source, const Target& target, const SourceLayer& layer,
                             std::uint64_t expert, ConvertedExpert converted);

}  // namespace moxie::convert
