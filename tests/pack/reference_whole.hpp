// SPDX-License-Identifier: Apache-2.0
// A second packer of the tensors around the experts, straight from the definition: one stored entry
// at a time, by tensor name. It shares no code with the first: no axis, cut, range or copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/tensors.hpp"

namespace moxie::test {

class WholeReference {
 public:
  WholeReference(const Checkpoint& checkpoint, const V4Config& config, std::uint64_t tp)
      : checkpoint_(checkpoint), config_(config), tp_(tp) {
    const std::uint64_t group_heads = config.heads / config.output_groups;
    while (heads_ * tp < config.heads) heads_ += group_heads;
    groups_ = heads_ / group_heads;
    while (shared_ * tp < config.shared_inter) shared_ += config.tile;
    std::uint64_t vocab = 0;
    while (vocab < config.vocab || vocab % 64 != 0 || vocab % tp != 0) ++vocab;
    vocab_ = vocab / tp;
    for (const std::uint64_t backend : {128, 64, 32, 16}) {
      if (heads_ <= backend) backend_heads_ = backend;
    }
    if (backend_heads_ == 0) backend_heads_ = heads_;
  }

  // The bytes of a rank's part of a tensor.
  std::vector<std::byte> pack(const std::string& name, std::uint64_t tp_rank) const {
    const TensorInfo* tensor = checkpoint_.find(name);
    if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
    const auto bytes = checkpoint_.bytes(*tensor);
    const Rule rule = rule_of(name);
    if (rule.local == 0) return {bytes.begin(), bytes.end()};
    const std::uint64_t rows = tensor->shape[0];
    const std::uint64_t columns = tensor->shape.size() > 1 ? tensor->shape[1] : 1;
    const std::uint64_t elem = tensor->bytes / (rows * columns);
    std::vector<std::byte> part;
    const auto push = [&](std::uint64_t row, std::uint64_t column) {
      for (std::uint64_t i = 0; i < elem; ++i)
        part.push_back(bytes[(row * columns + column) * elem + i]);
    };
    const auto push_tail = [&] {
      static constexpr int kInfinity[] = {0x00, 0x00, 0x80, 0xFF};
      for (std::uint64_t i = 0; i < elem; ++i)
        part.push_back(rule.infinite ? static_cast<std::byte>(kInfinity[i]) : std::byte{0});
    };
    const std::uint64_t whole = rule.by_rows ? rows : columns;
    const auto is_real = [&](std::uint64_t entry) {
      return entry < rule.local && tp_rank * rule.local + entry < whole;
    };
    const std::uint64_t part_rows = rule.by_rows ? rule.room : rows;
    const std::uint64_t part_columns = rule.by_rows ? columns : rule.room;
    for (std::uint64_t row = 0; row < part_rows; ++row) {
      for (std::uint64_t column = 0; column < part_columns; ++column) {
        if (!is_real(rule.by_rows ? row : column)) {
          push_tail();
        } else if (rule.by_rows) {
          push(tp_rank * rule.local + row, column);
        } else {
          push(row, tp_rank * rule.local + column);
        }
      }
    }
    return part;
  }

 private:
  // Entries of a rank and entries that there is room for; 0 for what is not shared.
  struct Rule {
    bool by_rows = true;
    std::uint64_t local = 0;
    std::uint64_t room = 0;
    bool infinite = false;
  };

  Rule rule_of(const std::string& name) const {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    const std::uint64_t tile = config_.tile;
    const auto rows = [](std::uint64_t local) { return Rule{true, local, local, false}; };
    const auto columns = [](std::uint64_t local) { return Rule{false, local, local, false}; };
    if (name.find("indexer") != std::string::npos) return {};
    if (ends("attn.attn_sink")) return {true, heads_, backend_heads_, true};
    if (ends("attn.wq_b.weight")) return rows(heads_ * config_.head_dim);
    if (ends("attn.wq_b.scale")) return rows(heads_ * config_.head_dim / tile);
    if (ends("attn.wo_a.weight")) return rows(groups_ * config_.o_rank);
    if (ends("attn.wo_a.scale")) return rows(groups_ * config_.o_rank / tile);
    if (ends("attn.wo_b.weight")) return columns(groups_ * config_.o_rank);
    if (ends("attn.wo_b.scale")) return columns(groups_ * config_.o_rank / tile);
    for (const std::string_view gated : {"shared_experts.w1", "shared_experts.w3"}) {
      if (ends(std::string(gated) + ".weight")) return rows(shared_);
      if (ends(std::string(gated) + ".scale")) return rows(shared_ / tile);
    }
    if (ends("shared_experts.w2.weight")) return columns(shared_);
    if (ends("shared_experts.w2.scale")) return columns(shared_ / tile);
    if (name == "embed.weight" || name == "head.weight") return rows(vocab_);
    if (name.find("markov_head") != std::string::npos) return rows(vocab_);
    return {};
  }

  const Checkpoint& checkpoint_;
  const V4Config& config_;
  std::uint64_t tp_;
  std::uint64_t heads_ = 0;
  std::uint64_t backend_heads_ = 0;
  std::uint64_t groups_ = 0;
  std::uint64_t shared_ = 0;
  std::uint64_t vocab_ = 0;
};

}  // namespace moxie::test
