// SPDX-License-Identifier: Apache-2.0
// Event reader for the index: its weight_map may hold hundreds of thousands of names.
#include "checkpoint/shard_index.hpp"

#include <unordered_map>
#include <utility>

#include "base/json_events.hpp"
#include "checkpoint/name_table.hpp"
#include "moxie/status.hpp"

namespace moxie {

namespace {

class IndexEvents final : public JsonEvents {
 public:
  explicit IndexEvents(std::string_view origin) : origin_(origin) {}

  ShardIndex take() {
    if (!weight_map_seen_) refuse("no weight_map");
    return std::move(index_);
  }

  void null() override { scalar(); }
  void boolean(bool /*value*/) override { scalar(); }
  void negative(std::int64_t /*value*/) override { scalar(); }
  void number(double /*value*/) override { scalar(); }
  void unsigned_integer(std::uint64_t value) override {
    if (depth_ == 2 && section_ == Section::metadata && key_ == "total_size")
      index_.total_size = value;
    scalar();
  }
  void string(std::string_view value) override {
    if (depth_ != 2 || section_ != Section::weight_map) return scalar();
    index_.weight_map.push_back({std::move(key_), shard_number(value)});
  }
  void begin_object() override {
    if (depth_ >= 2 && section_ == Section::weight_map)
      refuse("weight_map maps a tensor to an object");
    ++depth_;
  }
  void end_object() override { --depth_; }
  void begin_array() override {
    if (depth_ == 0) refuse("not an object");
    if (section_ == Section::weight_map) refuse("weight_map holds an array");
    ++depth_;
  }
  void end_array() override { --depth_; }
  void key(std::string_view value) override {
    if (depth_ > 2) return;
    key_ = value;
    if (depth_ == 1) {
      section_ = value == "weight_map" ? Section::weight_map
                 : value == "metadata" ? Section::metadata
                                       : Section::other;
      if (section_ == Section::weight_map && std::exchange(weight_map_seen_, true))
        refuse("weight_map twice");
    } else if (section_ == Section::weight_map) {
      if (value.find('\0') != value.npos) refuse("a tensor name holds NUL");
      const auto position = static_cast<std::uint32_t>(index_.weight_map.size());
      const auto name_of = [&](std::uint32_t i) -> std::string_view {
        return index_.weight_map[i].tensor;
      };
      if (names_.add(value, position, name_of)) refuse("tensor " + key_ + " mapped twice");
    }
  }

 private:
  enum class Section { other, metadata, weight_map };

  [[noreturn]] void refuse(std::string message) const {
    throw Error(ErrorCode::input, {.code = "MOXIE-C009",
                                   .message = std::move(message),
                                   .where = {.file = std::string(origin_)}});
  }
  void scalar() const {
    if (depth_ == 0) refuse("not an object");
    if (section_ == Section::weight_map && depth_ <= 2)
      refuse("weight_map does not map tensor names to file names");
  }
  std::uint32_t shard_number(std::string_view name) {
    if (!index_.shards.empty() && name == last_name_) return last_number_;
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos ||
        name.find('\0') != name.npos) {
      refuse("shard name \"" + std::string(name) + "\" is not a plain file name");
    }
    const auto [entry, added] =
        numbers_.try_emplace(std::string(name), static_cast<std::uint32_t>(index_.shards.size()));
    if (added) index_.shards.emplace_back(name);
    last_name_ = name;
    return last_number_ = entry->second;
  }

  std::string_view origin_;
  ShardIndex index_;
  NameTable names_;  // over weight_map
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::string last_name_;
  std::uint32_t last_number_ = 0;
  std::string key_;
  int depth_ = 0;
  Section section_ = Section::other;
  bool weight_map_seen_ = false;
};

}  // namespace

ShardIndex read_shard_index(std::string_view text, std::string_view origin) {
  IndexEvents events(origin);
  parse_json(text, origin, events);
  return events.take();
}

}  // namespace moxie
