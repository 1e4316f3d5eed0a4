// SPDX-License-Identifier: Apache-2.0
// The data of one layer call: activations, routing, token ids; made from a seed, read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/types.hpp"

namespace moxie {

struct Probe {
  std::uint64_t tokens = 0;
  std::uint64_t hidden = 0;
  std::uint64_t top_k = 0;
  DType x_dtype = DType::bf16;          // bf16 or f32
  std::vector<std::byte> x;             // [tokens, hidden] dense
  std::vector<std::int32_t> topk_ids;   // [tokens, top_k]; empty: not routed yet
  std::vector<float> topk_weights;      // [tokens, top_k]
  std::vector<std::int64_t> token_ids;  // [tokens]; empty: none

  [[nodiscard]] MatrixRef x_ref() const {
    return {
        .data = x.data(), .dtype = x_dtype, .rows = tokens, .cols = hidden, .row_stride = hidden};
  }
};

// How tokens go to experts when neither a file nor the model says.
enum class RoutingKind : std::uint8_t {
  uniform,  // top_k different experts, all equally likely
  zipf,     // top_k different experts, expert e with weight (e + 1)^-exponent
  one,      // every slot of every token to one expert
  hot       // one slot of every token to one expert, the others uniform over the rest
};

struct Routing {
  RoutingKind kind = RoutingKind::uniform;
  double exponent = 1.0;     // zipf
  std::uint64_t expert = 0;  // one, hot
};
// "uniform", "zipf:1.2", "one:7", "hot:7".
MOXIE_API std::string to_string(const Routing& routing);

struct ProbeOptions {
  std::uint64_t tokens = 0;
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
  std::uint64_t top_k = 0;
  std::uint64_t vocab = 0;      // token ids are uniform below it; 0: none are made
  double routed_scaling = 1.0;  // a token's weights sum to this
  Routing routing;
  std::uint64_t seed = 0;
};

// x is N(0, 1) in bf16. The same options give the same probe; a token's row depends on the seed and
// its index alone, not on `tokens`.
MOXIE_API Probe make_probe(const ProbeOptions& options);
// Ids and weights only, for a probe whose x came from elsewhere.
MOXIE_API void route_probe(Probe& probe, const ProbeOptions& options);

// What a reader expects of a probe file.
struct ProbeLimits {
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
  std::optional<std::uint64_t> top_k;   // when given, topk_ids must have as many columns
  std::optional<std::uint64_t> tokens;  // when given, all tensors must have as many rows
  std::optional<std::uint64_t> vocab;   // when given, token ids are below it; -1 masks a token
};

// Reads `hidden_states` [tokens, hidden] bf16|f32 and, where present, `topk_ids` [tokens, k]
// i32|i64, `topk_weights` [tokens, k] f32, `token_ids` [tokens] i64. Errors: Error(input)
// MOXIE-R005 naming the tensor for a wrong type or shape, an expert or token id outside its range
// other than -1, a weight or an activation that is no finite number, ids without weights or weights
// without ids. Error(usage) MOXIE-R006 when the number of rows differs from `tokens`.
MOXIE_API Probe read_probe(const std::filesystem::path& path, const ProbeLimits& limits);
// Reads `topk_ids` and `topk_weights` only, into a probe that has x. The same errors.
MOXIE_API void read_routing(const std::filesystem::path& path, const ProbeLimits& limits,
                            Probe& probe);

// One tensor to write beside the probe.
struct NamedMatrix {
  std::string name;
  MatrixRef matrix;  // dense
};
// Writes `hidden_states`, `topk_ids`, `topk_weights`, `token_ids` (what the probe has) and `more`
// into one safetensors file, which appears complete or not at all.
MOXIE_API void write_probe(const std::filesystem::path& path, const Probe& probe,
                           const std::vector<NamedMatrix>& more);

}  // namespace moxie
