// SPDX-License-Identifier: Apache-2.0
// Padding is inert when each product that it enters is exactly zero whatever it is multiplied with:
// every factor of padding is probed with values that are not zero.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/random.hpp"
#include "formats/bf16.hpp"
#include "moxie/verify.hpp"
#include "pack/packed_set.hpp"
#include "verify/v4_weights.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxFindings = 20;
constexpr double kUnit = 0x1p-53;  // of double precision

[[noreturn]] void refuse(const fs::path& file, std::string message, std::string expected) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-V011",
                                       .message = std::move(message),
                                       .where = {.file = file.string()},
                                       .expected = std::move(expected)});
}

// Values in [1, 2) of either sign: none is zero, and sums of few of them do not cancel.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t path) : stream_(seed, {path}) {}

  std::vector<double> operator()(std::uint64_t count) {
    std::vector<double> values(count);
    for (double& value : values) {
      const std::uint64_t word = stream_.word(next_++);
      const double magnitude = 1.0 + static_cast<double>(word >> 12) * 0x1p-52;
      value = (word & 1) != 0 ? magnitude : -magnitude;
    }
    return values;
  }

 private:
  Stream stream_;
  std::uint64_t next_ = 0;
};

class PaddingChecker {
 public:
  PaddingChecker(const fs::path& dir, const MoeModel& source, const PaddingOptions& options)
      : set_(open_packed_set(dir)), source_(source), options_(options) {
    if (!source.config.v4 || !set_.plan.widths)
      refuse(dir, "the numeric check of padding is for DeepSeek-V4 models", "all sizes in config");
    const V4Config& v4 = config();
    if (options.layer < 0 || layer() >= v4.layers + v4.drafts)
      refuse(dir, "there is no such layer", std::to_string(v4.layers + v4.drafts) + " layers");
    frequencies_ = rotary_of(source.checkpoint.config(), v4, layer());
    check_.layer = options.layer;
    check_.tokens = options.tokens;
  }

  PaddingCheck check() {
    const V4Config& v4 = config();
    const V4Weights whole(source_.checkpoint, v4,
                          {.heads = v4.heads,
                           .sinks = v4.heads,
                           .output_groups = v4.output_groups,
                           .shared_inter = v4.shared_inter,
                           .vocab = v4.vocab},
                          layer());
    std::vector<V4Weights> ranks;
    for (unsigned rank = 0; rank < set_.plan.tp; ++rank) ranks.push_back(weights_of(rank));
    for (rank_ = 0; rank_ < set_.plan.tp; ++rank_) check_rank(ranks[rank_]);
    for (std::uint64_t token = 0; token < options_.tokens; ++token) {
      add_up_output_path(whole, ranks, token);
      add_up_shared_expert(whole, ranks, token);
    }
    if (whole.has("head.weight")) check_vocabulary(whole, ranks);
    check_.passed = check_.findings.empty();
    return std::move(check_);
  }

 private:
  [[nodiscard]] const V4Config& config() const { return *source_.config.v4; }
  [[nodiscard]] std::uint64_t layer() const { return static_cast<std::uint64_t>(options_.layer); }
  [[nodiscard]] double limit() const { return source_.config.activation_limit.value_or(10); }
  [[nodiscard]] const AxisPlan& axis(Axis which) const { return *set_.plan.find(which); }
  // Real and local elements of the current rank.
  [[nodiscard]] std::uint64_t real(Axis which, unsigned rank) const {
    return slice_axis(axis(which), rank).count.value;
  }
  [[nodiscard]] std::uint64_t local(Axis which) const { return axis(which).local.value; }

  // Of the tensor-parallel ranks of the first expert-parallel group; the others hold the same.
  V4Weights weights_of(unsigned rank) const {
    const auto packed = std::ranges::find(set_.ranks, rank, &PackedRank::rank);
    if (packed == set_.ranks.end() || !packed->checkpoint)
      refuse(set_.folder, "a rank can not be read", "rank " + std::to_string(rank));
    return {*packed->checkpoint,
            config(),
            {.heads = local(Axis::heads),
             .sinks = axis(Axis::heads).kernel.value,
             .output_groups = local(Axis::output_groups),
             .shared_inter = local(Axis::shared_inter),
             .vocab = local(Axis::vocab)},
            layer()};
  }

  void find(std::string code, std::string message, const std::string& tensor, std::string expected,
            double got) {
    if (check_.findings.size() >= kMaxFindings) return;
    check_.findings.push_back({.code = std::move(code),
                               .message = std::move(message),
                               .where = {.file = set_.folder.string(),
                                         .tensor = tensor,
                                         .layer = options_.layer,
                                         .rank = rank_},
                               .expected = std::move(expected),
                               .got = std::to_string(got)});
  }

  // NaN is no zero.
  void expect_zero(double value, const std::string& tensor, std::string_view what,
                   std::uint64_t index) {
    if (value == 0) {
      ++check_.zero_products;
      return;
    }
    find("MOXIE-V009",
         "padding is not inert: " + std::string(what) + " " + std::to_string(index) +
             " gives a product that is not zero",
         tensor, "exactly 0", value);
  }

  void expect_zero_rows(const ref::Fp8Matrix& matrix, std::uint64_t first,
                        const std::string& tensor, std::span<const double> x) {
    for (std::uint64_t row = first; row < matrix.rows; ++row)
      expect_zero(ref::row_product(matrix, row, x).sum, tensor, "row", row);
  }

  // Every row, with the columns from `first` on alone.
  void expect_zero_columns(const ref::Fp8Matrix& matrix, std::uint64_t first,
                           const std::string& tensor, Draw& draw) {
    if (first == matrix.cols) return;
    const std::vector<double> x = draw(matrix.cols - first);
    for (std::uint64_t row = 0; row < matrix.rows; ++row)
      expect_zero(ref::row_product(matrix, row, first, x, x).sum, tensor, "row", row);
  }

  void check_rank(const V4Weights& weights) {
    const V4Config& v4 = config();
    Draw draw(options_.seed, 1 + rank_);
    const std::uint64_t heads = real(Axis::heads, rank_);
    const std::uint64_t groups = real(Axis::output_groups, rank_);
    const std::uint64_t columns = real(Axis::shared_inter, rank_);
    check_.virtual_heads += local(Axis::heads) - heads;
    check_.virtual_groups += local(Axis::output_groups) - groups;
    check_.virtual_columns += local(Axis::shared_inter) - columns;
    check_.virtual_rows += local(Axis::vocab) - real(Axis::vocab, rank_);

    expect_zero_rows(weights.wq_b(), heads * v4.head_dim, "attn.wq_b", draw(v4.q_rank));
    const std::vector<float> sinks = weights.sinks();
    for (std::uint64_t head = heads; head < sinks.size(); ++head) {
      if (sinks[head] == -std::numeric_limits<float>::infinity()) continue;
      find("MOXIE-V009", "the sink of head " + std::to_string(head) + " takes part in the softmax",
           "attn.attn_sink", "-inf", static_cast<double>(sinks[head]));
    }
    const ref::OutputPath path = weights.output_path(frequencies_);
    expect_zero_rows(path.wo_a, groups * v4.o_rank, "attn.wo_a", draw(path.wo_a.cols));
    expect_zero_columns(path.wo_b, groups * v4.o_rank, "attn.wo_b", draw);
    const ref::SharedExpert shared = weights.shared_expert(limit());
    expect_zero_rows(shared.gate, columns, "ffn.shared_experts.w1", draw(v4.hidden));
    expect_zero_rows(shared.up, columns, "ffn.shared_experts.w3", draw(v4.hidden));
    expect_zero_columns(shared.down, columns, "ffn.shared_experts.w2", draw);
  }

  // `sum` over ranks against the whole; `terms` additions may be made in another order.
  void expect_same(std::span<const double> whole, std::span<const double> sum,
                   std::span<const double> magnitude, std::uint64_t terms, std::string_view what) {
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const double bound = 2 * static_cast<double>(terms) * kUnit * magnitude[i];
      const double error = std::abs(sum[i] - whole[i]);
      const double over = bound > 0 ? error / bound : error == 0 ? 0 : HUGE_VAL;
      check_.max_err_over_bound = std::max(check_.max_err_over_bound, over);
      if (error <= bound) continue;
      rank_ = 0;
      find("MOXIE-V010",
           std::string(what) + " of all ranks does not add up to the source's at column " +
               std::to_string(i),
           std::string(what), std::to_string(whole[i]), sum[i]);
      return;
    }
  }

  // Virtual heads hold what a softmax over equal scores gives: an average of values, not zeros.
  void add_up_output_path(const V4Weights& whole, std::span<const V4Weights> ranks,
                          std::uint64_t token) {
    const V4Config& v4 = config();
    Draw draw(options_.seed, 1000 + token);
    const std::uint64_t width = v4.head_dim;
    const std::vector<double> o = draw(axis(Axis::heads).virtual_global.value * width);
    const std::uint64_t position = 37 + 1001 * token;
    const auto expected = ref::output_path(whole.output_path(frequencies_),
                                           std::span(o).first(v4.heads * width), position);
    std::vector<double> sum(v4.hidden);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::uint64_t share = local(Axis::heads) * width;
      const auto part = ref::output_path(ranks[rank].output_path(frequencies_),
                                         std::span(o).subspan(rank * share, share), position);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.y[i];
    }
    expect_same(expected.y, sum, expected.magnitude, v4.output_groups * v4.o_rank + ranks.size(),
                "the output path");
  }

  void add_up_shared_expert(const V4Weights& whole, std::span<const V4Weights> ranks,
                            std::uint64_t token) {
    const V4Config& v4 = config();
    Draw draw(options_.seed, 2000 + token);
    const std::vector<double> x = draw(v4.hidden);
    const auto expected = ref::shared_expert(whole.shared_expert(limit()), x);
    std::vector<double> sum(v4.hidden);
    for (const V4Weights& rank : ranks) {
      const auto part = ref::shared_expert(rank.shared_expert(limit()), x);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.y[i];
    }
    expect_same(expected.y, sum, expected.magnitude, v4.shared_inter + ranks.size(),
                "the shared expert");
  }

  // Rows of the head are products of their own: the same bits, and the same token wins.
  void check_vocabulary(const V4Weights& whole, std::span<const V4Weights> ranks) {
    const V4Config& v4 = config();
    Draw draw(options_.seed, 3000);
    const std::vector<double> x = draw(v4.hidden);
    const std::vector<std::uint16_t> all = whole.bf16_rows("head.weight");
    const ref::ShardLogits expected =
        ref::logits({.first = 0, .real_rows = v4.vocab, .hidden = v4.hidden, .rows = all}, x);
    std::vector<ref::ShardLogits> shards;
    for (rank_ = 0; rank_ < ranks.size(); ++rank_) {
      const std::vector<std::uint16_t> rows = ranks[rank_].bf16_rows("head.weight");
      expect_zero_vocab_rows(rows, "head.weight", x);
      expect_zero_vocab_rows(ranks[rank_].bf16_rows("embed.weight"), "embed.weight", x);
      shards.push_back(ref::logits({.first = rank_ * local(Axis::vocab),
                                    .real_rows = real(Axis::vocab, rank_),
                                    .hidden = v4.hidden,
                                    .rows = rows},
                                   x));
      const std::vector<double>& logits = shards.back().logits;
      const std::uint64_t first = slice_axis(axis(Axis::vocab), rank_).src.value;
      for (std::uint64_t row = 0; row < real(Axis::vocab, rank_); ++row) {
        if (logits[row] == expected.logits[first + row]) continue;
        find("MOXIE-V010", "the logit of token " + std::to_string(first + row) + " differs",
             "head.weight", std::to_string(expected.logits[first + row]), logits[row]);
      }
    }
    if (ref::argmax(shards) == ref::argmax({&expected, 1})) return;
    rank_ = 0;
    find("MOXIE-V010", "another token has the largest logit over the shards", "head.weight",
         "the source's", 0);
  }

  void expect_zero_vocab_rows(std::span<const std::uint16_t> rows, const std::string& tensor,
                              std::span<const double> x) {
    const std::uint64_t hidden = config().hidden;
    for (std::uint64_t row = real(Axis::vocab, rank_); row < local(Axis::vocab); ++row) {
      double product = 0;
      for (std::uint64_t i = 0; i < hidden; ++i)
        product += static_cast<double>(decode_bf16(rows[row * hidden + i])) * x[i];
      expect_zero(product, tensor, "row", row);
    }
  }

  PackedSet set_;
  const MoeModel& source_;
  PaddingOptions options_;
  std::vector<double> frequencies_;
  PaddingCheck check_;
  unsigned rank_ = 0;
};

}  // namespace

PaddingCheck check_padding(const fs::path& dir, const MoeModel& source,
                           const PaddingOptions& options) {
  return PaddingChecker(dir, source, options).check();
}

}  // namespace moxie
