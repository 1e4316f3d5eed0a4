// SPDX-License-Identifier: Apache-2.0
// One pass over all names.
#include "model/expert_names.hpp"

#include <charconv>
#include <optional>

namespace moxie {

namespace {

constexpr std::string_view kExperts = "experts.";
constexpr std::size_t kMaxUnmatched = 8;

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

}  // namespace

ExpertNames find_expert_names(const Checkpoint& checkpoint) {
  ExpertNames names;
  std::string_view last_prefix;
  ExpertGroup* last_group = nullptr;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    const std::size_t at = name.find(kExperts);
    if (at == std::string_view::npos || at == 0 ||
        name.find("shared_expert") != std::string_view::npos)
      continue;
    std::string_view rest = name.substr(at + kExperts.size());
    const auto expert = name[at - 1] == '.' ? take_number(rest) : std::nullopt;
    const std::string_view prefix = name.substr(0, at + kExperts.size() - 1);
    if (prefix != last_prefix || last_group == nullptr) {
      const auto layer = number_after(prefix, "layers.");
      const auto block = number_after(prefix, "mtp.");
      if (!expert || (!layer && !block)) {
        if (names.unmatched.size() < kMaxUnmatched) names.unmatched.push_back(name);
        continue;
      }
      last_group = &names.groups[std::string(prefix)];
      last_prefix = prefix;
      last_group->mtp = block.has_value();
      last_group->number = block ? block->first : layer->first;
      if (!last_group->mtp && names.main_prefix.empty()) {
        const std::size_t digits = std::to_string(layer->first).size();
        names.main_prefix = std::string(prefix).replace(layer->second, digits, "{}");
      }
    }
    if (!expert) {
      if (names.unmatched.size() < kMaxUnmatched) names.unmatched.push_back(name);
      continue;
    }
    last_group->expert_end = std::max(last_group->expert_end, *expert + 1);
    if (!last_group->leaves.contains(rest)) last_group->leaves.emplace(rest);
  }
  return names;
}

}  // namespace moxie
