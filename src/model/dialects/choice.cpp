// SPDX-License-Identifier: Apache-2.0
// Tensors decide by their names and types; the first dialect that fits wins.
#include "model/dialects/choice.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "model/layer_reader.hpp"

namespace moxie {

namespace {

constexpr std::array<const Dialect*, 3> kDialects = {&kDeepseekV4, &kDeepseekV4Nvfp4, &kModelopt};

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
  return has_part(group, names, names.codes, is_code_type) &&
         has_part(group, names, names.block_scales,
                  [&](DType dtype) { return is_scale_type(dialect.format, dtype); });
}

bool holds_weights(const ExpertGroup& group, const DialectNames& names) {
  return has_part(group, names, names.codes, [](DType /*dtype*/) { return true; });
}

}  // namespace

DialectChoice choose_dialect(std::string_view prefix, const ExpertGroup& group,
                             std::optional<BlockFormat> declared) {
  for (const bool by_type : {true, false}) {
    for (const Dialect* dialect : kDialects) {
      if (!dialect->lives_under(prefix) || (!by_type && dialect->format != declared)) continue;
      for (const DialectNames& names : dialect->namings) {
        if (by_type ? holds_fp4(group, *dialect, names) : holds_weights(group, names))
          return {dialect, &names};
      }
    }
  }
  return {};
}

DialectChoice assume_dialect(std::string_view prefix, std::optional<BlockFormat> format) {
  for (const Dialect* dialect : kDialects) {
    if (dialect->format == format && dialect->lives_under(prefix))
      return {dialect, dialect->namings.data()};
  }
  return {};
}

}  // namespace moxie
