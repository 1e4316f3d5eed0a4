// SPDX-License-Identifier: Apache-2.0
// Values of the tensors around the routed experts that no reader may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/model.hpp"
#include "moxie/status.hpp"

namespace moxie {

// Position, in values, of the first that is NaN or infinite. Nothing for types that hold neither.
std::optional<std::uint64_t> first_not_finite(DType dtype, std::span<const std::byte> bytes);

// "layers.3.ffn.gate.bias" and the like.
bool is_router_tensor(std::string_view name);

// Where a tensor lies, and how many experts its layer has; 0 where it has none.
struct AroundPlace {
  Place where;
  std::uint64_t experts = 0;
};
// Of a tensor of the model; `layer` is nullptr for those that belong to none.
AroundPlace place_around(const MoeModel& model, const TensorInfo& tensor,
                         const LayerExperts* layer);

// Rows of a router's tensor, the first of which is `first_row`. Throws Error(input) MOXIE-M016 for
// an id of no expert and for a number that is not finite. Takes other tensors without a look.
void check_router_rows(const TensorInfo& tensor, const AroundPlace& place, std::uint64_t first_row,
                       std::span<const std::byte> rows);

// The same for tensors that routers of other models have under other names.
void check_router_numbers(const TensorInfo& tensor, const AroundPlace& place,
                          std::uint64_t first_row, std::span<const std::byte> rows);

// MOXIE-K018 for the first value that is no finite number.
std::optional<Finding> non_number_of(const TensorInfo& tensor, Place where,
                                     std::span<const std::byte> bytes);

// All of the three: scales of FP8 tiles (MOXIE-K003), the router (MOXIE-M016), numbers
// (MOXIE-K018); of each tensor the first.
std::vector<Finding> check_around_values(const TensorInfo& tensor, const AroundPlace& place,
                                         std::span<const std::byte> bytes);

}  // namespace moxie
