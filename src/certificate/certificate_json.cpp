// SPDX-License-Identifier: Apache-2.0
// Certificate to its document and back. Counts stand by granule, then by window.
#include <utility>

#include "base/mapped_file.hpp"
#include "base/staged_file.hpp"
#include "moxie/certificate.hpp"

namespace moxie {

namespace {

constexpr std::string_view kSchema = "moxie.certificate/1";

template <class Value>
Json by_window(const Value& value) {
  Json rows = Json::object();
  for (std::size_t granule = 0; granule < kGranules; ++granule) {
    Json windows = Json::object();
    for (std::size_t window = 0; window < kExactWindows; ++window)
      windows.set(name_of(static_cast<ExactWindow>(window)), value(granule, window));
    rows.set(name_of(static_cast<Granule>(granule)), std::move(windows));
  }
  return rows;
}

Json counts_json(const WindowCounts& counts) {
  return by_window(
      [&](std::size_t granule, std::size_t window) { return Json(counts[granule][window]); });
}

Json worst_json(const WorstGroup& worst) {
  if (worst.distance == 0) return {};
  Json json;
  json.set("expert", worst.expert).set("projection", name_of(worst.projection));
  json.set("row", worst.row).set("group", worst.group).set("distance", worst.distance);
  return json;
}

Json layer_json(const LayerCertificate& layer) {
  Json json;
  json.set("layer", layer.layer).set("format", name_of(layer.format));
  json.set("experts", layer.experts).set("groups", layer.groups);
  json.set("zero_groups", layer.zero_groups).set("outside", counts_json(layer.outside));
  json.set("worst", by_window([&](std::size_t granule, std::size_t window) {
             return worst_json(layer.worst[granule][window]);
           }));
  Json allows = Json::object();
  for (std::size_t window = 0; window < kExactWindows; ++window) {
    const auto granule = layer.granule_for(static_cast<ExactWindow>(window));
    allows.set(name_of(static_cast<ExactWindow>(window)),
               granule ? Json(name_of(*granule)) : Json());
  }
  json.set("allows", std::move(allows));
  Json tensors = Json::array();
  for (const TensorLosses& tensor : layer.tensors) {
    Json entry;
    entry.set("expert", tensor.expert).set("projection", name_of(tensor.projection));
    entry.set("outside", counts_json(tensor.outside));
    tensors.push_back(std::move(entry));
  }
  json.set("tensors", std::move(tensors));
  if (layer.format == BlockFormat::nvfp4) {
    Json not_casts = Json::array();
    for (const std::uint64_t expert : layer.not_casts) not_casts.push_back(expert);
    json.set("mxfp4_cast", layer.is_cast()).set("not_casts", std::move(not_casts));
    json.set("blocks", layer.blocks).set("blocks_not_closed", layer.blocks_not_closed);
  }
  return json.set("scales_xxh3_128", layer.scales_checksum);
}

class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  [[noreturn]] void refuse(std::string_view field, std::string got = {}) const {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-D001",
                 .message = "certificate has no usable field " + std::string(field),
                 .where = {.file = std::string(origin_)},
                 .got = std::move(got),
                 .hint = "write it again with moxie doctor MODEL --certificate"});
  }
  [[nodiscard]] const Json& field(const Json& json, std::string_view key) const {
    const Json* value = json.find(key);
    if (value == nullptr) refuse(key);
    return *value;
  }
  [[nodiscard]] std::uint64_t number(const Json& json, std::string_view key) const {
    constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
    const Json& value = field(json, key);
    if (value.as_unsigned(kAbsent) == kAbsent) refuse(key, value.dump_compact());
    return value.as_unsigned();
  }
  [[nodiscard]] std::string text(const Json& json, std::string_view key) const {
    const Json& value = field(json, key);
    if (!value.is_string()) refuse(key, value.dump_compact());
    return value.as_string();
  }
  template <class Enum>
  [[nodiscard]] Enum named(const Json& json, std::string_view key, unsigned count) const {
    const std::string name = text(json, key);
    for (unsigned value = 0; value < count; ++value) {
      if (name_of(static_cast<Enum>(value)) == name) return static_cast<Enum>(value);
    }
    refuse(key, name);
  }
  [[nodiscard]] int layer_number(const Json& json) const {
    const std::uint64_t layer = number(json, "layer");
    if (layer > 1'000'000) refuse("layer", std::to_string(layer));
    return static_cast<int>(layer);
  }

  // Calls body(granule, window, value) for all of a table.
  template <class Body>
  void for_windows(const Json& json, std::string_view key, const Body& body) const {
    const Json& table = field(json, key);
    for (std::size_t granule = 0; granule < kGranules; ++granule) {
      const Json& windows = field(table, name_of(static_cast<Granule>(granule)));
      for (std::size_t window = 0; window < kExactWindows; ++window)
        body(granule, window, windows, name_of(static_cast<ExactWindow>(window)));
    }
  }
  [[nodiscard]] WindowCounts counts(const Json& json) const {
    WindowCounts counts{};
    for_windows(json, "outside",
                [&](std::size_t granule, std::size_t window, const Json& row,
                    std::string_view name) { counts[granule][window] = number(row, name); });
    return counts;
  }

 private:
  std::string_view origin_;
};

WorstGroup read_worst(const Reader& read, const Json& json) {
  if (json.is_null()) return {};
  const std::uint64_t distance = read.number(json, "distance");
  if (distance > 255) read.refuse("distance", std::to_string(distance));
  return {.expert = read.number(json, "expert"),
          .projection = read.named<ProjectionKind>(json, "projection", 3),
          .row = read.number(json, "row"),
          .group = read.number(json, "group"),
          .distance = static_cast<int>(distance)};
}

LayerCertificate read_layer(const Reader& read, const Json& json) {
  LayerCertificate layer{.layer = read.layer_number(json),
                         .format = read.named<BlockFormat>(json, "format", 2),
                         .experts = read.number(json, "experts"),
                         .groups = read.number(json, "groups"),
                         .zero_groups = read.number(json, "zero_groups"),
                         .outside = read.counts(json)};
  read.for_windows(
      json, "worst",
      [&](std::size_t granule, std::size_t window, const Json& row, std::string_view name) {
        layer.worst[granule][window] = read_worst(read, read.field(row, name));
      });
  for (const Json& entry : read.field(json, "tensors").elements()) {
    layer.tensors.push_back({.expert = read.number(entry, "expert"),
                             .projection = read.named<ProjectionKind>(entry, "projection", 3),
                             .outside = read.counts(entry)});
  }
  if (layer.format == BlockFormat::nvfp4) {
    for (const Json& expert : read.field(json, "not_casts").elements()) {
      const std::uint64_t id = expert.as_unsigned(layer.experts);
      if (id >= layer.experts) read.refuse("not_casts", expert.dump_compact());
      layer.not_casts.push_back(id);
    }
    layer.blocks = read.number(json, "blocks");
    layer.blocks_not_closed = read.number(json, "blocks_not_closed");
  }
  layer.scales_checksum = read.text(json, "scales_xxh3_128");
  return layer;
}

}  // namespace

Json to_json(const Certificate& certificate) {
  Json json;
  json.set("schema", kSchema).set("model", certificate.model);
  json.set("hidden", certificate.hidden).set("inter", certificate.inter);
  json.set("experts", certificate.experts).set("moe_layers", certificate.moe_layers);
  Json layers = Json::array();
  for (const LayerCertificate& layer : certificate.layers) layers.push_back(layer_json(layer));
  return json.set("layers", std::move(layers));
}

Certificate certificate_from_json(const Json& document, std::string_view origin) {
  const Reader read(origin);
  if (const std::string schema = read.text(document, "schema"); schema != kSchema)
    read.refuse("schema", schema);
  Certificate certificate{.model = read.text(document, "model"),
                          .hidden = read.number(document, "hidden"),
                          .inter = read.number(document, "inter"),
                          .experts = read.number(document, "experts"),
                          .moe_layers = read.number(document, "moe_layers"),
                          .layers = {}};
  const Json& layers = read.field(document, "layers");
  if (!layers.is_array()) read.refuse("layers", layers.dump_compact());
  for (const Json& layer : layers.elements()) {
    certificate.layers.push_back(read_layer(read, layer));
    const std::size_t count = certificate.layers.size();
    if (count > 1 && certificate.layers[count - 2].layer >= certificate.layers.back().layer)
      read.refuse("layers", "layer " + std::to_string(certificate.layers.back().layer) + " again");
  }
  // What follows from the rest must follow from it.
  if (to_json(certificate).dump_compact() != document.dump_compact())
    read.refuse("layers", "a document that contradicts itself");
  return certificate;
}

void write_certificate(const std::filesystem::path& path, const Certificate& certificate) {
  write_text_file(path, to_json(certificate).dump() + "\n");
}

Certificate read_certificate(const std::filesystem::path& path) {
  return certificate_from_json(Json::parse(read_text_file(path), path.string()), path.string());
}

}  // namespace moxie
