// SPDX-License-Identifier: Apache-2.0
// A packed set of a whole checkpoint in which single things can be made wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "packed_folder.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie::test {

class WholeSet : public SetOnDisk {
 public:
  explicit WholeSet(const WholeOptions& options, const PlanOptions& plan,
                    FileLayout layout = FileLayout::logical)
      : model_(options), plan_(make_plan(*model_, plan)), layout_(layout) {
    path_ = model_ / "packed";
    pack_to_folder(*model_, plan_, {.out = path_, .layout = layout});
  }

  const WholeCheckpoint& model() const { return model_; }
  const ShardPlan& plan() const { return plan_; }
  FileLayout layout() const { return layout_; }
  VerifyReport verify() const { return verify_packed(path_, *model_); }

  Checkpoint open(unsigned rank) const { return open_checkpoint(path_ / rank_folder(rank)); }

  // Where the set differs from the one that was packed: changes the tensors of a file.
  void rewrite(unsigned rank, std::string_view name,
               const std::function<void(std::vector<TinyTensor>&)>& change) const {
    std::vector<TinyTensor> tensors;
    {
      const Checkpoint packed = open_checkpoint(file(rank, name));
      for (const TensorInfo& tensor : packed.tensors()) {
        const auto bytes = packed.bytes(tensor);
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape,
                           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
      }
    }
    change(tensors);
    write_tensors(file(rank, name), tensors);
    agree(rank);
  }

 private:
  WholeCheckpoint model_;
  ShardPlan plan_;
  FileLayout layout_;
};

}  // namespace moxie::test
