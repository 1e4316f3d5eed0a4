// SPDX-License-Identifier: Apache-2.0
// The router is the block's `gate`, or its `router` where the logits have a bias or the input a
// scale. DeepSeek's own name for the correction bias is `bias`; elsewhere that would be a bias of
// the logits, so it is not read as one for the selection.
#include "model/router_tensors.hpp"

namespace moxie {

namespace {

std::string_view block_of(std::string_view prefix) {
  constexpr std::string_view kExperts = ".experts";
  return prefix.ends_with(kExperts) ? prefix.substr(0, prefix.size() - kExperts.size()) : prefix;
}

}  // namespace

RouterNames router_names(std::string_view prefix, RouterKind kind) {
  const std::string block(block_of(prefix));
  RouterNames names;
  if (prefix.starts_with("blk.")) {  // GGUF
    const bool of_logits = kind == RouterKind::topk_softmax;
    names.weight = block + ".ffn_gate_inp.weight";
    names.bias.push_back(block + (of_logits ? ".ffn_gate_inp.bias" : ".exp_probs_b.bias"));
    names.token_table = block + ".ffn_gate_tid2eid.weight";
    return names;
  }
  if (kind == RouterKind::topk_softmax) {
    const bool original = prefix.starts_with("block.");
    const std::string router = block + (original ? ".gate." : ".router.");
    names.weight = router + "weight";
    names.bias.push_back(router + "bias");
    return names;
  }
  if (kind == RouterKind::scaled_softmax) {
    const std::string router = block + ".router.";
    names.weight = router + "proj.weight";
    names.input_scale = router + "scale";
    names.expert_scale = router + "per_expert_scale";
    return names;
  }
  const std::string gate = block + ".gate.";
  names.weight = gate + "weight";
  names.token_table = gate + "tid2eid";
  if (prefix.ends_with("ffn.experts")) names.bias.push_back(gate + "bias");
  names.bias.push_back(gate + "e_score_correction_bias");
  names.bias.push_back(block + ".e_score_correction_bias");
  return names;
}

RouterTensors find_router(const Checkpoint& checkpoint, std::string_view prefix, RouterKind kind) {
  const RouterNames names = router_names(prefix, kind);
  const auto find = [&](const std::string& name) {
    return name.empty() ? nullptr : checkpoint.find(name);
  };
  RouterTensors router{.weight = find(names.weight),
                       .token_table = find(names.token_table),
                       .input_scale = find(names.input_scale),
                       .expert_scale = find(names.expert_scale)};
  for (const std::string& name : names.bias) {
    if (router.bias == nullptr) router.bias = checkpoint.find(name);
  }
  return router;
}

}  // namespace moxie
