// SPDX-License-Identifier: Apache-2.0
// Experts into a layer: those that are packed already, and those that a source packs one at a time.
#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "layer/layer_state.hpp"
#include "layer/staging_memory.hpp"

namespace moxie {

namespace {

// The same error, whose findings say more of where they are.
template <class Complete>
[[noreturn]] void rethrow_from(const Error& error, const Complete& complete) {
  std::vector<Finding> findings = error.findings();
  for (Finding& finding : findings) complete(finding.where);
  throw Error::of(error.code(), std::move(findings));
}

// Blobs that are packed already are copied in parts of about a megabyte.
unsigned copied_parts(std::uint64_t bytes) {
  return static_cast<unsigned>(
      divide_up(std::max<std::uint64_t>(bytes, 1), std::uint64_t{1} << 20));
}
void copy_part(std::span<const std::byte> from, unsigned part, unsigned parts,
               std::span<std::byte> to) {
  const std::uint64_t begin = to.size() * part / parts;
  const std::uint64_t end = to.size() * (part + 1) / parts;
  std::memcpy(to.data() + begin, from.data() + begin, end - begin);
}

// Calls `write`, which packs an expert or a part of it.
template <class Write>
void pack_named(unsigned rank, std::uint64_t expert, const Write& write) {
  try {
    write();
  } catch (const Error& error) {
    rethrow_from(error, [&](Place& where) {
      if (!where.rank) where.rank = rank;
      if (!where.expert) where.expert = expert;
    });
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::environment, {.code = "MOXIE-R023",
                                         .message = "the source of the experts failed",
                                         .where = {.expert = expert, .rank = rank},
                                         .got = error.what()});
  }
}

// Experts of a source in the parts that it offers, checked. Both must outlive the answer.
PackLocal pack_in_parts(const ShardPlan& plan, const BlobSource& source) {
  const bool in_parts = source.parts > 1 && source.pack_part;
  return {.parts = in_parts ? source.parts : 1,
          .part =
              [&source, in_parts](std::uint64_t local, unsigned part, std::span<std::byte> blob) {
                const std::uint64_t expert = source.experts.id(local);
                pack_named(source.rank, expert, [&] {
                  if (in_parts) return source.pack_part(expert, part, blob);
                  source.pack_expert(expert, blob);
                });
              },
          .check =
              [&plan, &source](std::uint64_t local, std::span<const std::byte> blob) {
                try {
                  check_blob(plan, source.rank, source.experts.id(local), blob);
                } catch (const Error& error) {
                  if (!source.in_file) throw;
                  rethrow_from(error, [&](Place& where) {
                    where.file = source.in_file->path.string();
                    where.layer = source.in_file->layer;
                  });
                }
              }};
}

}  // namespace

LoadStaging::LoadStaging(std::uint64_t most_bytes)
    : memory_(std::make_unique<StagingMemory>(most_bytes)) {}
LoadStaging::~LoadStaging() = default;
LoadStaging::LoadStaging(LoadStaging&&) noexcept = default;
LoadStaging& LoadStaging::operator=(LoadStaging&&) noexcept = default;

std::uint64_t LoadStaging::bytes() const { return memory_->bytes(); }

void MoeLayer::State::check_ranks(std::vector<unsigned> ranks) const {
  std::ranges::sort(ranks);
  const bool distinct = std::ranges::adjacent_find(ranks) == ranks.end();
  const std::size_t wanted = spec.reduction == Reduction::layer ? plan.ranks.size() : 1;
  if (distinct && ranks.size() == wanted) return;
  throw Error(ErrorCode::unsupported,
              {.code = "MOXIE-R002",
               .message = spec.reduction == Reduction::layer
                              ? "a layer that sums over the ranks holds every rank once"
                              : "where the caller sums over the ranks a layer holds one rank",
               .expected = std::to_string(wanted) + " ranks",
               .got = std::to_string(ranks.size())});
}

void MoeLayer::State::check_header(const PackedExperts& header) const {
  if (header.rank < plan.ranks.size() && header.layout == plan.layout &&
      header.experts == plan.ranks[header.rank].experts)
    return;
  throw Error(ErrorCode::input, {.code = "MOXIE-R003",
                                 .message = "packed experts are not those of this plan",
                                 .where = {.rank = header.rank},
                                 .hint = "pack them under the plan that the layer gets"});
}

MoeLayer::State::HeldRank& MoeLayer::State::add_rank(PackedExperts header) {
  const RankPlan& rank = plan.ranks[header.rank];
  std::vector<std::int32_t> local(plan.experts, -1);
  for (std::uint64_t i = 0; i < rank.experts.count(); ++i)
    local[rank.experts.id(i)] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> own(rank.experts.count());
  std::iota(own.begin(), own.end(), 0);
  const ExpertsShape shape = experts_shape(plan, spec, rank);
  DeviceExperts on_device;
  if (partials != nullptr) on_device = DeviceExperts(header, local, own, *kernel, shape, offsets);
  held.push_back({.packed = std::move(header),
                  .memory = {},
                  .blobs = {},
                  .shape = shape,
                  .local_of_expert = std::move(local),
                  .local_of_local = std::move(own),
                  .on_device = std::move(on_device),
                  .scales = {},
                  .empty = rank.slice.rows.count == Elems{0}});
  held.back().blobs = held.back().packed.blobs;
  return held.back();
}

void MoeLayer::State::hold(PackedExperts packed) {
  check_header(packed);
  if (packed.blobs.size() != packed.experts.count() * plan.layout.stride) {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-R003",
                 .message = "packed experts have another size than the plan gives them",
                 .where = {.rank = packed.rank},
                 .expected = std::to_string(packed.experts.count() * plan.layout.stride) + " bytes",
                 .got = std::to_string(packed.blobs.size())});
  }
  if (partials != nullptr) {
    StagingMemory staging(LoadStaging::kDefaultBytes);
    return hold({.rank = packed.rank,
                 .layout = packed.layout,
                 .experts = packed.experts,
                 .pack_expert =
                     [&packed](std::uint64_t expert, std::span<std::byte> blob) {
                       copy_part(packed.blob(expert), 0, 1, blob);
                     },
                 .parts = copied_parts(packed.layout.stride),
                 .pack_part =
                     [&packed](std::uint64_t expert, unsigned part, std::span<std::byte> blob) {
                       copy_part(packed.blob(expert), part, copied_parts(blob.size()), blob);
                     }},
                staging);
  }
  for (std::uint64_t slot = 0; slot < packed.experts.count(); ++slot) {
    const std::uint64_t expert = packed.experts.id(slot);
    check_blob(plan, packed.rank, expert, packed.blob(expert));
  }
  add_rank(std::move(packed));
}

void MoeLayer::State::hold(const BlobSource& source, StagingMemory& staging) {
  PackedExperts header{
      .rank = source.rank, .layout = source.layout, .experts = source.experts, .blobs = {}};
  check_header(header);
  HeldRank& rank = add_rank(std::move(header));
  PackLocal pack = pack_in_parts(plan, source);
  if (partials != nullptr) {
    rank.on_device.load(std::move(pack), staging);
  } else {
    const std::uint64_t stride = plan.layout.stride;
    const std::uint64_t bytes = source.experts.count() * stride;
    rank.memory = source.in_file
                      ? WritableMemory(source.in_file->path, source.in_file->offset, bytes)
                      : WritableMemory(bytes);
    rank.blobs = rank.memory.bytes();
    parallel_for(source.experts.count(), [&](std::uint64_t local) {
      const auto blob = rank.blobs.subspan(local * stride, stride);
      if (!source.in_file) {
        for (unsigned part = 0; part < pack.parts; ++part) pack.part(local, part, blob);
      }
      pack.check(local, blob);
    });
  }
  if (source.finish) source.finish();
}

void MoeLayer::State::sort_ranks() {
  std::ranges::sort(held, {}, [](const auto& rank) { return rank.packed.rank; });
}

}  // namespace moxie
