// SPDX-License-Identifier: Apache-2.0
// No number of a cut, of an axis or of a part can be otherwise without other bytes or a refusal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "pack/poisoned_copy.hpp"
#include "pack/reference_whole.hpp"
#include "pack/tensor_part.hpp"
#include "support/packed_model.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie {
namespace {

using test::plan_of;
using test::poisoned_copy;
using test::WholeCheckpoint;

// Whether packing all ranks' parts under a plan and cuts that are not right shows against the
// reference: a check of moxie, another length or other bytes.
class TensorMutation : public testing::Test {
 protected:
  TensorMutation()
      : model_(
            {.config = test::one_layer_v4({{"hidden_size", 256}, {"moe_intermediate_size", 640}})}),
        plan_(plan_of(*model_, 3)),
        reference_(model_->checkpoint, model_.config(), 3),
        tensors_(layer_tensors(model_.config(), 0)) {
    std::ranges::move(top_tensors(model_.config()), std::back_inserter(tensors_));
    std::erase_if(tensors_, [](const ModelTensor& tensor) { return !tensor.cut; });
  }

  bool is_noticed(const ModelTensor& tensor, const ShardPlan& plan) const {
    for (unsigned rank = 0; rank < 3; ++rank) {
      try {
        const TensorPart part = part_of(tensor, plan, rank);
        const auto due = reference_.pack(tensor.name, rank);
        if (part.bytes() != due.size()) return true;
        if (poisoned_copy(part, model_.bytes(tensor.name), 1 << 20) != due) return true;
      } catch (const Error&) {
        return true;
      }
    }
    return false;
  }

  WholeCheckpoint model_;
  ShardPlan plan_;
  test::WholeReference reference_;
  std::vector<ModelTensor> tensors_;
};

TEST_F(TensorMutation, NoFieldOfACutCanBeOtherwise) {
  for (const ModelTensor& tensor : tensors_) {
    ASSERT_FALSE(is_noticed(tensor, plan_)) << tensor.name;
    const auto expect_noticed = [&](const char* what, const auto& change) {
      ModelTensor changed = tensor;
      change(*changed.cut);
      EXPECT_TRUE(is_noticed(changed, plan_)) << tensor.name << " " << what;
    };
    expect_noticed("entries + 1", [](TensorCut& cut) { ++cut.entries; });
    expect_noticed("elems + 1", [](TensorCut& cut) { ++cut.elems; });
    if (tensor.cut->entries > 1)
      expect_noticed("entries - 1", [](TensorCut& cut) { --cut.entries; });
    if (tensor.cut->elems > 1) expect_noticed("elems - 1", [](TensorCut& cut) { --cut.elems; });
    if (tensor.shape.size() > 1) {
      expect_noticed("unit", [](TensorCut& cut) {
        cut.unit = dimension_of(cut.unit) == 0 ? StorageUnit::column : StorageUnit::row;
      });
    }
    expect_noticed("tail", [](TensorCut& cut) {
      cut.tail = cut.tail == Tail::zero ? Tail::minus_infinity : Tail::zero;
    });
    expect_noticed("axis", [](TensorCut& cut) {
      cut.axis = static_cast<Axis>((static_cast<unsigned>(cut.axis) + 1) % kAxes);
    });
    if (tensor.cut->axis == Axis::heads) {  // the one axis whose two widths differ
      expect_noticed("width", [](TensorCut& cut) {
        cut.width = cut.width == PartWidth::local ? PartWidth::kernel : PartWidth::local;
      });
    }
  }
}

TEST_F(TensorMutation, NoNumberOfAnAxisCanBeOtherwise) {
  for (std::size_t i = 1; i < plan_.axes.size(); ++i) {
    for (const std::uint64_t step : {std::uint64_t{1}, ~std::uint64_t{0}}) {
      for (const auto field : {&AxisPlan::original, &AxisPlan::local, &AxisPlan::kernel}) {
        ShardPlan changed = plan_;
        (changed.axes[i].*field).value += step;
        // The kernel's width matters to sinks alone.
        const bool matters = field != &AxisPlan::kernel || changed.axes[i].axis == Axis::heads;
        bool noticed = false;
        for (const ModelTensor& tensor : tensors_) noticed = noticed || is_noticed(tensor, changed);
        EXPECT_EQ(noticed, matters) << name_of(changed.axes[i].axis) << " step " << step;
      }
    }
  }
}

// src, count and dst, in rows and in bytes of a row.
TEST_F(TensorMutation, NoNumberOfAPartCanBeOtherwise) {
  for (const ModelTensor& tensor : tensors_) {
    for (unsigned rank = 0; rank < 3; ++rank) {
      const auto due = reference_.pack(tensor.name, rank);
      for (const auto field :
           {&TensorPart::first_row, &TensorPart::first_byte, &TensorPart::real_rows,
            &TensorPart::real_row_bytes, &TensorPart::source_row_bytes, &TensorPart::rows,
            &TensorPart::row_bytes}) {
        for (const std::uint64_t step : {std::uint64_t{1}, ~std::uint64_t{0}}) {
          TensorPart part = part_of(tensor, plan_, rank);
          part.*field += step;
          if (part.*field > std::uint64_t{1} << 40) continue;  // less than nothing
          bool noticed = part.bytes() != due.size();
          try {
            noticed = noticed || poisoned_copy(part, model_.bytes(tensor.name), 1 << 20) != due;
          } catch (const Error&) {
            noticed = true;
          }
          EXPECT_TRUE(noticed) << tensor.name << " rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moxie
