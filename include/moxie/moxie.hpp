// SPDX-License-Identifier: Apache-2.0
// All of moxie's public C++ API.
#pragma once

#include "moxie/catalog.hpp"
#include "moxie/certificate.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/convert.hpp"
#include "moxie/device.hpp"
#include "moxie/execution.hpp"
#include "moxie/json.hpp"
#include "moxie/layer.hpp"
#include "moxie/measure.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/placement.hpp"
#include "moxie/plan.hpp"
#include "moxie/probe.hpp"
#include "moxie/quantize.hpp"
#include "moxie/report.hpp"
#include "moxie/status.hpp"
#include "moxie/synth.hpp"
#include "moxie/types.hpp"
#include "moxie/verify.hpp"
