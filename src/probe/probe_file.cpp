// SPDX-License-Identifier: Apache-2.0
// Probes in safetensors files: read strictly, because a routing that is wrong in one id gives a
// result that looks right.
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/mapped_file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "formats/bf16.hpp"
#include "moxie/probe.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

constexpr std::string_view kActivations = "hidden_states";
constexpr std::string_view kIds = "topk_ids";
constexpr std::string_view kWeights = "topk_weights";
constexpr std::string_view kTokenIds = "token_ids";

// Element `index` of bytes at any alignment.
template <class Number>
Number element(std::span<const std::byte> bytes, std::uint64_t index) {
  Number number;
  std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
  return number;
}

class ProbeFile {
 public:
  ProbeFile(const std::filesystem::path& path, const ProbeLimits& limits)
      : path_(path), limits_(limits) {
    if (!std::filesystem::is_regular_file(path)) refuse({}, "there is no such file", {}, {});
    file_ = MappedFile(path);
    header_ = read_safetensors_header(file_.bytes(), path.string());
  }

  void read_activations(Probe& probe) const {
    const TensorInfo* tensor = find(kActivations);
    if (tensor == nullptr) refuse(kActivations, "tensor is absent", "[tokens, hidden]", "none");
    const bool bf16 = tensor->dtype == DType::bf16;
    if ((!bf16 && tensor->dtype != DType::f32) || tensor->shape.size() != 2 ||
        tensor->shape[1] != limits_.hidden) {
      refuse_type(*tensor, "BF16 or F32 [tokens, " + std::to_string(limits_.hidden) + "]");
    }
    if (limits_.tokens && *limits_.tokens != tensor->shape[0])
      refuse_tokens(*tensor, *limits_.tokens);
    const auto bytes = bytes_of(*tensor);
    const std::uint64_t count = tensor->shape[0] * tensor->shape[1];
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value =
          bf16 ? decode_bf16(element<std::uint16_t>(bytes, i)) : element<float>(bytes, i);
      if (!std::isfinite(value)) refuse_value(*tensor, i, "a finite number", value);
    }
    probe.tokens = tensor->shape[0];
    probe.hidden = tensor->shape[1];
    probe.x_dtype = tensor->dtype;
    probe.x.assign(bytes.begin(), bytes.end());
  }

  // Nothing happens in a file without routing unless it is `required`.
  void read_routing(Probe& probe, bool required) const {
    const TensorInfo* ids = find(kIds);
    const TensorInfo* weights = find(kWeights);
    if (ids == nullptr && weights == nullptr && !required) return;
    if (ids == nullptr) refuse(kIds, "tensor is absent", "beside topk_weights", "none");
    if (weights == nullptr) refuse(kWeights, "tensor is absent", "beside topk_ids", "none");
    const bool wide = ids->dtype == DType::i64;
    if ((!wide && ids->dtype != DType::i32) || ids->shape.size() != 2 || ids->shape[1] == 0 ||
        (limits_.top_k && ids->shape[1] != *limits_.top_k)) {
      refuse_type(*ids, "I32 or I64 [tokens, " +
                            (limits_.top_k ? std::to_string(*limits_.top_k) : "top_k") + "]");
    }
    require_tokens(*ids, probe.tokens);
    if (weights->dtype != DType::f32 || weights->shape != ids->shape)
      refuse_type(*weights, "F32 " + to_string(ids->shape));
    probe.top_k = ids->shape[1];
    read_ids(*ids, wide, probe.topk_ids);
    read_weights(*weights, probe.topk_weights);
  }

  void read_token_ids(Probe& probe) const {
    const TensorInfo* tensor = find(kTokenIds);
    if (tensor == nullptr) return;
    if (tensor->dtype != DType::i64 || tensor->shape.size() != 1)
      refuse_type(*tensor, "I64 [tokens]");
    require_tokens(*tensor, probe.tokens);
    const auto bytes = bytes_of(*tensor);
    probe.token_ids.resize(tensor->shape[0]);
    for (std::uint64_t i = 0; i < probe.token_ids.size(); ++i) {
      const auto id = element<std::int64_t>(bytes, i);
      const bool known =
          id >= -1 && (id < 0 || !limits_.vocab || static_cast<std::uint64_t>(id) < *limits_.vocab);
      if (!known) {
        refuse(kTokenIds, "wrong value at token " + std::to_string(i),
               limits_.vocab ? "-1, or an id below " + std::to_string(*limits_.vocab)
                             : "-1, or an id from 0 up",
               std::to_string(id));
      }
      probe.token_ids[i] = id;
    }
  }

 private:
  [[nodiscard]] const TensorInfo* find(std::string_view name) const {
    for (const TensorInfo& tensor : header_.tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  [[nodiscard]] std::span<const std::byte> bytes_of(const TensorInfo& tensor) const {
    return file_.bytes().subspan(tensor.offset, tensor.bytes);
  }

  [[noreturn]] void refuse(std::string_view tensor, std::string message, std::string expected,
                           std::string got) const {
    throw Error(ErrorCode::input, {.code = "MOXIE-R005",
                                   .message = std::move(message),
                                   .where = {.file = path_.string(), .tensor = std::string(tensor)},
                                   .expected = std::move(expected),
                                   .got = std::move(got)});
  }

  [[noreturn]] void refuse_type(const TensorInfo& tensor, std::string expected) const {
    refuse(tensor.name, "tensor has another type or shape", std::move(expected),
           std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape));
  }

  [[noreturn]] void refuse_tokens(const TensorInfo& tensor, std::uint64_t expected) const {
    throw Error(ErrorCode::usage, {.code = "MOXIE-R006",
                                   .message = "tensor has another number of tokens than the call",
                                   .where = {.file = path_.string(), .tensor = tensor.name},
                                   .expected = std::to_string(expected),
                                   .got = std::to_string(tensor.shape[0])});
  }

  // Tensors of one file that differ are the file's fault; one file beside another x is the
  // caller's.
  void require_tokens(const TensorInfo& tensor, std::uint64_t expected) const {
    if (tensor.shape[0] == expected) return;
    if (find(kActivations) == nullptr || find(kActivations)->shape[0] == tensor.shape[0])
      refuse_tokens(tensor, expected);
    refuse_type(tensor, std::to_string(expected) + " tokens, as hidden_states has");
  }

  template <class Number>
  [[noreturn]] void refuse_value(const TensorInfo& tensor, std::uint64_t index,
                                 std::string expected, Number got) const {
    const std::uint64_t columns = tensor.shape[1];
    refuse(tensor.name,
           "wrong value at token " + std::to_string(index / columns) + ", column " +
               std::to_string(index % columns),
           std::move(expected), std::to_string(got));
  }

  // The range is checked before the number is made narrower.
  void read_ids(const TensorInfo& tensor, bool wide, std::vector<std::int32_t>& ids) const {
    const auto bytes = bytes_of(tensor);
    ids.resize(tensor.shape[0] * tensor.shape[1]);
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
    for (std::uint64_t i = 0; i < ids.size(); ++i) {
      const std::int64_t id =
          wide ? element<std::int64_t>(bytes, i) : element<std::int32_t>(bytes, i);
      const bool known = id >= 0 && static_cast<std::uint64_t>(id) < limits_.experts &&
                         static_cast<std::uint64_t>(id) <= kMost;
      if (!known && id != -1) {
        refuse_value(tensor, i, "-1, or an expert below " + std::to_string(limits_.experts), id);
      }
      ids[i] = static_cast<std::int32_t>(id);
    }
  }

  void read_weights(const TensorInfo& tensor, std::vector<float>& weights) const {
    const auto bytes = bytes_of(tensor);
    weights.resize(tensor.shape[0] * tensor.shape[1]);
    for (std::uint64_t i = 0; i < weights.size(); ++i) {
      weights[i] = element<float>(bytes, i);
      if (!std::isfinite(weights[i])) refuse_value(tensor, i, "a finite number", weights[i]);
    }
  }

  const std::filesystem::path& path_;
  const ProbeLimits& limits_;
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace

Probe read_probe(const std::filesystem::path& path, const ProbeLimits& limits) {
  const ProbeFile file(path, limits);
  Probe probe;
  file.read_activations(probe);
  file.read_routing(probe, false);
  file.read_token_ids(probe);
  return probe;
}

void read_routing(const std::filesystem::path& path, const ProbeLimits& limits, Probe& probe) {
  ProbeFile(path, limits).read_routing(probe, true);
}

void write_probe(const std::filesystem::path& path, const Probe& probe,
                 const std::vector<NamedMatrix>& more) {
  // Ids of no token are an empty tensor, not an absent one.
  const bool routed = !probe.topk_ids.empty() || (probe.tokens == 0 && probe.top_k > 0);
  std::vector<TensorEntry> entries;
  std::vector<std::span<const std::byte>> parts;
  const auto add = [&](std::string_view name, DType dtype, Shape shape,
                       std::span<const std::byte> bytes) {
    entries.push_back({std::string(name), dtype, std::move(shape)});
    parts.push_back(bytes);
  };
  add(kActivations, probe.x_dtype, {probe.tokens, probe.hidden}, probe.x);
  if (routed) {
    const Shape shape{probe.tokens, probe.top_k};
    add(kIds, DType::i32, shape, std::as_bytes(std::span(probe.topk_ids)));
    add(kWeights, DType::f32, shape, std::as_bytes(std::span(probe.topk_weights)));
  }
  if (!probe.token_ids.empty())
    add(kTokenIds, DType::i64, {probe.tokens}, std::as_bytes(std::span(probe.token_ids)));
  for (const NamedMatrix& named : more) {
    const MatrixRef& matrix = named.matrix;
    const std::uint64_t bytes = matrix.rows * matrix.cols * bits_of(matrix.dtype) / 8;
    add(named.name, matrix.dtype, {matrix.rows, matrix.cols},
        {static_cast<const std::byte*>(matrix.data), bytes});
  }
  SafetensorsWriter writer(path, entries);
  for (const std::span<const std::byte> part : parts) writer.write(part);
  writer.commit();
}

}  // namespace moxie
