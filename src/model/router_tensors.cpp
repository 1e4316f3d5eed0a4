// SPDX-License-Identifier: Apache-2.0
// The router is the block's `gate`. DeepSeek's own name for the correction bias is `bias`;
// elsewhere that would be a bias of the logits, so it is not read as one for the selection.
#include "model/router_tensors.hpp"

namespace moxie {

RouterNames router_names(std::string_view prefix) {
  if (prefix.starts_with("blk.")) {  // GGUF
    const std::string stem = std::string(prefix) + ".";
    return {.weight = stem + "ffn_gate_inp.weight",
            .bias = {stem + "exp_probs_b.bias"},
            .token_table = stem + "ffn_gate_tid2eid.weight"};
  }
  constexpr std::string_view kExperts = ".experts";
  const std::string_view block =
      prefix.ends_with(kExperts) ? prefix.substr(0, prefix.size() - kExperts.size()) : prefix;
  const std::string gate = std::string(block) + ".gate.";
  RouterNames names{.weight = gate + "weight", .bias = {}, .token_table = gate + "tid2eid"};
  if (prefix.ends_with("ffn.experts")) names.bias.push_back(gate + "bias");
  names.bias.push_back(gate + "e_score_correction_bias");
  return names;
}

RouterTensors find_router(const Checkpoint& checkpoint, std::string_view prefix) {
  const RouterNames names = router_names(prefix);
  RouterTensors router{.weight = checkpoint.find(names.weight),
                       .token_table = checkpoint.find(names.token_table)};
  for (const std::string& name : names.bias) {
    if (router.bias == nullptr) router.bias = checkpoint.find(name);
  }
  return router;
}

}  // namespace moxie
