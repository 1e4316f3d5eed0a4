// SPDX-License-Identifier: Apache-2.0
// Padding is inert when each product that it enters is exactly zero whatever it is multiplied with:
// every factor of padding is probed with values that are not zero.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/errors.hpp"
#include "kernels/ref/attention_values.hpp"
#include "kernels/ref/rmsnorm.hpp"
#include "moxie/verify.hpp"
#include "pack/around_values.hpp"
#include "pack/packed_set.hpp"
#include "verify/padding_probe.hpp"
#include "verify/v4_weights.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxFindings = 20;
constexpr double kUnit = 0x1p-53;  // of double precision
constexpr const char* kHead = "head.weight";
constexpr const char* kEmbedding = "embed.weight";
constexpr double kQueryEps = 1e-6;

[[noreturn]] void refuse(const fs::path& file, std::string message, std::string expected) {
  throw Error(ErrorCode::unsupported, {.code = "MOXIE-V011",
                                       .message = std::move(message),
                                       .where = {.file = file.string()},
                                       .expected = std::move(expected)});
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Streams of the values that are drawn, by what they are for.
enum Drawn : std::uint64_t { of_rank = 1, of_queries = 1000, of_shared = 2000, of_head = 3000 };

constexpr std::uint64_t kKeys = 5;  // that a token attends to

// Weights that the numbers are computed with.
constexpr std::string_view kJudged[] = {"attn.wq_b.weight",
                                        "attn.attn_sink",
                                        "attn.wo_a.weight",
                                        "attn.wo_b.weight",
                                        "ffn.shared_experts.w1.weight",
                                        "ffn.shared_experts.w3.weight",
                                        "ffn.shared_experts.w2.weight",
                                        kHead,
                                        kEmbedding};
constexpr std::uint64_t kStepsOfRank = 6;  // matrices whose padding is probed

// Values that are no numbers in both are the source's, not the set's.
bool is_same(double a, double b) { return a == b || (!std::isfinite(a) && !std::isfinite(b)); }

void keep_finite(std::vector<double>& values) {
  std::ranges::replace_if(values, [](double value) { return !std::isfinite(value); }, 0.0);
}

void mask_non_numbers(std::vector<double>& logits) {
  std::ranges::replace_if(
      logits, [](double value) { return !std::isfinite(value); },
      -std::numeric_limits<double>::infinity());
}

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
    std::vector<V4Weights> all;
    for (unsigned rank = 0; rank < set_.plan.ranks.size(); ++rank) all.push_back(weights_of(rank));
    const bool vocabulary = find_vocabulary(whole, all);
    steps_ = std::size(kJudged) + all.size() * kStepsOfRank +
             2 * options_.tokens * (1 + all.size()) + (vocabulary ? 1 + all.size() : 0);
    find_non_numbers(vocabulary);
    for (unsigned rank = 0; rank < all.size(); ++rank) check_rank(all[rank], rank);
    count_padding();
    for (std::uint64_t token = 0; token < options_.tokens; ++token) {
      add_up_output_path(whole, all, token);
      add_up_shared_expert(whole, all, token);
    }
    if (vocabulary) check_vocabulary(whole, all);
    check_.passed = std::ranges::none_of(check_.findings, [](const Finding& finding) {
      return finding.severity == Severity::error;
    });
    return std::move(check_);
  }

 private:
  [[nodiscard]] const V4Config& config() const { return *source_.config.v4; }
  [[nodiscard]] std::uint64_t layer() const { return static_cast<std::uint64_t>(options_.layer); }
  [[nodiscard]] double limit() const { return source_.config.activation_limit.value_or(10); }
  [[nodiscard]] const AxisPlan& axis(Axis which) const { return *set_.plan.find(which); }
  // A rank's part of an axis, and how many elements of it are real.
  [[nodiscard]] UnitRange<Elems> part(Axis which, unsigned rank) const {
    return slice_axis(axis(which), rank % set_.plan.tp);
  }
  [[nodiscard]] std::uint64_t real(Axis which, unsigned rank) const {
    return part(which, rank).count.value;
  }
  [[nodiscard]] std::uint64_t local(Axis which) const { return axis(which).local.value; }

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

  [[nodiscard]] std::string in_layer(std::string_view name) const {
    return layer_prefix(config(), layer()) + std::string(name);
  }

  void advance() { report_progress(options_.progress, ++done_, steps_); }

  // Sets of single layers do not hold it.
  bool find_vocabulary(const V4Weights& whole, const std::vector<V4Weights>& ranks) {
    const bool held = std::ranges::any_of(ranks, [](const auto& rank) { return rank.has(kHead); });
    if (whole.has(kHead) && held) return true;
    check_.findings.push_back(
        {.code = "MOXIE-V008",
         .severity = Severity::note,
         .message = "the vocabulary was not checked: the " + std::string(held ? "source" : "set") +
                    " does not hold head and embedding",
         .where = {.file = (held ? source_.checkpoint.path() : set_.folder).string()}});
    return false;
  }

  // Numbers that the source does not have are nobody's fault here: they are named and left out.
  void find_non_numbers(bool vocabulary) {
    for (const std::string_view name : kJudged) {
      const bool of_layer = name != kHead && name != kEmbedding;
      const TensorInfo* tensor =
          source_.checkpoint.find(of_layer ? in_layer(name) : std::string(name));
      if (tensor != nullptr && (of_layer || vocabulary)) {
        Place where{.file = source_.checkpoint.files()[tensor->file].path.string(),
                    .tensor = tensor->name};
        if (of_layer) where.layer = options_.layer;
        auto found = non_number_of(*tensor, std::move(where), source_.checkpoint.bytes(*tensor));
        if (found) {
          found->severity = Severity::warning;
          found->message =
              "the source holds a value that is no finite number: what it enters can "
              "not be judged";
          check_.findings.push_back(*std::move(found));
        }
      }
      advance();
    }
  }

  // Without a rank: of the sum over all.
  void find(std::string code, std::string message, const std::string& tensor,
            std::optional<unsigned> rank, std::string expected, double got) {
    if (++faults_ > kMaxFindings) return;
    check_.findings.push_back(
        {.code = std::move(code),
         .message = std::move(message),
         .where = {.file = set_.folder.string(), .tensor = tensor, .layer = {}, .rank = rank},
         .expected = std::move(expected),
         .got = text_of(got)});
    const bool of_layer = tensor != kHead && tensor != kEmbedding;
    if (of_layer) check_.findings.back().where.layer = options_.layer;
  }

  void take(const PaddingProbe& probe, unsigned rank, const std::string& weight) {
    check_.zero_products += probe.zero_products;
    for (const PaddingFault& fault : probe.faults) {
      find("MOXIE-V009", "padding is not inert: " + fault.what,
           weight + (fault.in_scales ? ".scale" : ".weight"), rank, fault.expected, fault.got);
    }
  }

  void count_padding() {
    const auto padding = [&](Axis which) {
      return axis(which).virtual_global.value - axis(which).original.value;
    };
    check_.virtual_heads = padding(Axis::heads);
    check_.virtual_groups = padding(Axis::output_groups);
    check_.virtual_columns = padding(Axis::shared_inter);
  }

  void check_rank(const V4Weights& weights, unsigned rank) {
    const V4Config& v4 = config();
    ProbeValues values(options_.seed, Drawn::of_rank + rank);
    const std::uint64_t heads = real(Axis::heads, rank);
    const std::uint64_t group_rows = real(Axis::output_groups, rank) * v4.o_rank;
    const std::uint64_t columns = real(Axis::shared_inter, rank);

    const auto probe_rows = [&](const ref::Fp8Matrix& matrix, std::uint64_t first,
                                std::string_view name) {
      take(probe_padding(matrix, first, matrix.cols, values), rank, in_layer(name));
      advance();
    };
    const auto probe_columns = [&](const ref::Fp8Matrix& matrix, std::uint64_t first,
                                   std::string_view name) {
      take(probe_padding(matrix, matrix.rows, first, values), rank, in_layer(name));
      advance();
    };
    probe_rows(weights.wq_b(), heads * v4.head_dim, "attn.wq_b");
    const std::vector<float> sinks = weights.sinks();
    for (std::uint64_t head = heads; head < sinks.size(); ++head) {
      if (sinks[head] == -std::numeric_limits<float>::infinity()) continue;
      find("MOXIE-V009", "the sink of head " + std::to_string(head) + " takes part in the softmax",
           in_layer("attn.attn_sink"), rank, "-inf", static_cast<double>(sinks[head]));
    }
    const ref::OutputPath path = weights.output_path(frequencies_);
    probe_rows(path.wo_a, group_rows, "attn.wo_a");
    probe_columns(path.wo_b, group_rows, "attn.wo_b");
    const ref::SharedExpert shared = weights.shared_expert(limit());
    probe_rows(shared.gate, columns, "ffn.shared_experts.w1");
    probe_rows(shared.up, columns, "ffn.shared_experts.w3");
    probe_columns(shared.down, columns, "ffn.shared_experts.w2");
  }

  void expect_zeros(std::span<const double> part, unsigned rank, std::string_view what,
                    std::string_view weight) {
    for (const double value : part) {
      if (value == 0) {
        ++check_.zero_products;
        continue;
      }
      return find("MOXIE-V009", std::string(what) + " adds something to the sum over ranks",
                  in_layer(weight), rank, "exactly 0", value);
    }
  }

  // `sum` over ranks against the whole; `terms` additions may be made in another order.
  void expect_same(std::span<const double> whole, std::span<const double> sum,
                   std::span<const double> magnitude, std::uint64_t terms, std::string_view what) {
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const double bound = 2 * static_cast<double>(terms) * kUnit * magnitude[i];
      const double error = std::abs(sum[i] - whole[i]);
      if (!std::isfinite(whole[i]) && !std::isfinite(sum[i])) continue;  // the source's fault
      if (error <= bound) {
        if (bound > 0)
          check_.max_err_over_bound = std::max(check_.max_err_over_bound, error / bound);
        continue;
      }
      check_.max_err_over_bound = std::numeric_limits<double>::infinity();
      return find(
          "MOXIE-V010",
          std::string(what) + " does not add up to the source's at column " + std::to_string(i), "",
          std::nullopt, text_of(whole[i]), sum[i]);
    }
  }

  // Groups of experts hold the same beside them, each on ranks of its own that stand together.
  [[nodiscard]] bool begins_group(unsigned rank) const { return rank % set_.plan.tp == 0; }
  [[nodiscard]] bool ends_group(unsigned rank) const { return begins_group(rank + 1); }
  [[nodiscard]] std::string of_group(unsigned last) const {
    if (set_.plan.ep == 1) return " of all ranks";
    return " of ranks " + std::to_string(last + 1 - set_.plan.tp) + " to " + std::to_string(last);
  }

  // [heads, head_dim] of wq_b's heads for one token; sinks of further heads are left out.
  std::vector<double> attend(const V4Weights& weights, std::span<const double> query,
                             std::span<const double> kv) const {
    const std::uint64_t width = config().head_dim;
    const ref::Fp8Matrix wq_b = weights.wq_b();
    std::vector<double> q;
    for (std::uint64_t head = 0; head < wq_b.rows / width; ++head) {
      std::vector<double> rows;
      for (std::uint64_t row = head * width; row < (head + 1) * width; ++row)
        rows.push_back(ref::row_product(wq_b, row, query).sum);
      std::ranges::copy(ref::rmsnorm(rows, {}, kQueryEps), std::back_inserter(q));
    }
    const std::vector<float> stored = weights.sinks();
    const std::vector<double> sinks(
        stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(wq_b.rows / width));
    const double score_mul = 1 / std::sqrt(static_cast<double>(width));
    return ref::attention_values(q, sinks, {.head_dim = width, .kv = kv, .score_mul = score_mul});
  }

  // Queries of virtual heads are zero, and what they attend to is then an average, not zero.
  void add_up_output_path(const V4Weights& whole, std::span<const V4Weights> ranks,
                          std::uint64_t token) {
    const V4Config& v4 = config();
    ProbeValues values(options_.seed, Drawn::of_queries + token);
    const std::vector<double> query = values(v4.q_rank);
    const std::vector<double> kv = values(kKeys * v4.head_dim);
    std::vector<double> o = attend(whole, query, kv);
    advance();
    const std::uint64_t position = 37 + 1001 * token;
    std::vector<double> finite = o;
    keep_finite(finite);
    const auto expected = ref::output_path(whole.output_path(frequencies_), finite, position);
    std::vector<double> sum(v4.hidden);
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
      if (begins_group(rank)) std::ranges::fill(sum, 0.0);
      std::vector<double> part_o = attend(ranks[rank], query, kv);
      const std::uint64_t first = part(Axis::heads, rank).src.value * v4.head_dim;
      for (std::uint64_t i = 0; i < real(Axis::heads, rank) * v4.head_dim; ++i) {
        if (is_same(part_o[i], o[first + i])) continue;
        find("MOXIE-V010", "head " + std::to_string(i / v4.head_dim) + " has other values",
             in_layer("attn.wq_b.weight"), rank, text_of(o[first + i]), part_o[i]);
        break;
      }
      keep_finite(part_o);
      const auto share = ref::output_path(ranks[rank].output_path(frequencies_), part_o, position);
      expect_zeros(std::span<const double>(share.contributions)
                       .subspan(real(Axis::output_groups, rank) * v4.hidden),
                   rank, "a group without heads", "attn.wo_b.weight");
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share.y[i];
      advance();
      if (!ends_group(rank)) continue;
      expect_same(expected.y, sum, expected.magnitude, v4.output_groups * v4.o_rank + set_.plan.tp,
                  "the output path" + of_group(rank));
    }
  }

  void add_up_shared_expert(const V4Weights& whole, std::span<const V4Weights> ranks,
                            std::uint64_t token) {
    const V4Config& v4 = config();
    ProbeValues values(options_.seed, Drawn::of_shared + token);
    const std::vector<double> x = values(v4.hidden);
    const auto expected = ref::shared_expert(whole.shared_expert(limit()), x);
    advance();
    std::vector<double> sum(v4.hidden);
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
      if (begins_group(rank)) std::ranges::fill(sum, 0.0);
      const auto share = ref::shared_expert(ranks[rank].shared_expert(limit()), x);
      if (real(Axis::shared_inter, rank) == 0)
        expect_zeros(share.y, rank, "a shared expert without columns",
                     "ffn.shared_experts.w2.weight");
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share.y[i];
      advance();
      if (!ends_group(rank)) continue;
      expect_same(expected.y, sum, expected.magnitude, v4.shared_inter + set_.plan.tp,
                  "the shared expert" + of_group(rank));
    }
  }

  // Rows of the head are products of their own: the same bits, and the same token wins.
  void check_vocabulary(const V4Weights& whole, std::span<const V4Weights> ranks) {
    const V4Config& v4 = config();
    ProbeValues values(options_.seed, Drawn::of_head);
    const std::vector<double> x = values(v4.hidden);
    const std::vector<std::uint16_t> head = whole.bf16_rows(kHead);
    const ref::ShardLogits expected =
        ref::logits({.first = 0, .real_rows = v4.vocab, .hidden = v4.hidden, .rows = head}, x);
    check_.virtual_rows = axis(Axis::vocab).virtual_global.value - v4.vocab;
    advance();
    ref::ShardLogits masked = expected;
    mask_non_numbers(masked.logits);
    const auto largest = ref::argmax({&masked, 1});
    std::vector<ref::ShardLogits> shards;
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<std::uint16_t> rows = ranks[rank].bf16_rows(kHead);
      const std::uint64_t count = real(Axis::vocab, rank);
      take(probe_padding(rows, count, x), rank, "head");
      take(probe_padding(ranks[rank].bf16_rows(kEmbedding), count, x), rank, "embed");
      advance();
      if (begins_group(rank)) shards.clear();
      shards.push_back(ref::logits({.first = (rank % set_.plan.tp) * local(Axis::vocab),
                                    .real_rows = count,
                                    .hidden = v4.hidden,
                                    .rows = rows},
                                   x));
      std::vector<double>& logits = shards.back().logits;
      const std::uint64_t first = part(Axis::vocab, rank).src.value;
      for (std::uint64_t row = 0; row < count; ++row) {
        if (is_same(logits[row], expected.logits[first + row])) continue;
        find("MOXIE-V010", "the logit of token " + std::to_string(first + row) + " differs", kHead,
             rank, text_of(expected.logits[first + row]), logits[row]);
      }
      mask_non_numbers(logits);
      if (!ends_group(rank)) continue;
      const auto chosen = ref::argmax(shards);
      if (chosen && chosen == largest) continue;
      find("MOXIE-V010", "another token has the largest logit over the shards" + of_group(rank),
           kHead, std::nullopt, "the source's", chosen ? static_cast<double>(*chosen) : HUGE_VAL);
    }
  }

  PackedSet set_;
  const MoeModel& source_;
  PaddingOptions options_;
  std::vector<double> frequencies_;
  PaddingCheck check_;
  std::size_t faults_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace

PaddingCheck check_padding(const fs::path& dir, const MoeModel& source,
                           const PaddingOptions& options) {
  return PaddingChecker(dir, source, options).check();
}

}  // namespace moxie
