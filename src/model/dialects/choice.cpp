// SPDX-License-Identifier: Apache-2.0
// Tensors decide by their names and types; the first dialect that fits wins. A declared method
// decides only where they do not.
#include "model/dialects/choice.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "model/layer_reader.hpp"

namespace moxie {

namespace {

constexpr std::array kDialects = {&kDeepseekV4,
                                  &kDeepseekV4Nvfp4,
                                  &kModelopt,
                                  &kCompressedTensorsNvfp4,
                                  &kCompressedTensorsMxfp4,
                                  &kQuark,
                                  &kGptOss,
                                  &kGptOssOriginal,
                                  &kGgufMxfp4,
                                  &kGgufNvfp4};

// True when a projection of the group has this part, in a type that `fits` accepts.
template <class Fits>
bool has_part(const ExpertGroup& group, const DialectNames& names, std::string_view part,
              const Fits& fits) {
  return std::ranges::any_of(names.projections, [&](std::string_view projection) {
    const auto leaf = group.leaves.find(std::string(projection) + std::string(part));
    return leaf != group.leaves.end() && fits(leaf->second);
  });
}

bool holds_fp4(const ExpertGroup& group, const Dialect& dialect, const DialectNames& names) {
  const auto any_type = [](DType /*dtype*/) { return true; };
  return has_part(group, names, names.codes, is_code_type) &&
         has_part(group, names, names.block_scales,
                  [&](DType dtype) { return is_scale_type(dialect.format, dtype); }) &&
         (names.foreign.empty() || !has_part(group, names, names.foreign, any_type));
}

// The same for tensors of a whole layer.
bool holds_stack(const ExpertGroup& group, const Dialect& dialect) {
  const StackedNames& names = *dialect.stacked;
  const auto has = [&](std::string_view leaf, const auto& fits) {
    const auto found = group.leaves.find(leaf);
    return found != group.leaves.end() && fits(found->second);
  };
  return std::ranges::any_of(std::array{1U, 2U}, [&](unsigned projection) {
    if (names.kind == StackKind::gguf) {
      const DType blocks =
          dialect.format == BlockFormat::mxfp4 ? DType::mxfp4_blocks : DType::nvfp4_blocks;
      return has(names.codes[projection], [&](DType dtype) { return dtype == blocks; });
    }
    return has(names.codes[projection], is_code_type) &&
           has(names.block_scales[projection],
               [&](DType dtype) { return is_scale_type(dialect.format, dtype); });
  });
}

bool holds_stacked_weights(const ExpertGroup& group, const StackedNames& names) {
  return group.leaves.contains(names.codes[1]) || group.leaves.contains(names.codes[2]);
}

bool holds_weights(const ExpertGroup& group, const DialectNames& names) {
  return has_part(group, names, names.codes, [](DType /*dtype*/) { return true; });
}

// Calls `choose` with the dialects that the declaration leaves, the one of its method first, until
// it gives a choice.
template <class Choose>
DialectChoice first_declared(std::string_view prefix, DeclaredDialect declared,
                             const Choose& choose) {
  for (const bool by_method : {true, false}) {
    for (const Dialect* dialect : kDialects) {
      if (dialect->format != declared.format || !dialect->lives_under(prefix)) continue;
      const std::string_view method = dialect->method;
      if (by_method != !method.empty()) continue;
      if (by_method && !declared.quantization.starts_with(method)) continue;
      if (const DialectChoice choice = choose(*dialect); choice.dialect != nullptr) return choice;
    }
  }
  return {};
}

}  // namespace

std::string DialectChoice::weight_name(std::string_view prefix, ProjectionKind kind) const {
  const auto at = static_cast<std::size_t>(kind);
  const std::string start = std::string(prefix) + ".";
  if (names == nullptr) return start + std::string(dialect->stacked->codes[at]);
  return start + "0." + std::string(names->projections[at]) + std::string(names->codes);
}

DialectChoice choose_dialect(std::string_view prefix, const ExpertGroup& group,
                             DeclaredDialect declared) {
  for (const Dialect* dialect : kDialects) {
    if (!dialect->lives_under(prefix)) continue;
    if (dialect->stacked != nullptr && holds_stack(group, *dialect)) return {dialect, nullptr};
    for (const DialectNames& names : dialect->namings) {
      if (holds_fp4(group, *dialect, names)) return {dialect, &names};
    }
  }
  return first_declared(prefix, declared, [&](const Dialect& dialect) -> DialectChoice {
    if (dialect.stacked != nullptr && holds_stacked_weights(group, *dialect.stacked))
      return {&dialect, nullptr};
    for (const DialectNames& names : dialect.namings) {
      if (holds_weights(group, names)) return {&dialect, &names};
    }
    return {};
  });
}

DialectChoice assume_dialect(std::string_view prefix, DeclaredDialect declared) {
  return first_declared(prefix, declared, [](const Dialect& dialect) -> DialectChoice {
    return {&dialect, dialect.stacked != nullptr ? nullptr : dialect.namings.data()};
  });
}

bool may_declare(std::string_view quantization, std::string_view dialect_name) {
  const auto named = [&](const Dialect* dialect) { return dialect->name == dialect_name; };
  const auto declared = [&](const Dialect* dialect) {
    return !dialect->method.empty() && quantization.starts_with(dialect->method);
  };
  const bool of_a_method = std::ranges::any_of(kDialects, declared);
  const auto dialect = std::ranges::find_if(kDialects, named);
  if (quantization.empty() || dialect == kDialects.end()) return true;
  return (*dialect)->method.empty() ? !of_a_method : declared(*dialect);
}

std::vector<std::string_view> dialect_names() {
  std::vector<std::string_view> names;
  for (const Dialect* dialect : kDialects) {
    if (std::ranges::find(names, dialect->name) == names.end()) names.push_back(dialect->name);
  }
  return names;
}

}  // namespace moxie
