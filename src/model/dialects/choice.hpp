// SPDX-License-Identifier: Apache-2.0
// Which dialect a group of expert tensors is in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/dialects/dialect.hpp"
#include "model/expert_names.hpp"
#include "moxie/model.hpp"

namespace moxie {

// dialect nullptr: none.
struct DialectChoice {
  const Dialect* dialect = nullptr;
  const DialectNames* names = nullptr;  // nullptr for a stacked dialect, which has one naming

  // The name of a weight tensor that a layer of this dialect has.
  [[nodiscard]] std::string weight_name(std::string_view prefix, ProjectionKind kind) const;
};

// What a config declares, for what the tensors leave open.
struct DeclaredDialect {
  std::optional<BlockFormat> format;
  std::string_view quantization;  // begins with the method
};

// The dialect whose codes and block scales the group holds, by name and type; failing that, the one
// of the declared format whose weights it names, so that what is wrong with them can be said.
DialectChoice choose_dialect(std::string_view prefix, const ExpertGroup& group,
                             DeclaredDialect declared);

// The naming to expect for a layer of which nothing is on disk.
DialectChoice assume_dialect(std::string_view prefix, DeclaredDialect declared);

// Whether a config that declares this may come with tensors of the dialect of this name.
bool may_declare(std::string_view quantization, std::string_view dialect_name);

// Names of all dialects, in the order in which they are tried.
std::vector<std::string_view> dialect_names();

}  // namespace moxie
