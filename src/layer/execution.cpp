// SPDX-License-Identifier: Apache-2.0
// Names of stages and statuses.
#include "moxie/execution.hpp"

namespace moxie {

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::slots:
      return "slots";
    case Stage::quantise:
      return "quantise";
    case Stage::gate_up:
      return "gate_up";
    case Stage::down:
      return "down";
    case Stage::combine:
      return "combine";
    case Stage::reduce:
      return "reduce";
  }
  return "?";
}

std::string_view name_of(CallStatus status) {
  switch (status) {
    case CallStatus::ok:
      return "ok";
    case CallStatus::workspace_too_small:
      return "workspace_too_small";
    case CallStatus::bad_argument:
      return "bad_argument";
    case CallStatus::device_failed:
      return "device_failed";
  }
  return "?";
}

}  // namespace moxie
