// SPDX-License-Identifier: Apache-2.0
// Which dialect a group of expert tensors is in.
#pragma once

#include <optional>
#include <string_view>

#include "model/dialects/dialect.hpp"
#include "model/expert_names.hpp"

namespace moxie {

// Both nullptr: none.
struct DialectChoice {
  const Dialect* dialect = nullptr;
  const DialectNames* names = nullptr;
};

// The dialect whose codes and block scales the group holds, by name and type; failing that, the one
// of the declared format whose weights it names, so that what is wrong with them can be said.
DialectChoice choose_dialect(std::string_view prefix, const ExpertGroup& group,
                             std::optional<BlockFormat> declared);

// The naming to expect for a layer of which nothing is on disk.
DialectChoice assume_dialect(std::string_view prefix, std::optional<BlockFormat> format);

}  // namespace moxie
