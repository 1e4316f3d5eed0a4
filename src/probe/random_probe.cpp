// SPDX-License-Identifier: Apache-2.0
// Probes from a seed. Every token draws from streams of its own, so that its row is the same in a
// probe of any size.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <string>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "moxie/probe.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

// First step of a stream's path; the token is the second.
enum class Draw : std::uint64_t { activations, experts, weights, token_ids };

Stream stream_of(std::uint64_t seed, Draw draw, std::uint64_t token) {
  return {seed, {static_cast<std::uint64_t>(draw), token}};
}

// A multiple of 2^-53 in [0, 1).
double unit(std::uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

// A whole number below `bound`, which is far below 2^64: the bias is bound / 2^64.
std::uint64_t below(std::uint64_t bound, std::uint64_t word) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(word) * bound) >> 64);
}

// Box and Muller: two words give two independent normal numbers.
void draw_normal(const Stream& stream, std::span<std::uint16_t> row) {
  for (std::uint64_t column = 0; column < row.size(); column += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - unit(stream.word(column))));
    const double angle = 2 * std::numbers::pi * unit(stream.word(column + 1));
    row[column] = encode_bf16(static_cast<float>(radius * std::cos(angle)));
    if (column + 1 < row.size())
      row[column + 1] = encode_bf16(static_cast<float>(radius * std::sin(angle)));
  }
}

// Different experts, one after the other, each with the probability that its mass has among those
// that are left.
void draw_different(const Stream& stream, std::vector<double> mass,
                    std::span<std::int32_t> chosen) {
  for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
    double total = 0;
    for (const double part : mass) total += part;
    double left = unit(stream.word(slot)) * total;
    std::size_t expert = 0;
    std::size_t last = 0;  // rounding may leave a rest behind the last one
    for (; expert < mass.size(); ++expert) {
      if (!(mass[expert] > 0)) continue;
      last = expert;
      if (left < mass[expert]) break;
      left -= mass[expert];
    }
    expert = std::min(expert, last);
    chosen[slot] = static_cast<std::int32_t>(expert);
    mass[expert] = 0;
  }
}

// Uniform: a shuffle that ends after the slots.
void draw_uniform(const Stream& stream, std::uint64_t experts, std::span<std::int32_t> chosen) {
  std::vector<std::int32_t> order(experts);
  for (std::size_t expert = 0; expert < order.size(); ++expert)
    order[expert] = static_cast<std::int32_t>(expert);
  for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
    std::swap(order[slot], order[slot + below(experts - slot, stream.word(slot))]);
    chosen[slot] = order[slot];
  }
}

// The hot expert, then others that are all different: drawn as if the last expert were the hot one,
// so that the number of the hot one means the last.
void draw_hot(const Stream& stream, std::uint64_t experts, std::uint64_t hot,
              std::span<std::int32_t> chosen) {
  if (chosen.empty()) return;
  chosen.front() = static_cast<std::int32_t>(hot);
  const auto others = chosen.subspan(1);
  draw_uniform(stream, experts - 1, others);
  for (std::int32_t& expert : others) {
    if (expert == static_cast<std::int32_t>(hot)) expert = static_cast<std::int32_t>(experts - 1);
  }
}

std::vector<double> zipf_mass(std::uint64_t experts, double exponent) {
  std::vector<double> mass(experts);
  for (std::size_t expert = 0; expert < mass.size(); ++expert)
    mass[expert] = std::pow(static_cast<double>(expert) + 1, -exponent);
  return mass;
}

// All weights within a factor of five of each other.
void draw_weights(const Stream& stream, double sum, std::span<float> weights) {
  double total = 0;
  for (std::size_t slot = 0; slot < weights.size(); ++slot) total += 0.25 + unit(stream.word(slot));
  for (std::size_t slot = 0; slot < weights.size(); ++slot)
    weights[slot] = static_cast<float>((0.25 + unit(stream.word(slot))) * sum / total);
}

[[noreturn]] void refuse(std::string message, std::string expected, std::string got) {
  throw Error(ErrorCode::usage, {.code = "MOXIE-U003",
                                 .message = std::move(message),
                                 .expected = std::move(expected),
                                 .got = std::move(got)});
}

void check(const ProbeOptions& options) {
  const Routing& routing = options.routing;
  if (options.top_k == 0) refuse("top_k is 0", "at least 1", "0");
  const bool names_one = routing.kind == RoutingKind::one || routing.kind == RoutingKind::hot;
  if (names_one && routing.expert >= options.experts) {
    refuse("routing names an expert that is not in the model",
           "below " + std::to_string(options.experts), std::to_string(routing.expert));
  }
  if (routing.kind != RoutingKind::one && options.top_k > options.experts) {
    refuse("a token has more slots than there are different experts",
           "top_k up to " + std::to_string(options.experts), std::to_string(options.top_k));
  }
  if (routing.kind == RoutingKind::zipf &&
      !(std::isfinite(routing.exponent) && routing.exponent >= 0 && routing.exponent <= 16)) {
    refuse("zipf exponent is out of range", "a number from 0 to 16", to_string(routing));
  }
}

}  // namespace

std::string to_string(const Routing& routing) {
  switch (routing.kind) {
    case RoutingKind::uniform:
      return "uniform";
    case RoutingKind::one:
      return "one:" + std::to_string(routing.expert);
    case RoutingKind::hot:
      return "hot:" + std::to_string(routing.expert);
    case RoutingKind::zipf:
      break;
  }
  std::string text(32, '\0');
  const auto end = std::to_chars(text.data(), text.data() + text.size(), routing.exponent).ptr;
  text.resize(static_cast<std::size_t>(end - text.data()));
  return "zipf:" + text;
}

void route_probe(Probe& probe, const ProbeOptions& options) {
  check(options);
  const std::uint64_t top_k = options.top_k;
  probe.top_k = top_k;
  probe.topk_ids.assign(probe.tokens * top_k, 0);
  probe.topk_weights.assign(probe.tokens * top_k, 0);
  const std::vector<double> mass = options.routing.kind == RoutingKind::zipf
                                       ? zipf_mass(options.experts, options.routing.exponent)
                                       : std::vector<double>{};
  parallel_for(probe.tokens, [&](std::uint64_t token) {
    const auto ids = std::span(probe.topk_ids).subspan(token * top_k, top_k);
    const Stream stream = stream_of(options.seed, Draw::experts, token);
    switch (options.routing.kind) {
      case RoutingKind::uniform:
        draw_uniform(stream, options.experts, ids);
        break;
      case RoutingKind::zipf:
        draw_different(stream, mass, ids);
        break;
      case RoutingKind::one:
        std::ranges::fill(ids, static_cast<std::int32_t>(options.routing.expert));
        break;
      case RoutingKind::hot:
        draw_hot(stream, options.experts, options.routing.expert, ids);
        break;
    }
    draw_weights(stream_of(options.seed, Draw::weights, token), options.routed_scaling,
                 std::span(probe.topk_weights).subspan(token * top_k, top_k));
  });
}

Probe make_probe(const ProbeOptions& options) {
  Probe probe{.tokens = options.tokens,
              .hidden = options.hidden,
              .top_k = options.top_k,
              .x_dtype = DType::bf16,
              .x = std::vector<std::byte>(options.tokens * options.hidden * sizeof(std::uint16_t)),
              .topk_ids = {},
              .topk_weights = {},
              .token_ids = {}};
  const std::uint64_t row_bytes = options.hidden * sizeof(std::uint16_t);
  parallel_for(options.tokens, [&](std::uint64_t token) {
    std::vector<std::uint16_t> row(options.hidden);
    draw_normal(stream_of(options.seed, Draw::activations, token), row);
    if (!row.empty()) std::memcpy(probe.x.data() + token * row_bytes, row.data(), row_bytes);
  });
  route_probe(probe, options);
  if (options.vocab > 0) {
    for (std::uint64_t token = 0; token < options.tokens; ++token) {
      const std::uint64_t word = stream_of(options.seed, Draw::token_ids, token).word(0);
      probe.token_ids.push_back(static_cast<std::int64_t>(below(options.vocab, word)));
    }
  }
  return probe;
}

}  // namespace moxie
