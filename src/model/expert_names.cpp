// SPDX-License-Identifier: Apache-2.0
// One pass over all names.
#include "model/expert_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

#include "model/limits.hpp"

namespace moxie {

namespace {

constexpr std::string_view kExperts = "experts.";
constexpr std::size_t kMaxUnmatched = 8;
constexpr std::array<std::string_view, 2> kBlockWords = {"block.", "blk."};

// Reads a whole number at the start of `text` that a dot follows, and removes both.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

// The number after `word` where `word` starts a dotted part of `text`: ("model.layers.3.mlp",
// "layers.") gives 3 and the position of the digit.
std::optional<std::pair<int, std::size_t>> number_after(std::string_view text,
                                                        std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    if (at > 0 && text[at - 1] != '.') continue;
    std::string_view rest = text.substr(at + word.size());
    const auto number = take_number(rest);
    if (number && *number < 1'000'000)
      return std::pair(static_cast<int>(*number), at + word.size());
  }
  return std::nullopt;
}

// The group of this prefix, made when it is new; nullptr when the prefix has no number.
ExpertGroup* group_of(ExpertNames& names, std::string_view prefix,
                      std::span<const std::string_view> stacked_words = {}) {
  const auto block = block_of(prefix, stacked_words);
  if (!block) return nullptr;
  ExpertGroup& group = names.groups[std::string(prefix)];
  group.mtp = block->mtp;
  group.number = block->number;
  if (!group.mtp && names.main_prefix.empty()) {
    const std::size_t digits = std::to_string(block->number).size();
    names.main_prefix = std::string(prefix).replace(block->digits_at, digits, "{}");
  }
  return &group;
}

// The name of a tensor that holds the experts of a layer, in two; nullopt for all others:
// "model.layers.3.mlp.experts" and "gate_up_proj_blocks", "block.3.mlp" and "mlp1_weight.blocks",
// "blk.3" and "ffn_gate_exps.weight".
std::optional<std::pair<std::string_view, std::string_view>> split_stacked(std::string_view name) {
  const auto split = [&](std::size_t at) {
    return std::pair(name.substr(0, at), name.substr(at + 1));
  };
  if (name.starts_with("block.")) {
    const std::size_t at = name.find(".mlp.mlp");
    if (at != std::string_view::npos) return split(at + std::string_view(".mlp").size());
  } else if (name.starts_with("blk.")) {
    const std::size_t at = name.find(".ffn_");
    if (at != std::string_view::npos && name.find("_exps.", at) != std::string_view::npos)
      return split(at);
  } else if (const std::size_t at = name.rfind('.'); at != std::string_view::npos) {
    const std::string_view leaf = name.substr(at + 1);
    const bool stacked = leaf.starts_with("gate_up_proj_") || leaf.starts_with("down_proj_");
    if (stacked && name.substr(0, at).ends_with(".experts")) return split(at);
  }
  return std::nullopt;
}

void add_stacked(ExpertNames& names, std::string_view prefix, std::string_view leaf,
                 const TensorInfo& tensor) {
  ExpertGroup* group = group_of(names, prefix, kBlockWords);
  if (group == nullptr) {
    if (names.unmatched.size() < kMaxUnmatched) names.unmatched.push_back(tensor.name);
    return;
  }
  const std::uint64_t experts = tensor.shape.empty() ? 0 : tensor.shape.front();
  ++group->tensors;
  group->expert_end = std::max(group->expert_end, std::min(experts, kMaxExperts));
  group->leaves.emplace(leaf, tensor.dtype);
}

}  // namespace

std::optional<BlockNumber> block_of(std::string_view prefix,
                                    std::span<const std::string_view> stacked_words) {
  const std::string closed = std::string(prefix) + ".";
  auto layer = number_after(closed, "layers.");
  for (const std::string_view word : stacked_words) {
    if (!layer && prefix.starts_with(word)) layer = number_after(closed, word);
  }
  const auto block = number_after(closed, "mtp.");
  if (!layer && !block) return std::nullopt;
  return BlockNumber{
      .mtp = prefix.starts_with("mtp.") || prefix.find(".mtp.") != std::string_view::npos,
      .number = block ? block->first : layer->first,
      .digits_at = layer ? layer->second : 0};
}

ExpertNames find_expert_names(const Checkpoint& checkpoint) {
  ExpertNames names;
  std::string_view last_prefix;
  ExpertGroup* last_group = nullptr;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    if (const auto parts = split_stacked(name)) {
      add_stacked(names, parts->first, parts->second, tensor);
      continue;
    }
    const std::size_t at = name.find(kExperts);
    if (at == std::string_view::npos || name.find("shared_expert") != std::string_view::npos)
      continue;
    std::string_view rest = name.substr(at + kExperts.size());
    const bool own_part = at > 0 && name[at - 1] == '.';
    const auto expert = own_part ? take_number(rest) : std::nullopt;
    const std::string_view prefix = name.substr(0, at + kExperts.size() - 1);
    // A larger id is no expert's: it must not become a count of tensors to look for.
    if (expert && *expert < kMaxExperts && (prefix != last_prefix || last_group == nullptr)) {
      last_prefix = prefix;
      last_group = group_of(names, prefix);
    }
    if (!expert || *expert >= kMaxExperts || last_group == nullptr) {
      if (names.unmatched.size() < kMaxUnmatched) names.unmatched.push_back(name);
      continue;
    }
    ++last_group->tensors;
    last_group->expert_end = std::max(last_group->expert_end, *expert + 1);
    if (!last_group->leaves.contains(rest)) last_group->leaves.emplace(rest, tensor.dtype);
  }
  return names;
}

}  // namespace moxie
