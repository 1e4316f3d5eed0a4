// SPDX-License-Identifier: Apache-2.0
// A layer's output against its reference, element by element. Comparisons are written so that NaN
// fails.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "moxie/verify.hpp"

namespace moxie {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFp32Epsilon = 0x1.0p-24;

// Half a unit in the last place of a number of this magnitude: what rounding it to `type` adds.
double half_ulp(double magnitude, DType type) {
  if (magnitude == 0) return 0;
  const int digits = type == DType::bf16 ? 8 : 24;
  constexpr int kLeastExponent = -126;  // below it both types are subnormal
  const int exponent = std::isfinite(magnitude) ? std::ilogb(magnitude) : 0;
  return std::ldexp(1.0, std::max(exponent, kLeastExponent) - digits);
}

// Quotient of two errors: 0 / 0 is 0, x / 0 infinite, and so is what is no number.
double ratio_of(double error, double scale) {
  if (error == 0) return 0;
  const double ratio = error / scale;
  return ratio >= 0 ? ratio : kInfinity;
}

// |got - expected|; infinite when either is not finite.
double distance(double got, double expected) {
  const double difference = std::abs(got - expected);
  return std::isfinite(difference) ? difference : kInfinity;
}

// Relative error in the sense of L2, summed up element by element.
struct RelativeL2 {
  double error_squares = 0;
  double expected_squares = 0;

  void add(double got, double expected) {
    const double difference = distance(got, expected);
    error_squares += difference * difference;
    expected_squares += expected * expected;
  }
  [[nodiscard]] double value() const {
    return ratio_of(std::sqrt(error_squares), std::sqrt(expected_squares));
  }
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

Finding outside(const LayerCheck& check, std::uint64_t failed, std::uint64_t tokens) {
  return {.code = "MOXIE-R010",
          .message = "token " + std::to_string(check.worst_token) + ", column " +
                     std::to_string(check.worst_column) + " is outside its bound, the worst of " +
                     std::to_string(failed) + " of " + std::to_string(tokens) +
                     " tokens that fail; error / bound is " + number(check.max_err_over_bound),
          .expected = number(check.worst_expected) + " within " + number(check.worst_bound),
          .got = number(check.worst_got)};
}

Finding outside(const LayerReference::ActDeviation& act) {
  return {.code = "MOXIE-R014",
          .message = "stage gate_up: token " + std::to_string(act.token) + ", choice " +
                     std::to_string(act.choice) + ", column " + std::to_string(act.column) +
                     " is not what x and the weights allow, the worst of " +
                     std::to_string(act.outside) + " values",
          .expected = number(act.least) + " to " + number(act.most),
          .got = number(act.got)};
}

// Memory between two rows of guard bytes, all of it 0xFF: NaN as f32 and as bf16.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::uint64_t bytes)
      : bytes_(bytes), memory_(bytes + 2 * kGuardBytes, kPoison) {}

  [[nodiscard]] std::span<std::byte> span() {
    return std::span(memory_).subspan(kGuardBytes, bytes_);
  }
  [[nodiscard]] bool guards_intact() const {
    const auto all = std::span(memory_);
    const auto intact = [](std::span<const std::byte> guard) {
      return std::ranges::all_of(guard, [](std::byte b) { return b == kPoison; });
    };
    return intact(all.first(kGuardBytes)) && intact(all.last(kGuardBytes));
  }

 private:
  static constexpr std::byte kPoison{0xFF};
  static constexpr std::uint64_t kGuardBytes = 64;

  std::uint64_t bytes_;
  std::vector<std::byte> memory_;
};

// The flags that a call on this probe has to set.
std::uint32_t due_flags(const Probe& probe, std::uint64_t experts) {
  const bool bad = std::ranges::any_of(probe.topk_ids, [&](std::int32_t id) {
    return id < -1 || (id >= 0 && static_cast<std::uint64_t>(id) >= experts);
  });
  return bad ? kFlagBadExpertId : 0;
}

void report(LayerCheck& check, std::string message, std::string expected = {},
            std::string got = {}) {
  check.passed = false;
  check.findings.push_back({.code = "MOXIE-R010",
                            .message = std::move(message),
                            .expected = std::move(expected),
                            .got = std::move(got)});
}

}  // namespace

LayerCheck check_output(std::span<const float> y, const LayerReference& reference,
                        const ShardPlan& plan, DType output) {
  const std::uint64_t elements = reference.tokens * reference.hidden;
  MOXIE_CHECK(y.size() == elements && reference.y.size() == elements &&
                  reference.bound.size() == elements && reference.magnitude.size() == elements &&
                  reference.unquantised.size() == elements,
              "result and reference have [tokens, hidden] elements");
  MOXIE_CHECK(output == DType::f32 || output == DType::bf16, "a layer's output is f32 or bf16");
  const std::size_t world = plan.ranks.size();
  const double rank_sum = world > 1 ? static_cast<double>(world) * kFp32Epsilon : 0;

  LayerCheck check;
  check.bound.resize(elements);
  std::uint64_t failed_tokens = 0;
  RelativeL2 whole;
  RelativeL2 unquantised;
  double got_squares = 0;
  for (std::uint64_t token = 0; token < reference.tokens; ++token) {
    RelativeL2 row;
    bool token_passed = true;
    for (std::uint64_t column = 0; column < reference.hidden; ++column) {
      const std::uint64_t at = token * reference.hidden + column;
      const double got = y[at];
      const double expected = reference.y[at];
      const double before = reference.bound[at] + rank_sum * reference.magnitude[at];
      // The number that is rounded last may be as far away as the bound allows.
      const double bound = before + half_ulp(std::abs(expected) + before, output);
      check.bound[at] = bound;
      const double error = distance(got, expected);
      // An infinite bound bounds nothing.
      const bool bounded = std::isfinite(bound);
      if (!(bounded && error <= bound)) token_passed = false;
      const double ratio = bounded ? ratio_of(error, bound) : kInfinity;
      if (at == 0 || ratio > check.max_err_over_bound) {
        check.max_err_over_bound = ratio;
        check.worst_token = token;
        check.worst_column = column;
        check.worst_expected = expected;
        check.worst_got = got;
        check.worst_bound = bound;
      }
      row.add(got, expected);
      unquantised.add(got, reference.unquantised[at]);
      got_squares += std::isfinite(got) ? got * got : kInfinity;
    }
    if (!token_passed) ++failed_tokens;
    check.worst_row = std::max(check.worst_row, row.value());
    whole.error_squares += row.error_squares;
    whole.expected_squares += row.expected_squares;
  }
  check.relative_l2 = whole.value();
  check.unquantised_l2 = unquantised.value();
  if (got_squares != 0 || whole.expected_squares != 0)
    check.norm_ratio = ratio_of(std::sqrt(got_squares), std::sqrt(whole.expected_squares));
  check.passed = failed_tokens == 0;
  if (!check.passed) check.findings.push_back(outside(check, failed_tokens, reference.tokens));
  if (reference.act.outside > 0) {
    check.passed = false;
    check.findings.push_back(outside(reference.act));
  }
  return check;
}

LayerCheck check_layer(const MoeLayer& layer, const LayerReference& reference, const Probe& probe) {
  const ShardPlan& plan = layer.plan();
  MOXIE_CHECK(layer.spec().reduction == Reduction::layer || plan.ranks.size() == 1,
              "a partial sum has no reference");
  const std::uint64_t elements = probe.tokens * plan.hidden;
  const bool on_host = plan.target == Target::cpu;
  GuardedBuffer workspace(on_host ? layer.workspace_size(probe.tokens) : 0);
  GuardedBuffer y(elements * sizeof(float));
  std::uint32_t flags = 0;
  const LayerIo io{.x = probe.x_ref(),
                   .topk_ids = probe.topk_ids.data(),
                   .topk_weights = probe.topk_weights.data(),
                   .y = {.data = y.span().data(),
                         .dtype = DType::f32,
                         .rows = probe.tokens,
                         .cols = plan.hidden,
                         .row_stride = plan.hidden},
                   .flags = &flags};
  const CallStatus status =
      on_host ? layer.forward(io, workspace.span()) : HostCall(layer, probe.tokens).forward(io);
  std::vector<float> got(elements);
  if (elements != 0) std::memcpy(got.data(), y.span().data(), elements * sizeof(float));
  LayerCheck check = check_output(got, reference, plan);
  if (status != CallStatus::ok)
    report(check, "the layer refused the call", "ok", std::string(name_of(status)));
  if (!workspace.guards_intact()) report(check, "the layer wrote outside its workspace");
  if (!y.guards_intact()) report(check, "the layer wrote outside its output");
  if (const std::uint32_t due = due_flags(probe, plan.experts); flags != due)
    report(check, "the call set other flags than its ids ask for", std::to_string(due),
           std::to_string(flags));
  return check;
}

}  // namespace moxie
