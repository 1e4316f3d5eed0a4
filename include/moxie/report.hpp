// SPDX-License-Identifier: Apache-2.0
// Plain data as text: aligned tables, sizes with units, findings as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/status.hpp"

namespace moxie {

// A table of text cells; a column is right-aligned when all its cells are numbers.
class MOXIE_API Table {
 public:
  explicit Table(std::vector<std::string> head);

  // One cell per column.
  void add_row(std::vector<std::string> cells);
  // Aligned columns with a rule under the head, ending in a newline.
  [[nodiscard]] std::string to_text() const;
  // A GitHub-flavoured markdown table.
  [[nodiscard]] std::string to_markdown() const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

// "13.4 MB" (powers of 1000), "352 B".
MOXIE_API std::string format_bytes(std::uint64_t bytes);
// "13,369,344".
MOXIE_API std::string format_count(std::uint64_t count);
// "1 layer", "2 layers".
MOXIE_API std::string format_count(std::uint64_t count, std::string_view noun);
// "0.25 experts/s", "1,200 experts/s": slow work has decimals, as it is not at rest.
MOXIE_API std::string format_rate(double per_second, std::string_view noun);

// {"code", "severity", "message", "where", "expected", "got", "hint"}; keys of `where` only where
// they apply.
MOXIE_API Json to_json(const Finding& finding);
MOXIE_API Json to_json(const std::vector<Finding>& findings);
// {"schema", "ok": false, "findings"}.
MOXIE_API Json refusal_json(std::string_view schema, const std::vector<Finding>& findings);

}  // namespace moxie
