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
  std::vector<double> xq;      // [slots, hidden] quantised
  std::vector<double> x;       // [slots, hidden]; empty where nothing changed by quantising
  std::vector<double> a;       // [slots, inter] after the activation function
  std::vector<double> radius;  // [slots, inter] of an engine's a around it
  std::vector<double> aq;      // [slots, inter] a, quantised
  std::vector<double> least;   // [slots, inter] ends of an engine's aq
  std::vector<double> most;    // [slots, inter]
  std::vector<double> plain;   // [slots, inter] a without quantised x; empty as x
};

class LayerRun {
 public:
  explicit LayerRun(const Problem& problem)
      : problem_(problem),
        function_{.kind = problem.activation, .limit = problem.activation_limit},
        gate_up_roundings_(roundings(problem.gate_up_roundings, problem.hidden)),
        down_roundings_(roundings(problem.down_roundings, problem.inter)) {
    check();
    const std::uint64_t outputs = problem.tokens * problem.hidden;
    for (auto* array : {&result_.y, &result_.bound, &result_.magnitude, &result_.unquantised})
      array->assign(outputs, 0);
  }

  Result run() {
    quantise_x();
    std::vector<std::vector<Slot>> slots_of_expert = slots();
    for (std::uint64_t expert = 0; expert < problem_.experts; ++expert) {
      const std::span<const Slot> slots = slots_of_expert[expert];
      if (slots.empty()) continue;
      const Expert tensors = problem_.expert(expert);
      for (std::size_t first = 0; first < slots.size(); first += kSlotsAtOnce) {
        Batch batch =
            gather(slots.subspan(first, std::min<std::size_t>(kSlotsAtOnce, slots.size() - first)));
        gate_up(tensors, batch);
        requantise(batch);
        down(tensors.down, batch);
      }
    }
    return std::move(result_);
  }

 private:
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
  }

  void quantise_x() {
    const std::uint64_t hidden = problem_.hidden;
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

  [[nodiscard]] Batch gather(std::span<const Slot> slots) const {
    Batch batch{.slots = slots};
    const std::uint64_t hidden = problem_.hidden;
    for (const Slot& slot : slots) {
      const float* row = xq_.data() + slot.token * hidden;
      batch.xq.insert(batch.xq.end(), row, row + hidden);
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
                                 const std::vector<double>& weights, const double* xq) const {
    if (matrix.codes == nullptr) return {};
    const Product product = ref::product(weights.data(), xq, problem_.hidden);
    const double centre = matrix.dequant_mul * product.sum + bias_of(matrix, row);
    return {
        .centre = centre,
        .radius = accumulation_error(gate_up_roundings_, product.magnitude, matrix.dequant_mul) +
                  bias_error(matrix, centre)};
  }

  // The same in double, of an x that was not quantised.
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
        for (std::size_t i = 0; i < batch.slots.size(); ++i) {
          const double* xq = batch.xq.data() + i * hidden;
          const Interval g = project(expert.gate, row, gate, xq);
          const Interval u = project(expert.up, row, up, xq);
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

  void requantise(Batch& batch) {
    const std::uint64_t inter = problem_.inter;
    parallel_for(batch.slots.size(), [&](std::uint64_t i) {
      const auto row = [&](auto& array) { return std::span(array).subspan(i * inter, inter); };
      quantise_row(
          problem_.act_format,
          {.values = row(batch.a), .radii = row(batch.radius), .part_starts = problem_.part_starts},
          {.quantised = row(batch.aq), .least = row(batch.least), .most = row(batch.most)});
    });
    if (problem_.act == nullptr) return;
    for (std::size_t i = 0; i < batch.slots.size(); ++i) take_act(batch, i);
  }

  // The engine's own values instead of the reference's, after holding them against their intervals.
  void take_act(Batch& batch, std::size_t i) {
    const std::uint64_t inter = problem_.inter;
    const Slot& slot = batch.slots[i];
    const float* got = problem_.act + slot.number * inter;
    for (std::uint64_t column = 0; column < inter; ++column) {
      const std::uint64_t at = i * inter + column;
      const double value = got[column];
      if (!(value >= batch.least[at] && value <= batch.most[at])) {
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
        for (std::size_t i = 0; i < batch.slots.size(); ++i) {
          const std::uint64_t at = i * inter;
          const Product output = product(weights.data(), batch.aq.data() + at, inter);
          const double shifted = product_magnitude(weights.data(), spread.data() + at, inter);
          const double exact = product_sum(weights.data(), plain.data() + at, inter);
          const double sum = mul * output.sum + bias;
          const double error = accumulation_error(down_roundings_, output.magnitude, mul) +
                               std::abs(mul) * shifted + bias_error(matrix, sum);
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
  std::uint64_t gate_up_roundings_;
  std::uint64_t down_roundings_;
  std::vector<float> xq_;   // [tokens, hidden]
  bool x_changed_ = false;  // by quantising
  Result result_;
};

}  // namespace

bool supports(Activation /*activation*/) { return true; }

bool supports(ActFormat act_format) {
  return act_format == ActFormat::bf16 || act_format == ActFormat::fp8 ||
         act_format == ActFormat::mxfp8;
}

Result run(const Problem& problem) { return LayerRun(problem).run(); }

}  // namespace moxie::ref
