// SPDX-License-Identifier: Apache-2.0
// Expert by expert and a few slots at a time, so that memory stays small; rows of weights go to
// threads, so that one busy expert keeps them all busy.
#include "kernels/ref/reference.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "kernels/ref/activation_range.hpp"
#include "kernels/ref/quantised_row.hpp"
#include "kernels/ref/rounding.hpp"
#include "kernels/ref/weight_rows.hpp"

namespace moxie::ref {

namespace {

// Rows of activations that share one decoded row of weights; their doubles fit a second-level
// cache.
constexpr std::uint64_t kSlotsAtOnce = 32;
constexpr std::uint64_t kRowsPerTask = 16;

struct Slot {
  std::uint64_t number = 0;
  std::uint64_t token = 0;
  double weight = 0;
};

// Slots of one expert, and their rows on the way through it.
struct Batch {
  std::span<const Slot> slots;
  std::vector<double> x_unit;    // [slots] what an engine keeps apart from its sums: 1 or a global
  std::vector<double> act_unit;  // [slots] scale; of x and of a
  std::vector<double> xq;        // [slots, hidden] quantised
  std::vector<double> x;         // [slots, hidden]; empty where nothing changed by quantising
  std::vector<double> a;         // [slots, inter] after the activation function
  std::vector<double> radius;    // [slots, inter] of an engine's a around it
  std::vector<double> aq;        // [slots, inter] a, quantised
  std::vector<double> least;     // [slots, inter] ends of an engine's aq
  std::vector<double> most;      // [slots, inter]
  std::vector<double> plain;     // [slots, inter] a without quantised x; empty as x
};

class LayerRun {
 public:
  explicit LayerRun(const Problem& problem)
      : problem_(problem),
        function_{.kind = problem.activation, .limit = problem.activation_limit},
        nvfp4_(problem.act_format == ActFormat::nvfp4),
        int8_(problem.act_format == ActFormat::int8 || problem.act_format == ActFormat::int8x2),
        gate_up_roundings_(roundings(problem.gate_up_roundings, problem.hidden)),
        down_roundings_(roundings(problem.down_roundings, problem.inter)) {
    check();
    // One more for the global scale, and one for that of values that were handed out as fp32.
    if (nvfp4_) {
      gate_up_roundings_ += 1;
      down_roundings_ += problem.act == nullptr ? 1 : 2;
    }
    // An engine may round the values to fp32: scale times code, and the sum of two codes before.
    if (int8_) {
      const std::uint64_t more = problem.act_format == ActFormat::int8 ? 1 : 2;
      gate_up_roundings_ += more;
      down_roundings_ += more;
    }
    const std::uint64_t outputs = problem.tokens * problem.hidden;
    for (auto* array : {&result_.y, &result_.bound, &result_.magnitude, &result_.unquantised})
      array->assign(outputs, 0);
  }

  Result run() {
    quantise_x();
    slots_of_expert_ = slots();
    if (nvfp4_) measure_x();
    if (nvfp4_ && problem_.act_scaling.policy == ActScale::dynamic) {
      for_batches([this](const Expert& tensors, Batch& batch) {
        gate_up(tensors, batch);
        measure_act(batch);
      });
      result_.clamped = 0;  // they are counted again
    }
    for_batches([this](const Expert& tensors, Batch& batch) {
      gate_up(tensors, batch);
      requantise(tensors, batch);
      down(tensors.down, batch);
    });
    return std::move(result_);
  }

 private:
  // Calls body(tensors, batch) for all slots, some of one expert at a time.
  template <class Body>
  void for_batches(const Body& body) {
    for (std::uint64_t expert = 0; expert < problem_.experts; ++expert) {
      const std::span<const Slot> slots = slots_of_expert_[expert];
      if (slots.empty()) continue;
      const Expert tensors = problem_.expert(expert);
      for (std::size_t first = 0; first < slots.size(); first += kSlotsAtOnce) {
        Batch batch =
            gather(tensors,
                   slots.subspan(first, std::min<std::size_t>(kSlotsAtOnce, slots.size() - first)));
        body(tensors, batch);
      }
    }
  }

  void check() const {
    MOXIE_CHECK(supports(problem_.activation), "the reference has this activation function");
    MOXIE_CHECK(supports(problem_.act_format), "the reference has this activation format");
    MOXIE_CHECK(!has_limit(problem_.activation) || problem_.activation_limit > 0,
                "a function that clamps has a limit");
    const std::uint64_t group = scale_group(problem_.format);
    MOXIE_CHECK(problem_.hidden % group == 0 && problem_.inter % group == 0,
                "widths are whole scale groups");
    const auto& starts = problem_.part_starts;
    MOXIE_CHECK(!starts.empty() && starts.front() == 0 && starts.back() < problem_.inter &&
                    std::ranges::adjacent_find(starts, std::greater_equal()) == starts.end(),
                "parts start at 0 and ascend");
    const ActScaling& scaling = problem_.act_scaling;
    if (!nvfp4_) return;
    MOXIE_CHECK(
        scaling.groups > 0 && (scaling.group_of_slot.empty() ||
                               scaling.group_of_slot.size() == problem_.tokens * problem_.top_k),
        "every slot is in a group");
    MOXIE_CHECK(scaling.policy != ActScale::warmup ||
                    scaling.frozen.size() == scaling.groups * starts.size(),
                "every part of every group has frozen scales");
  }

  void quantise_x() {
    const std::uint64_t hidden = problem_.hidden;
    x_changed_ = nvfp4_ || int8_;
    if (x_changed_) return;  // slot by slot, in double
    xq_.resize(problem_.tokens * hidden);
    parallel_for(problem_.tokens, [&](std::uint64_t token) {
      moxie::quantise_row(problem_.act_format, problem_.x + token * hidden, hidden,
                          xq_.data() + token * hidden);
    });
    x_changed_ =
        !xq_.empty() && std::memcmp(xq_.data(), problem_.x, xq_.size() * sizeof(float)) != 0;
  }

  // By expert, in order of tokens and choices. Ids outside the model have no slot.
  [[nodiscard]] std::vector<std::vector<Slot>> slots() const {
    std::vector<std::vector<Slot>> slots(problem_.experts);
    for (std::uint64_t s = 0; s < problem_.tokens * problem_.top_k; ++s) {
      const std::int64_t id = problem_.topk_ids[s];
      if (id < 0 || static_cast<std::uint64_t>(id) >= problem_.experts) continue;
      slots[static_cast<std::uint64_t>(id)].push_back(
          {.number = s, .token = s / problem_.top_k, .weight = problem_.topk_weights[s]});
    }
    return slots;
  }

  [[nodiscard]] std::uint64_t group_of(const Slot& slot) const {
    const auto& groups = problem_.act_scaling.group_of_slot;
    return groups.empty() ? 0 : groups[slot.number];
  }

  [[nodiscard]] std::span<const float> x_of(std::uint64_t token) const {
    return {problem_.x + token * problem_.hidden, problem_.hidden};
  }

  // Largest magnitudes of each token, and of the tokens that have a slot in each group.
  void measure_x() {
    const ActScaling& scaling = problem_.act_scaling;
    token_amax_.resize(problem_.tokens);
    parallel_for(problem_.tokens, [&](std::uint64_t token) {
      for (const float value : x_of(token)) token_amax_[token].add(value, 0);
    });
    group_amax_.resize(scaling.groups);
    act_amax_.resize(scaling.groups * problem_.part_starts.size());
    for (std::uint64_t expert = 0; expert < problem_.experts; ++expert) {
      for (const Slot& slot : slots_of_expert_[expert])
        group_amax_.at(group_of(slot)).add(token_amax_[slot.token]);
    }
  }

  // The largest magnitude of one part of a row of a.
  [[nodiscard]] AmaxRange act_amax(const Batch& batch, std::uint64_t i, std::size_t part) const {
    const auto& starts = problem_.part_starts;
    const std::uint64_t end = part + 1 < starts.size() ? starts[part + 1] : problem_.inter;
    AmaxRange amax;
    for (std::uint64_t column = starts[part]; column < end; ++column) {
      const std::uint64_t at = i * problem_.inter + column;
      amax.add(batch.a[at], batch.radius[at]);
    }
    return amax;
  }

  void measure_act(const Batch& batch) {
    const std::size_t parts = problem_.part_starts.size();
    for (std::size_t i = 0; i < batch.slots.size(); ++i) {
      for (std::size_t part = 0; part < parts; ++part)
        act_amax_[group_of(batch.slots[i]) * parts + part].add(act_amax(batch, i, part));
    }
  }

  // The global scale of x in one slot. x is known exactly, and so is the scale.
  [[nodiscard]] float x_scale(const Expert& tensors, const Slot& slot) const {
    const ActScaling& scaling = problem_.act_scaling;
    switch (scaling.policy) {
      case ActScale::checkpoint: {
        const float up = tensors.up.act_dequant_mul;
        if (tensors.gate.codes == nullptr) return given_scale(up).centre;
        return given_scale(std::max(tensors.gate.act_dequant_mul, up)).centre;
      }
      case ActScale::warmup:
        return given_scale(scaling.frozen[group_of(slot) * problem_.part_starts.size()].x).centre;
      case ActScale::dynamic:
        return scale_of(group_amax_[group_of(slot)]).centre;
      case ActScale::row:
        return scale_of(token_amax_[slot.token]).centre;
    }
    return 0;
  }

  // The global scales of one slot's row of a, part by part.
  [[nodiscard]] std::vector<GlobalScale> act_scales(const Expert& tensors, const Batch& batch,
                                                    std::uint64_t i) const {
    const ActScaling& scaling = problem_.act_scaling;
    const std::size_t parts = problem_.part_starts.size();
    std::vector<GlobalScale> scales;
    for (std::size_t part = 0; part < parts; ++part) {
      const std::uint64_t rank = group_of(batch.slots[i]) * parts + part;
      scales.push_back(scaling.policy == ActScale::checkpoint
                           ? given_scale(tensors.down.act_dequant_mul)
                       : scaling.policy == ActScale::warmup  ? given_scale(scaling.frozen[rank].act)
                       : scaling.policy == ActScale::dynamic ? scale_of(act_amax_[rank])
                                                             : scale_of(act_amax(batch, i, part)));
    }
    return scales;
  }

  [[nodiscard]] Batch gather(const Expert& tensors, std::span<const Slot> slots) const {
    Batch batch{.slots = slots};
    const std::uint64_t hidden = problem_.hidden;
    batch.x_unit.resize(slots.size(), 1);
    batch.act_unit.resize(slots.size(), 1);
    if (nvfp4_ || int8_) batch.xq.resize(slots.size() * hidden);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot& slot = slots[i];
      if (nvfp4_) {
        const float scale = x_scale(tensors, slot);
        quantise_nvfp4(x_of(slot.token), scale, batch.xq.data() + i * hidden);
        batch.x_unit[i] = scale;
      } else if (int8_) {
        quantise_int8(problem_.act_format, x_of(slot.token), batch.xq.data() + i * hidden);
      } else {
        const float* row = xq_.data() + slot.token * hidden;
        batch.xq.insert(batch.xq.end(), row, row + hidden);
      }
      if (!x_changed_) continue;
      const float* plain = problem_.x + slot.token * hidden;
      batch.x.insert(batch.x.end(), plain, plain + hidden);
    }
    const std::uint64_t size = slots.size() * problem_.inter;
    for (auto* array : {&batch.a, &batch.radius, &batch.aq, &batch.least, &batch.most})
      array->resize(size);
    if (x_changed_) batch.plain.resize(size);
    return batch;
  }

  // Calls body(row) for the rows of a matrix, several on each thread.
  template <class Body>
  static void for_rows(std::uint64_t rows, const Body& body) {
    parallel_for(divide_up(rows, kRowsPerTask), [&](std::uint64_t task) {
      const std::uint64_t end = std::min(rows, (task + 1) * kRowsPerTask);
      body(task * kRowsPerTask, end);
    });
  }

  // One row of gate or up against one row of x; nothing without a gate. A bias costs one rounding.
  [[nodiscard]] Interval project(const Matrix& matrix, std::uint64_t row,
                                 const std::vector<double>& weights, const double* xq, double unit,
                                 double flushed) const {
    if (matrix.codes == nullptr) return {};
    const Product product = ref::product(weights.data(), xq, problem_.hidden);
    const double centre = matrix.dequant_mul * product.sum + bias_of(matrix, row);
    return {.centre = centre,
            .radius = accumulation_error(gate_up_roundings_, product.magnitude, matrix.dequant_mul,
                                         unit) +
                      flushed * std::abs(matrix.dequant_mul) + bias_error(matrix, centre)};
  }

  // What an engine that takes numbers below 2^-126 for 0 loses of a row's sum before its global
  // scale: that much of every activation, and in each group of 32 or 16 of the at most 32 sums on
  // the way, whose unit is the scale of a group in which some code is at least 1/2.
  [[nodiscard]] double flushed(const std::vector<double>& weights) const {
    if (!problem_.flushes_subnormals) return 0;
    double magnitude = 0;
    for (const double weight : weights) magnitude += std::abs(weight);
    return (1 + 2 * 32) * 0x1p-126 * magnitude;
  }

  // The same as project() in double, of an x that was not quantised.
  [[nodiscard]] double project_exactly(const Matrix& matrix, std::uint64_t row,
                                       const std::vector<double>& weights, const double* x) const {
    if (matrix.codes == nullptr) return 0;
    return matrix.dequant_mul * product_sum(weights.data(), x, problem_.hidden) +
           bias_of(matrix, row);
  }

  [[nodiscard]] bool is_clamped(double gate, double up) const {
    return has_limit(problem_.activation) &&
           (gate > function_.limit || std::abs(up) > function_.limit);
  }

  void gate_up(const Expert& expert, Batch& batch) {
    const std::uint64_t hidden = problem_.hidden;
    for_rows(problem_.inter, [&](std::uint64_t first, std::uint64_t end) {
      std::vector<double> gate(hidden);
      std::vector<double> up(hidden);
      std::uint64_t clamped = 0;
      for (std::uint64_t row = first; row < end; ++row) {
        if (expert.gate.codes != nullptr)
          decode_row(expert.gate, problem_.format, row, hidden, gate.data());
        decode_row(expert.up, problem_.format, row, hidden, up.data());
        const double gate_flushed = flushed(gate);
        const double up_flushed = flushed(up);
        for (std::size_t i = 0; i < batch.slots.size(); ++i) {
          const double* xq = batch.xq.data() + i * hidden;
          const Interval g = project(expert.gate, row, gate, xq, batch.x_unit[i], gate_flushed);
          const Interval u = project(expert.up, row, up, xq, batch.x_unit[i], up_flushed);
          clamped += is_clamped(g.centre, u.centre) ? 1 : 0;
          const Interval a = activate(function_, g, u);
          const std::uint64_t at = i * problem_.inter + row;
          batch.a[at] = a.centre;
          batch.radius[at] = a.radius;
          if (!x_changed_) continue;
          const double* x = batch.x.data() + i * hidden;
          batch.plain[at] = activate(function_, project_exactly(expert.gate, row, gate, x),
                                     project_exactly(expert.up, row, up, x));
        }
      }
      std::atomic_ref(result_.clamped).fetch_add(clamped, std::memory_order_relaxed);
    });
  }

  void requantise(const Expert& tensors, Batch& batch) {
    const std::uint64_t inter = problem_.inter;
    parallel_for(batch.slots.size(), [&](std::uint64_t i) {
      const auto row = [&](auto& array) { return std::span(array).subspan(i * inter, inter); };
      const RowToQuantise from{
          .values = row(batch.a), .radii = row(batch.radius), .part_starts = problem_.part_starts};
      const QuantisedRow to{
          .quantised = row(batch.aq), .least = row(batch.least), .most = row(batch.most)};
      if (!nvfp4_) {
        quantise_row(problem_.act_format, from, to);
        return;
      }
      const std::vector<GlobalScale> scales = act_scales(tensors, batch, i);
      quantise_row(from, scales, to);
      batch.act_unit[i] = 0;
      for (const GlobalScale& scale : scales) {
        for (std::uint32_t r = 0; r < scale.count; ++r)
          batch.act_unit[i] = std::max<double>(batch.act_unit[i], scale.ranges[r].most);
      }
    });
    if (problem_.act == nullptr) return;
    for (std::size_t i = 0; i < batch.slots.size(); ++i) take_act(batch, i);
  }

  // The engine's own values instead of the reference's, after holding them against their intervals,
  // whose ends are rounded to fp32 as they are.
  void take_act(Batch& batch, std::size_t i) {
    const std::uint64_t inter = problem_.inter;
    const Slot& slot = batch.slots[i];
    const float* got = problem_.act + slot.number * inter;
    for (std::uint64_t column = 0; column < inter; ++column) {
      const std::uint64_t at = i * inter + column;
      const double value = got[column];
      if (!(value >= static_cast<float>(batch.least[at]) &&
            value <= static_cast<float>(batch.most[at]))) {
        note({.slot = slot.number,
              .column = column,
              .least = batch.least[at],
              .most = batch.most[at],
              .got = value});
      }
      batch.aq[at] = batch.least[at] = batch.most[at] = value;
    }
  }

  void note(ActDeviation found) {
    const auto distance = [](const ActDeviation& deviation) {
      const double far = std::max(deviation.least - deviation.got, deviation.got - deviation.most);
      return far >= 0 ? far : std::numeric_limits<double>::infinity();
    };
    found.outside = result_.act.outside + 1;
    if (found.outside == 1 || distance(found) > distance(result_.act)) {
      result_.act = found;
    } else {
      result_.act.outside = found.outside;
    }
  }

  // Every output column belongs to one thread, which adds the slots in their order.
  void down(const Matrix& matrix, const Batch& batch) {
    const std::uint64_t inter = problem_.inter;
    const double mul = matrix.dequant_mul;
    const std::vector<double>& plain = x_changed_ ? batch.plain : batch.a;
    std::vector<double> spread(batch.most.size());
    std::ranges::transform(batch.most, batch.least, spread.begin(), std::minus());
    for_rows(problem_.hidden, [&](std::uint64_t first, std::uint64_t end) {
      std::vector<double> weights(inter);
      for (std::uint64_t row = first; row < end; ++row) {
        decode_row(matrix, problem_.format, row, inter, weights.data());
        const double bias = bias_of(matrix, row);
        const double lost = flushed(weights) * std::abs(mul);
        for (std::size_t i = 0; i < batch.slots.size(); ++i) {
          const std::uint64_t at = i * inter;
          const Product output = product(weights.data(), batch.aq.data() + at, inter);
          const double shifted = product_magnitude(weights.data(), spread.data() + at, inter);
          const double exact = product_sum(weights.data(), plain.data() + at, inter);
          const double sum = mul * output.sum + bias;
          const double error =
              accumulation_error(down_roundings_, output.magnitude, mul, batch.act_unit[i]) +
              std::abs(mul) * shifted + lost + bias_error(matrix, sum);
          add(batch.slots[i], row,
              {.sum = sum, .magnitude = std::abs(mul) * output.magnitude + std::abs(bias)}, error,
              mul * exact + bias);
        }
      }
    });
  }

  // One slot's share of one output. `error` is that of an engine's output before the weight.
  void add(const Slot& slot, std::uint64_t column, Product output, double error, double exact) {
    const std::uint64_t at = slot.token * problem_.hidden + column;
    const double weight = std::abs(slot.weight);
    result_.y[at] += slot.weight * output.sum;
    result_.bound[at] +=
        weight * error +
        static_cast<double>(problem_.top_k) * kFp32Epsilon * weight * std::abs(output.sum) +
        kFp32Subnormal;
    result_.magnitude[at] += weight * std::abs(output.magnitude);
    result_.unquantised[at] += slot.weight * exact;
  }

  // One more than terms, for the global scale.
  static std::uint64_t roundings(std::uint64_t stated, std::uint64_t terms) {
    return stated != 0 ? stated : terms + 1;
  }

  const Problem& problem_;
  ActivationFunction function_;
  bool nvfp4_;
  bool int8_;
  std::uint64_t gate_up_roundings_;
  std::uint64_t down_roundings_;
  std::vector<float> xq_;   // [tokens, hidden]
  bool x_changed_ = false;  // by quantising
  std::vector<std::vector<Slot>> slots_of_expert_;
  std::vector<AmaxRange> token_amax_;  // [tokens]
  std::vector<AmaxRange> group_amax_;  // [groups] of x
  std::vector<AmaxRange> act_amax_;    // [groups, parts]
  Result result_;
};

}  // namespace

bool supports(Activation /*activation*/) { return true; }

bool supports(ActFormat /*act_format*/) { return true; }

Result run(const Problem& problem) { return LayerRun(problem).run(); }

}  // namespace moxie::ref
