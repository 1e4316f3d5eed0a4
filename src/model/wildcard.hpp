// SPDX-License-Identifier: Apache-2.0
// Shell-style patterns of module names, as quantisers write them.
#pragma once

#include <string_view>

namespace moxie {

// `*` stands for any text, dots included, `?` for one character, `[abc]`, `[a-c]` and `[!abc]` for
// one of a set; everything else for itself. The whole text must match. Time grows with the product
// of the two lengths at most.
bool matches_wildcard(std::string_view text, std::string_view pattern);

}  // namespace moxie
