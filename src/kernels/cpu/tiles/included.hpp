// SPDX-License-Identifier: Apache-2.0
// All that the tile kernels use of other headers, for a file to include before its target region:
// inside, the linker may keep the region's copy of an inline function for everybody. Within the
// region nothing instantiates a template of these headers that others could share. Headers of the
// region name what they need all the same: here it is there already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "base/target_region.hpp"
#include "formats/act_quant.hpp"
#include "formats/activation.hpp"
#include "formats/band_order.hpp"
#include "formats/block_format.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/activation.hpp"
#include "kernels/cpu/portable/slots.hpp"
#include "kernels/cpu/tiles/prefetch.hpp"
#include "kernels/cpu/tiles/records.hpp"
#include "kernels/cpu/tiles/workspace.hpp"
