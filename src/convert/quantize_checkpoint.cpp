// SPDX-License-Identifier: Apache-2.0
// File by file: what stays is copied, experts are converted in parallel, a batch at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "base/disk_space.hpp"
#include "base/errors.hpp"
#include "base/parallel.hpp"
#include "base/staged_file.hpp"
#include "checkpoint/config_file.hpp"
#include "convert/activations.hpp"
#include "convert/documents.hpp"
#include "convert/expert.hpp"
#include "convert/left_experts.hpp"
#include "convert/scales.hpp"
#include "convert/target.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

using convert::ActivationScales;
using convert::choose_target;
using convert::convert_expert;
using convert::ConvertedExpert;
using convert::Documents;
using convert::entries_of_expert;
using convert::entries_of_stack;
using convert::find_left_experts;
using convert::find_source;
using convert::kDownBias;
using convert::kGateUpBias;
using convert::notes_on;
using convert::Piece;
using convert::pieces_of;
using convert::require_scales;
using convert::require_words_for;
using convert::Source;
using convert::SourceLayer;
using convert::working_bytes;
using convert::written_documents;

constexpr std::uint64_t kCopyBytes = std::uint64_t{16} << 20;
// Larger batches gain nothing, and between two of them the caller can stop the work.
constexpr std::uint64_t kLargestBatchBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse_output(const fs::path& path, std::string message, std::string got) {
  throw Error(ErrorCode::usage,
              {.code = "MOXIE-U002",
               .message = std::move(message),
               .where = {.file = path.string()},
               .expected = "a name that does not exist, or an empty folder, outside the model's",
               .got = std::move(got),
               .hint = "choose another name"});
}

void require_free(const fs::path& out, const fs::path& model) {
  std::error_code error;
  const auto status = fs::status(out, error);
  if (status.type() != fs::file_type::not_found) {
    if (error) raise_system("look at", out, error.value());
    const bool is_folder = fs::is_directory(status);
    const bool is_free = is_folder && fs::is_empty(out, error);
    if (error) raise_system("look at", out, error.value());
    if (!is_free)
      refuse_output(out, "the output exists", is_folder ? "a folder with files" : "a file");
  }
  const fs::path source =
      fs::weakly_canonical(fs::is_directory(model) ? model : model.parent_path());
  for (fs::path folder = fs::weakly_canonical(out);; folder = folder.parent_path()) {
    if (folder == source)
      refuse_output(out, "the output lies inside the model's folder", out.string());
    if (folder == folder.parent_path()) return;
  }
}

struct OutTensor {
  TensorEntry entry;
  const TensorInfo* copied = nullptr;
  std::uint64_t offset = 0;  // in the data area
};

// One expert and the position of its record in the report.
struct Unit {
  const SourceLayer* layer = nullptr;
  std::uint64_t expert = 0;
};

struct OutFile {
  std::string name;
  std::vector<OutTensor> tensors;
  std::vector<Unit> units;
};

class CheckpointQuantizer {
 public:
  CheckpointQuantizer(const Checkpoint& checkpoint, const fs::path& out,
                      const QuantizeOptions& options)
      : model_(read_model(checkpoint)),
        out_(fs::absolute(out).lexically_normal()),
        options_(options),
        source_(find_source(model_)),
        target_(choose_target(source_, options)),
        left_(find_left_experts(source_)) {
    if (splits_biases(source_, target_)) replace_biases();
  }

  QuantizeReport quantize() {
    require_free(out_, model_.checkpoint.path());
    if (!options_.activations.empty()) {
      if (target_.format != ConvertFormat::nvfp4) {
        throw Error(ErrorCode::unsupported, {.code = "MOXIE-Q005",
                                             .message = "only NVFP4 stores scales of activations",
                                             .expected = "--format nvfp4",
                                             .got = std::string(name_of(target_.format))});
      }
      activations_ = ActivationScales(options_.activations, source_);
    }
    require_scales(source_, target_);
    choose_batch();
    lay_out_files();
    const Documents documents = written_documents(source_, target_, report_.input_scales);
    require_words_for(left_, source_, documents);
    require_checkpoint_space(out_, report_.bytes);
    report_progress(options_.progress, 0, report_.bytes);

    StagedFolder folder(out_);
    write_text_file(folder.staging() / "config.json",
                    config_text(documents.config, model_.checkpoint.config_path()));
    if (!documents.sidecar.is_null())
      write_text_file(folder.staging() / "hf_quant_config.json", documents.sidecar.dump() + "\n");
    for (const OutFile& file : files_) write_file(folder.staging(), file);
    write_index(folder.staging());
    copy_other_files(folder.staging());
    finish_report();
    folder.commit();
    return std::move(report_);
  }

 private:
  void replace_biases() {
    for (const SourceLayer& layer : source_.layers) {
      for (const ProjectionKind kind : source_.kinds)
        source_.replaced.insert(layer.fp4->experts.front()[kind].bias.tensor);
    }
  }

  [[nodiscard]] bool is_stacked() const {
    return !target_.is_fp8() && target_.dialect == DialectKind::gpt_oss;
  }

  void choose_batch() {
    const std::uint64_t expert = working_bytes(source_, target_);
    const std::uint64_t largest =
        std::max<std::uint64_t>(kLargestBatchBytes / expert, std::uint64_t{2} * usable_threads());
    batch_ = std::min(options_.memory_bytes / expert, largest);
    if (batch_ > 0) return;
    throw Error(ErrorCode::usage, {.code = "MOXIE-K004",
                                   .message = "--memory is too small for one expert",
                                   .expected = "at least " + std::to_string(expert) + " bytes",
                                   .got = std::to_string(options_.memory_bytes)});
  }

  // Whether each projection of an expert will have an input scale.
  [[nodiscard]] std::array<bool, 3> input_scales(const Unit& unit) const {
    std::array<bool, 3> present{};
    if (target_.format != ConvertFormat::nvfp4) return present;
    for (const ProjectionKind kind : source_.kinds) {
      present[static_cast<std::size_t>(kind)] =
          !activations_.empty() ||
          (unit.layer->fp4 != nullptr && source_.fp4 == BlockFormat::nvfp4 &&
           unit.layer->fp4->experts[unit.expert][kind].act_dequant_mul.present());
    }
    return present;
  }

  // The file of an expert: that of its first weight. Stacked experts are where their layer begins.
  [[nodiscard]] std::uint32_t home_of(const Unit& unit) const {
    const std::uint64_t expert = is_stacked() ? 0 : unit.expert;
    const ProjectionKind first = source_.kinds.front();
    const TensorInfo* tensor =
        unit.layer->fp4 != nullptr
            ? unit.layer->fp4->experts[expert][first].codes.tensor
            : unit.layer->dense->experts[expert][static_cast<std::size_t>(first)].weight;
    return tensor->file;
  }

  void lay_out_files() {
    const Checkpoint& checkpoint = model_.checkpoint;
    std::vector<OutFile> files(checkpoint.files().size());
    for (std::size_t i = 0; i < files.size(); ++i)
      files[i].name = checkpoint.files()[i].path.filename().string();
    for (const TensorInfo& tensor : checkpoint.tensors()) {
      if (source_.replaced.contains(&tensor)) continue;
      files[tensor.file].tensors.push_back({{tensor.name, tensor.dtype, tensor.shape}, &tensor});
      ++report_.copied_tensors;
    }
    for (const SourceLayer& layer : source_.layers) {
      for (std::uint64_t expert = 0; expert < layer.experts; ++expert) {
        const Unit unit{.layer = &layer, .expert = expert};
        OutFile& file = files[home_of(unit)];
        const std::array<bool, 3> inputs = input_scales(unit);
        if (std::ranges::any_of(inputs, [](bool present) { return present; }))
          report_.input_scales = true;
        std::vector<TensorEntry> entries;
        if (!is_stacked()) {
          entries = entries_of_expert(source_, target_, layer, expert, inputs);
        } else if (expert == 0) {
          entries = entries_of_stack(source_, layer);
        }
        for (TensorEntry& entry : entries) {
          report_.expert_bytes += entry.bytes();
          file.tensors.push_back({std::move(entry)});
        }
        file.units.push_back(unit);
      }
    }
    for (OutFile& file : files) {
      if (file.tensors.empty()) continue;
      place(file);
      files_.push_back(std::move(file));
    }
  }

  // As published files are ordered: wide types first, so that all are aligned, then by name.
  void place(OutFile& file) {
    std::ranges::sort(file.tensors, [](const OutTensor& a, const OutTensor& b) {
      const unsigned a_bits = bits_of(a.entry.dtype);
      const unsigned b_bits = bits_of(b.entry.dtype);
      return a_bits != b_bits ? a_bits > b_bits : a.entry.name < b.entry.name;
    });
    std::uint64_t offset = 0;
    for (OutTensor& tensor : file.tensors) {
      tensor.offset = offset;
      offset += tensor.entry.bytes();
    }
    report_.bytes += offset;
    report_.tensors += file.tensors.size();
    ++report_.files;
  }

  void advance(std::uint64_t bytes) {
    done_ += bytes;
    report_progress(options_.progress, done_, report_.bytes);
  }

  void write_file(const fs::path& folder, const OutFile& file) {
    std::vector<TensorEntry> entries;
    std::unordered_map<std::string_view, std::uint64_t> offsets;
    for (const OutTensor& tensor : file.tensors) {
      entries.push_back(tensor.entry);
      offsets[tensor.entry.name] = tensor.offset;
    }
    SafetensorsWriter writer(folder / file.name, entries);
    for (const OutTensor& tensor : file.tensors) {
      if (tensor.copied != nullptr) copy(writer, tensor);
    }
    if (is_stacked()) write_zero_biases(writer, file);
    for (std::size_t first = 0; first < file.units.size(); first += batch_)
      convert_batch(writer, file, offsets, first);
    writer.commit();
  }

  void copy(SafetensorsWriter& writer, const OutTensor& tensor) {
    const auto bytes = model_.checkpoint.bytes(*tensor.copied);
    for (std::uint64_t begin = 0; begin < bytes.size(); begin += kCopyBytes) {
      const auto piece = bytes.subspan(begin, std::min(kCopyBytes, bytes.size() - begin));
      writer.write_at(tensor.offset + begin, piece);
      model_.checkpoint.release(tensor.copied->file);
      advance(piece.size());
    }
  }

  // Readers of the dialect expect biases.
  void write_zero_biases(SafetensorsWriter& writer, const OutFile& file) {
    for (const OutTensor& tensor : file.tensors) {
      const std::string_view name = tensor.entry.name;
      if (tensor.copied != nullptr || (!name.ends_with(kGateUpBias) && !name.ends_with(kDownBias)))
        continue;
      const std::vector<std::byte> zeros(tensor.entry.bytes());
      writer.write_at(tensor.offset, zeros);
      advance(zeros.size());
      zero_biases_ = true;
    }
  }

  void convert_batch(SafetensorsWriter& writer, const OutFile& file,
                     const std::unordered_map<std::string_view, std::uint64_t>& offsets,
                     std::size_t first) {
    const std::size_t count = std::min<std::size_t>(batch_, file.units.size() - first);
    std::vector<std::vector<Piece>> pieces(count);
    std::vector<std::array<QuantizedTensor, 3>> records(count);
    parallel_for(count, [&](std::uint64_t i) {
      const Unit& unit = file.units[first + i];
      ConvertedExpert converted =
          convert_expert(source_, target_, activations_, *unit.layer, unit.expert);
      for (const ProjectionKind kind : source_.kinds) {
        const auto at = static_cast<std::size_t>(kind);
        records[i][at] = {.layer = unit.layer->layer,
                          .expert = unit.expert,
                          .projection = kind,
                          .stats = converted[at].stats,
                          .changed_elems = converted[at].changed};
      }
      pieces[i] = pieces_of(source_, target_, *unit.layer, unit.expert, std::move(converted));
    });
    for (std::size_t i = 0; i < count; ++i) {
      for (const Piece& piece : pieces[i]) {
        writer.write_at(offsets.at(piece.tensor) + piece.offset,
                        std::as_bytes(std::span(piece.bytes)));
        advance(piece.bytes.size());
      }
      for (const ProjectionKind kind : source_.kinds)
        report_.worst_first.push_back(records[i][static_cast<std::size_t>(kind)]);
    }
    for (std::uint32_t i = 0; i < model_.checkpoint.files().size(); ++i)
      model_.checkpoint.release(i);
  }

  void write_index(const fs::path& folder) const {
    if (files_.size() == 1 && files_.front().name == "model.safetensors") return;
    Json::Object weight_map;
    for (const OutFile& file : files_) {
      for (const OutTensor& tensor : file.tensors)
        weight_map.push_back({tensor.entry.name, Json(file.name)});
    }
    Json index;
    index.set("metadata", Json::object().set("total_size", report_.bytes))
        .set("weight_map", Json(std::move(weight_map)));
    write_text_file(folder / "model.safetensors.index.json", index.dump() + "\n");
  }

  // Tokenizer and the like: what an engine needs beside weights and config.
  void copy_other_files(const fs::path& folder) const {
    const fs::path& source = model_.checkpoint.path();
    if (!fs::is_directory(source)) return;
    for (const auto& entry : fs::directory_iterator(source)) {
      const std::string name = entry.path().filename().string();
      const std::string extension = entry.path().extension().string();
      const bool is_weights = extension == ".safetensors" || extension == ".bin" ||
                              extension == ".gguf" || extension == ".pt" || extension == ".pth" ||
                              name.ends_with(".index.json");
      if (!entry.is_regular_file() || name.starts_with('.') || is_weights ||
          name == "config.json" || name == "hf_quant_config.json")
        continue;
      fs::copy_file(entry.path(), folder / name);
    }
  }

  void note(std::string code, std::string message) {
    report_.findings.push_back(
        {.code = std::move(code), .severity = Severity::note, .message = std::move(message)});
  }

  void finish_report() {
    const auto& opening = model_.checkpoint.findings();
    report_.findings.assign(opening.begin(), opening.end());
    report_.findings.insert(report_.findings.end(), model_.findings.begin(), model_.findings.end());
    report_.source = source_.name;
    report_.format = target_.format;
    if (!target_.is_fp8()) report_.dialect = target_.dialect;
    const bool is_requantised = !source_.fp4 || (target_.format == ConvertFormat::mxfp4 &&
                                                 *source_.fp4 == BlockFormat::nvfp4);
    if (is_requantised && !target_.is_fp8()) report_.recipe = target_.recipe;
    // Sums are made in one order, whatever the files are.
    auto& tensors = report_.worst_first;
    std::ranges::sort(tensors, {}, [](const QuantizedTensor& tensor) {
      return std::tuple(tensor.layer, tensor.expert, tensor.projection);
    });
    report_.projections = tensors.size();
    for (const QuantizedTensor& tensor : tensors) {
      report_.total.merge(tensor.stats);
      if (tensor.changed_elems)
        report_.changed_elems = report_.changed_elems.value_or(0) + *tensor.changed_elems;
    }
    std::ranges::stable_sort(tensors, {}, [](const QuantizedTensor& tensor) {
      const double snr = tensor.stats.snr_db();
      return std::isnan(snr) ? std::numeric_limits<double>::infinity() : snr;
    });
    if (zero_biases_)
      note("MOXIE-Q010",
           "the model has no expert biases; zeros are written, as readers expect some");
    const std::vector<Finding> notes = notes_on(left_, report_.findings);
    report_.findings.insert(report_.findings.end(), notes.begin(), notes.end());
  }

  MoeModel model_;
  fs::path out_;
  const QuantizeOptions& options_;
  Source source_;
  convert::Target target_;
  std::vector<convert::LeftExperts> left_;
  ActivationScales activations_;
  std::vector<OutFile> files_;
  QuantizeReport report_;
  std::uint64_t batch_ = 1;
  std::uint64_t done_ = 0;
  bool zero_biases_ = false;
};

}  // namespace

QuantizeReport quantize_checkpoint(const Checkpoint& checkpoint, const fs::path& out,
                                   const QuantizeOptions& options) {
  if (out.empty()) refuse_output(out, "the output has no name", "an empty path");
  try {
    return CheckpointQuantizer(checkpoint, out, options).quantize();
  } catch (const fs::filesystem_error& error) {
    raise_system("look at", error.path1(), error.code().value());
  }
}

}  // namespace moxie
