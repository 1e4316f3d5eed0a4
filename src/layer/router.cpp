// SPDX-License-Identifier: Apache-2.0
// Checks a layer's router tensors once, copies them out of the file, and calls the route kernel.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "formats/bf16.hpp"
#include "kernels/registry/registry.hpp"
#include "model/router_tensors.hpp"
#include "moxie/layer.hpp"

namespace moxie {

namespace {

// Reads and checks the tensors of one layer's router.
class RouterReader {
 public:
  RouterReader(const MoeModel& model, const LayerExperts& layer)
      : model_(model), layer_(layer), names_(router_names(layer.prefix, model.config.router)) {}

  // bf16 or f32 [experts, hidden], in the file's type.
  std::vector<std::byte> read_weight(const RouterShape& shape, DType& dtype) const {
    const TensorInfo& tensor = require(layer_.router.weight, names_.weight);
    const Shape expected{shape.experts, shape.hidden};
    if ((tensor.dtype != DType::bf16 && tensor.dtype != DType::f32) || tensor.shape != expected) {
      refuse_form(tensor, "BF16 or F32 " + to_string(expected));
    }
    dtype = tensor.dtype;
    const auto bytes = model_.checkpoint.bytes(tensor);
    require_finite(tensor, read_numbers(tensor, expected),
                   "the router's weight is no finite number");
    return {bytes.begin(), bytes.end()};
  }

  std::vector<float> read_bias(const RouterShape& shape) const {
    const TensorInfo& tensor = require(layer_.router.bias, names_.bias.front());
    const bool of_logits = shape.kind == RouterKind::topk_softmax;
    auto bias = of_logits ? read_numbers(tensor, {shape.experts})
                          : read_all<float>(tensor, DType::f32, {shape.experts});
    require_finite(tensor, bias, "the router's bias is no finite number");
    return bias;
  }

  std::vector<float> read_expert_scale(const RouterShape& shape) const {
    const TensorInfo& tensor = require(layer_.router.expert_scale, names_.expert_scale);
    auto scale = read_numbers(tensor, {shape.experts});
    require_finite(tensor, scale, "the router's scale of an expert is no finite number");
    return scale;
  }

  // By channel, with the root of the width that every channel is divided by.
  std::vector<float> read_input_scale(const RouterShape& shape) const {
    const TensorInfo& tensor = require(layer_.router.input_scale, names_.input_scale);
    auto scale = read_numbers(tensor, {shape.hidden});
    require_finite(tensor, scale, "the router's scale of a channel is no finite number");
    const float root = 1.0F / std::sqrt(static_cast<float>(shape.hidden));
    for (float& channel : scale) channel *= root;
    return scale;
  }

  // Scores of a softmax are selected as they are.
  [[noreturn]] void refuse_bias() const {
    refuse("the layer has a bias for its selection that the model's router does not take",
           place(*layer_.router.bias), "none", layer_.router.bias->name);
  }

  // The table in the kernel's narrower type; `vocab` becomes the number of its rows.
  std::vector<std::int32_t> read_table(RouterShape& shape) const {
    const TensorInfo& tensor = require(layer_.router.token_table, names_.token_table);
    if (shape.vocab == 0 && tensor.shape.size() == 2) shape.vocab = tensor.shape[0];
    if (shape.vocab == 0) refuse_form(tensor, "I64 or I32 [tokens of the vocabulary, top_k]");
    if (tensor.shape.size() == 2 && tensor.shape[1] != shape.top_k &&
        shape.top_k != model_.config.top_k) {
      throw Error(ErrorCode::usage,
                  {.code = "MOXIE-R007",
                   .message = "the layer routes by token id, to as many experts as its table says",
                   .where = place(tensor),
                   .expected = "top_k " + std::to_string(tensor.shape[1]),
                   .got = std::to_string(shape.top_k)});
    }
    const Shape extents{shape.vocab, shape.top_k};
    std::vector<std::int64_t> ids;
    if (tensor.dtype == DType::i32) {
      const auto narrow = read_all<std::int32_t>(tensor, DType::i32, extents);
      ids.assign(narrow.begin(), narrow.end());
    } else {
      ids = read_all<std::int64_t>(tensor, DType::i64, extents);
    }
    std::vector<std::int32_t> table;
    table.reserve(ids.size());
    for (const std::int64_t id : ids) {
      if (id < 0 || static_cast<std::uint64_t>(id) >= shape.experts) {
        refuse("the token table names an expert that does not exist", place(tensor),
               "ids from 0 to " + std::to_string(shape.experts - 1),
               std::to_string(id) + " for token " + std::to_string(table.size() / shape.top_k));
      }
      table.push_back(static_cast<std::int32_t>(id));
    }
    return table;
  }

 private:
  [[nodiscard]] const TensorInfo& require(const TensorInfo* tensor, const std::string& name) const {
    if (tensor != nullptr) return *tensor;
    const std::string shard(model_.checkpoint.absent_shard_of(name));
    refuse("a router tensor is absent",
           {.file = model_.checkpoint.path().string(), .layer = layer_.layer}, name, "none",
           shard.empty() ? "" : "download the shard " + shard);
  }

  template <class T>
  [[nodiscard]] std::vector<T> read_all(const TensorInfo& tensor, DType dtype,
                                        const Shape& shape) const {
    if (tensor.dtype != dtype || tensor.shape != shape) {
      refuse_form(tensor, std::string(name_of(dtype)) + " " + to_string(shape));
    }
    const auto bytes = model_.checkpoint.bytes(tensor);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // bf16 or f32 as f32.
  [[nodiscard]] std::vector<float> read_numbers(const TensorInfo& tensor,
                                                const Shape& shape) const {
    if (tensor.dtype == DType::f32) return read_all<float>(tensor, DType::f32, shape);
    if (tensor.dtype != DType::bf16) refuse_form(tensor, "BF16 or F32 " + to_string(shape));
    std::vector<float> numbers;
    for (const std::uint16_t bits : read_all<std::uint16_t>(tensor, DType::bf16, shape))
      numbers.push_back(decode_bf16(bits));
    return numbers;
  }

  void require_finite(const TensorInfo& tensor, const std::vector<float>& numbers,
                      const std::string& message) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (std::isfinite(numbers[i])) continue;
      Place where = place(tensor);
      if (numbers.size() == layer_.experts.size()) where.expert = i;
      refuse(message, std::move(where), "a finite number",
             std::to_string(numbers[i]) + " at " + std::to_string(i));
    }
  }

  [[noreturn]] void refuse_form(const TensorInfo& tensor, std::string expected) const {
    refuse("a router tensor has another type or shape than the model needs", place(tensor),
           std::move(expected), std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape));
  }

  [[noreturn]] static void refuse(std::string message, Place where, std::string expected,
                                  std::string got, std::string hint = {}) {
    throw Error(ErrorCode::input, {.code = "MOXIE-M016",
                                   .message = std::move(message),
                                   .where = std::move(where),
                                   .expected = std::move(expected),
                                   .got = std::move(got),
                                   .hint = std::move(hint)});
  }

  [[nodiscard]] Place place(const TensorInfo& tensor) const {
    return {.file = model_.checkpoint.files()[tensor.file].path.string(),
            .tensor = tensor.name,
            .layer = layer_.layer};
  }

  const MoeModel& model_;
  const LayerExperts& layer_;
  RouterNames names_;
};

RouterShape shape_of(const ModelConfig& config, const LayerExperts& layer, std::uint64_t top_k) {
  return {.kind = config.router,
          .hidden = config.router_hidden,
          .experts = layer.experts.size(),
          .top_k = top_k,
          .vocab = config.vocab,
          .expert_groups = config.expert_groups,
          .kept_groups = config.kept_groups,
          .norm_topk = config.norm_topk,
          .routed_scaling = static_cast<float>(config.routed_scaling),
          .norm_eps = static_cast<float>(config.norm_eps.value_or(0.0))};
}

// A weight whose columns are scaled, in f32: the scale of a channel is the same for every token.
std::vector<std::byte> scaled_weight(const std::vector<std::byte>& weight, DType& dtype,
                                     const std::vector<float>& scale) {
  const std::uint64_t count = weight.size() * 8 / bits_of(dtype);
  std::vector<std::byte> scaled(count * sizeof(float));
  for (std::uint64_t i = 0; i < count; ++i) {
    float value = 0;
    if (dtype == DType::f32) {
      std::memcpy(&value, weight.data() + i * sizeof value, sizeof value);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, weight.data() + i * sizeof bits, sizeof bits);
      value = decode_bf16(bits);
    }
    value *= scale[i % scale.size()];
    std::memcpy(scaled.data() + i * sizeof value, &value, sizeof value);
  }
  dtype = DType::f32;
  return scaled;
}

// A prediction block may have other sizes than the config, which was checked for the main layers.
void check_counts(const RouterShape& shape, int layer) {
  const std::uint64_t group_experts = shape.experts / shape.expert_groups;
  if (shape.experts % shape.expert_groups != 0 || (shape.expert_groups > 1 && group_experts < 2)) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-R004",
                 .message = "the layer's experts do not form the model's groups",
                 .where = {.layer = layer},
                 .expected = std::to_string(shape.expert_groups) + " groups of two or more",
                 .got = std::to_string(shape.experts) + " experts"});
  }
  const std::uint64_t most = shape.kept_groups * group_experts;
  if (shape.top_k == 0 || shape.top_k > most) {
    throw Error(ErrorCode::usage, {.code = "MOXIE-U003",
                                   .message = "top_k is out of range",
                                   .where = {.layer = layer},
                                   .expected = "1 to " + std::to_string(most),
                                   .got = std::to_string(shape.top_k)});
  }
}

bool is_matrix(const MatrixRef& x, std::uint64_t cols) {
  return (x.dtype == DType::bf16 || x.dtype == DType::f32) && x.cols == cols &&
         (x.rows <= 1 || x.row_stride >= cols) && (x.rows == 0 || x.data != nullptr);
}

}  // namespace

struct Router::State {
  const RouteKernel* kernel = nullptr;
  RouterShape shape;
  DType weight_type = DType::bf16;
  std::vector<std::byte> weight;    // [experts, hidden]
  std::vector<float> bias;          // [experts]; empty with a token table
  std::vector<float> expert_scale;  // [experts]; empty for most kinds
  std::vector<std::int32_t> table;  // [vocab, top_k]; empty when selection is by score
  unsigned threads = 1;
};

Router::Router(const MoeModel& model, int layer, std::uint64_t top_k)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  const LayerExperts& experts = model.require_layer(layer);
  state.kernel = find_route_kernel("cpu.portable.route");
  MOXIE_CHECK(state.kernel != nullptr, "the portable kernels are always built");
  const bool normalises = model.config.router == RouterKind::scaled_softmax;
  if (!state.kernel->supports(model.config.router) ||
      (normalises && !model.config.norm_eps.has_value())) {
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-R004",
                 .message = normalises ? "the router's normalisation is not stated"
                                       : "this kind of router is not built",
                 .where = {.layer = layer},
                 .expected = normalises ? "rms_norm_eps in the config" : "another kind",
                 .got = normalises ? "none" : std::string(name_of(model.config.router)),
                 .hint = "give expert ids and weights instead"});
  }
  state.shape = shape_of(model.config, experts, top_k);
  check_counts(state.shape, layer);
  const RouterReader reader(model, experts);
  state.weight = reader.read_weight(state.shape, state.weight_type);
  const bool by_table =
      !experts.mtp && static_cast<std::uint64_t>(layer) < model.config.hash_layers;
  if (by_table) {
    state.table = reader.read_table(state.shape);
  } else if (normalises) {
    state.weight =
        scaled_weight(state.weight, state.weight_type, reader.read_input_scale(state.shape));
    state.expert_scale = reader.read_expert_scale(state.shape);
  } else if (model.config.router != RouterKind::softmax_topk) {
    state.bias = reader.read_bias(state.shape);
  } else if (experts.router.bias != nullptr) {
    reader.refuse_bias();
  }
  state.threads = usable_threads();
}

Router::~Router() = default;
Router::Router(Router&&) noexcept = default;
Router& Router::operator=(Router&&) noexcept = default;

bool Router::needs_token_ids() const { return !state_->table.empty(); }

std::uint64_t Router::workspace_size(std::uint64_t tokens) const {
  return state_->kernel->workspace_bytes(state_->shape, tokens);
}

CallStatus Router::route(const RouteIo& io, std::span<std::byte> workspace) const noexcept {
  const State& state = *state_;
  if (!is_matrix(io.x, state.shape.hidden)) return CallStatus::bad_argument;
  const bool by_table = !state.table.empty();
  if (io.x.rows > 0 && (io.topk_ids == nullptr || io.topk_weights == nullptr ||
                        io.flags == nullptr || (by_table && io.token_ids == nullptr))) {
    return CallStatus::bad_argument;
  }
  if (workspace.size() < workspace_size(io.x.rows)) return CallStatus::workspace_too_small;
  state.kernel->run(
      {.shape = state.shape,
       .weight = {.data = state.weight.data(),
                  .dtype = state.weight_type,
                  .rows = state.shape.experts,
                  .cols = state.shape.hidden,
                  .row_stride = state.shape.hidden},
       .bias = state.bias.empty() ? nullptr : state.bias.data(),
       .expert_scale = state.expert_scale.empty() ? nullptr : state.expert_scale.data(),
       .token_table = by_table ? state.table.data() : nullptr,
       .tokens = io.x.rows,
       .x = io.x,
       .token_ids = io.token_ids,
       .topk_ids = io.topk_ids,
       .topk_weights = io.topk_weights,
       .workspace = workspace.data(),
       .flags = io.flags,
       .threads = state.threads});
  return CallStatus::ok;
}

}  // namespace moxie
